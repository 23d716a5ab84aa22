-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * a NetCDF-4 field read block by block: every rank reads its own latitudes only
--  * a U-Net (strided and transposed convolutions, group norm, skip connections) trained on uneven blocks,
--    with the losses that one rank gives, with dropout too (--set dropout=0.1)
--  * a run folder with settings, losses, checkpoints, predictions and pictures; a run that continues on other ranks
--
-- Next year's surface air temperature over North America from the eight years before: trained on the A1B scenario,
-- tested on E1 (Met Office model, 240 annual means on 37 latitudes x 49 longitudes).
--
--     ./dev run examples/climate/train.lua --ranks 3 [--set steps=50] [--log run.jsonl]      (docs/runs.md)

local mh = require "moonhalo"
local nn, optim = mh.nn, mh.optim

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  data = here .. "/data",          -- folder of the two files
  output = here .. "/output",      -- folder of the runs
  steps = 200,                     -- optimizer steps
  batch = 16,                      -- years per step
  lr = 2e-3,                       -- AdamW; decays to 0 along a cosine
  weight_decay = 1e-2,
  width = 16,                      -- channels at full resolution
  dropout = 0.0,                   -- probability with which an activation is dropped in training
  dtype = "float32",
  precision = "float32",           -- of convolutions: or "bfloat16", or "float16" (mh.autocast)
  seed = 7,
  plot = true,
}
local kYears = 8                   -- years that the network sees

mh.manual_seed(cfg.seed)
local run, ranks = mh.run {folder = cfg.output}, mh.world_size()
local function say(...) if mh.rank() == 0 then print(string.format(...)) end end

-- ---- The domain: latitudes cut unevenly over the ranks -------------------------------------------------------------

local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"latitude"})

--- Blocks of 3 : 2 : 3 : 2 ...: uneven on purpose, as real decompositions are.
local function uneven(rows)
  local sizes, left, total = {}, rows, (5 * ranks + 1) // 2
  for r = 1, ranks do
    sizes[r] = r == ranks and left or rows * (r % 2 == 1 and 3 or 2) // total
    left = left - sizes[r]
  end
  return sizes
end

local function read(scenario)
  local file = mh.h5.open(("%s/%s_north_america.nc"):format(cfg.data, scenario))
  local air = file["air_temperature"]
  return mh.scatter_tensor(air, mesh, {mh.Shard(1, uneven(air.shape[2]))}, {dtype = cfg.dtype, decode = true})
end

--- Windows of years as a batch: inputs [n, 8, latitude, longitude], targets [n, 1, latitude, longitude], in kelvin.
local function windows(field)
  local n, years = field.shape[1] - kYears, {}
  for k = 0, kYears - 1 do years[k + 1] = field[("%d:%d"):format(k, k + n)] end
  return mh.stack(years, 1), field[("%d:"):format(kYears)]:unsqueeze(1)
end

-- ---- The model: the mean of the eight years, and a U-Net for what it misses ----------------------------------------

local function block(conv, channels)
  return nn.Sequential(conv, nn.GroupNorm(4, channels), nn.GELU(), nn.Dropout(cfg.dropout))
end

local UNet = nn.Module:extend("UNet")
function UNet:init(width)
  local w = width
  self.enter = block(nn.Conv2d(kYears, w, 3, {padding = 1}), w)
  self.down1 = block(nn.Conv2d(w, 2 * w, 3, {stride = 2, padding = 1}), 2 * w)
  self.down2 = block(nn.Conv2d(2 * w, 2 * w, 3, {stride = 2, padding = 1}), 2 * w)
  self.up2 = block(nn.ConvTranspose2d(2 * w, 2 * w, 3, {stride = 2, padding = 1}), 2 * w)
  self.up1 = block(nn.ConvTranspose2d(4 * w, w, 3, {stride = 2, padding = 1}), w)
  self.leave = nn.Conv2d(2 * w, 1, 3, {padding = 1})
  nn.init.zeros_(self.leave.weight)
  nn.init.zeros_(self.leave.bias)
end
function UNet:forward(years)
  local mean = years:mean({1}, true)
  local a = self.enter(years - mean)
  local b = self.down1(a)
  local c = self.up2(self.down2(b))
  local d = self.up1(mh.cat({c, b}, 1))
  return mean + self.leave(mh.cat({d, a}, 1))
end

-- ---- Training ------------------------------------------------------------------------------------------------------

local inputs, targets = windows(read "A1B")
local n = inputs.shape[1]
say("%d samples of %d x %d; blocks of latitudes: %s", n, inputs.shape[3], inputs.shape[4],
    table.concat(inputs:shard_sizes(2), " + "))

local net = UNet(cfg.width):to(cfg.dtype)
local opt = optim.AdamW(net:parameters(), {lr = cfg.lr, weight_decay = cfg.weight_decay, eps = 1e-8})
local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, {T_max = cfg.steps})

local scaler = mh.GradScaler {enabled = cfg.precision == "float16"}

local function predict(years)
  if cfg.precision == "float32" then return net(years) end
  return mh.autocast(cfg.precision, net, years)
end

run:resume {model = net, optimizer = opt, schedule = schedule}
local left, began, bytes = cfg.steps - run.step, mh.clock(), mh.comm_stats().bytes
for _ in mh.progress(left, {desc = "train"}) do
  local chosen = mh.randperm(n):narrow(0, 0, cfg.batch)   -- the same years on every rank
  local loss = mh.mse_loss(predict(inputs:index_select(0, chosen)), targets:index_select(0, chosen))
  opt:zero_grad()
  scaler:scale(loss):backward()
  scaler:step(opt)
  scaler:update()
  schedule:step()
  if run:step_done {loss = loss} then return end          -- a signal has come; --resume continues
end
run:save()
local seconds, sent = (mh.clock() - began) / math.max(left, 1), (mh.comm_stats().bytes - bytes) / math.max(left, 1)

-- ---- Test on the other scenario ------------------------------------------------------------------------------------

local years, truth = windows(read "E1")
net:eval()
local prediction = mh.inference_mode(predict, years)
local function rmse(guess) return (guess - truth):square():mean():sqrt():item() end
local scores = {persistence = rmse(years[":, -1:"]), mean = rmse(years:mean({1}, true)), network = rmse(prediction)}
mh.log {rmse = scores}

local file = mh.h5.open(run:path("e1_prediction.h5"), "w")
file:write("prediction", prediction, {attrs = {units = "K", long_name = "predicted annual mean air temperature"},
                                      dims = {"time", "channel", "latitude", "longitude"}})
file:close()

if cfg.plot then
  local year = 200
  local t, p = truth[year]:squeeze(0), prediction[year]:squeeze(0)
  local function panel(data, title, colormap)  -- 15 to 60 degrees north, 225 to 315 degrees east
    return {data = data, title = title, unit = "K", x = {225, 315}, y = {15, 60}, colormap = colormap}
  end
  run:picture("maps", {panel(t, "truth"), panel(p, "prediction"), panel(p - t, "error", "diverging")},
              {title = ("E1, annual mean air temperature %d"):format(1860 + kYears + year), xlabel = "degrees east",
               ylabel = "degrees north"})
end

say("\n  test on E1, RMSE in kelvin")
say("  %-34s %8.3f", "previous year (persistence)", scores.persistence)
say("  %-34s %8.3f", "mean of the last eight years", scores.mean)
say("  %-34s %8.3f", "network", scores.network)
say("  %-34s %8.1f ms", "time per step", seconds * 1000)
say("  %-34s %8.1f kB per rank", "bytes moved per step", sent / 1e3)
say("  written to %s", run.folder)
