-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * mh.data: a file that is opened, windows in time, a split without leaks, batches that are on a mesh
--  * missing values (land) with masks, and blocks of latitudes that hold as many points of sea each
--  * a longitude that goes round: circular padding beside a cut latitude
--  * a run that is interrupted, and continues with any number of ranks at the next sample (--resume)
--  * predictions as a CF file that xarray and others open, with the coordinates of the data
--
-- Next month's sea surface temperature from the last three, as differences from the climatology of 2010 to 2017 (NOAA
-- ERSST v5, 128 monthly means on 89 latitudes x 180 longitudes; data/README.md). Losses do not depend on the number of
-- ranks.
--
--     ./dev run examples/sst/train.lua --ranks 3 --run [--set epochs=4] [--log run.jsonl]
--     ./dev run examples/sst/train.lua --ranks 2 --resume --set epochs=20

local mh = require "moonhalo"
local nn, optim = mh.nn, mh.optim

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  data = here .. "/data/noaa_ersst_v5_sst_monthly.nc",
  output = here .. "/output",      -- folder of the runs, without --run
  epochs = 12,
  batch = 8,                       -- months per step
  lr = 2e-3,                       -- AdamW
  width = 16,                      -- channels
  dtype = "float32",
  seed = 7,
  plot = true,
}

mh.manual_seed(cfg.seed)
local run, ranks = mh.run {folder = cfg.output}, mh.world_size()
local function say(...) if mh.rank() == 0 then print(string.format(...)) end end

-- ---- Data: samples of three months and the next; latitudes cut so that every rank has as much sea -------------------

local data = mh.data.open(cfg.data)
local set = data:windows{inputs = {fields = {"sst"}, steps = {-2, -1, 0}}, targets = {fields = {"sst"}, steps = {1}}}
local train, test = set:split{train = {"2010", "2017"}, test = {"2018", "2020"}}

local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"latitude"})
local sizes = mh.cut_sizes(data.fields.sst:mask():sum{dim = {1}}, ranks)
local function loader_of(samples, shuffle)
  return samples:loader{mesh = mesh, cut = {lat = {"latitude", sizes}}, batch = cfg.batch, shuffle = shuffle,
                        seed = cfg.seed, missing = {fill = 0, mask = true}, dtype = cfg.dtype}
end

local kTrainMonths = 96  -- 2010 to 2017
local file = mh.h5.open(cfg.data)
local climatology = mh.scatter_tensor(file.sst[("0:%d"):format(kTrainMonths)], mesh, {mh.Shard(1, sizes)},
                                      {dtype = cfg.dtype, decode = true})
climatology = climatology:view{kTrainMonths // 12, 12, climatology.shape[2], climatology.shape[3]}:mean{0}:nan_to_num()

--- The climatology of the months that are `later` than the anchors of a batch: [batch, 1, latitude, longitude].
local function usual(batch, later)
  local months = {}
  for i, time in ipairs(batch.times) do months[i] = (tonumber(time:match("^%d+%-(%d+)")) - 1 + later) % 12 end
  return climatology:index_select(0, mh.tensor(months)):unsqueeze(1)
end

--- Inputs and targets of a batch as anomalies, 0 on land.
local function anomalies(batch)
  local before = {}
  for k = -2, 0 do before[k + 3] = usual(batch, k) end
  return (batch.inputs - mh.cat(before, 1)) * batch.mask, (batch.targets - usual(batch, 1)) * batch.mask
end

-- ---- The model: anomalies last, and a convolutional network for what becomes of them --------------------------------

local function round(x) return mh.pad(x, {1, 1, 0, 0}, "circular") end

local Net = nn.Module:extend("Net")
function Net:init(width)
  self.memory = nn.Parameter(mh.full({}, 0.5))
  self.enter = nn.Conv2d(3, width, 3, {padding = {1, 0}})
  self.between = nn.Conv2d(width, width, 3, {padding = {1, 0}})
  self.leave = nn.Conv2d(width, 1, 3, {padding = {1, 0}})
  nn.init.zeros_(self.leave.weight)
  nn.init.zeros_(self.leave.bias)
end
function Net:forward(x)
  local h = mh.gelu(self.enter(round(x)))
  h = h + mh.gelu(self.between(round(h)))
  return x[":, -1:"] * self.memory + self.leave(round(h))
end

-- ---- Training -------------------------------------------------------------------------------------------------------

local net = Net(cfg.width):to(cfg.dtype)
local opt = optim.AdamW(net:parameters(), {lr = cfg.lr})
local loader = loader_of(train, true)
run:resume {model = net, optimizer = opt, data = loader}
say("%d samples to train on, %d to test; blocks of latitudes: %s", #train, #test, table.concat(sizes, " + "))

while loader.epoch < cfg.epochs do
  for batch in loader:batches() do
    local x, y = anomalies(batch)
    local loss = ((net(x) - y) * batch.mask):square():sum() / batch.mask:sum()
    opt:zero_grad()
    loss:backward()
    opt:step()
    if run:step_done {loss = loss} then return end  -- a signal has come; --resume continues
  end
  run:epoch_done()
end

-- ---- Test -----------------------------------------------------------------------------------------------------------

local squares, points, predicted = {network = 0, persistence = 0, climatology = 0}, 0, {}
mh.inference_mode(function()
  for batch in loader_of(test, false):batches() do
    local x, y = anomalies(batch)
    local guess = net(x) * batch.mask
    local function add(name, error) squares[name] = squares[name] + (error * batch.mask):square():sum():item() end
    add("network", guess - y)
    add("climatology", y)
    add("persistence", batch.inputs[":, -1:"] - batch.targets)
    points = points + batch.mask:sum():item()
    predicted[#predicted + 1] = mh.where(batch.mask, guess + usual(batch, 1),
        mh.full({}, 0 / 0, {dtype = cfg.dtype})):squeeze(1)
  end
end)
local rmse = {}
for name, sum in pairs(squares) do rmse[name] = math.sqrt(sum / points) end
mh.log {rmse = rmse}

local first = data.steps - #test  -- the month of the first prediction
local out = mh.h5.open(run:path("prediction.nc"), "w")
out:write("sst", mh.cat(predicted, 0), {like = file.sst[("%d:%d"):format(first, data.steps)], compression = 1})
out:set_attr("title", "sea surface temperature, predicted one month ahead")
out:close()

if cfg.plot then
  local last = predicted[#predicted][-1]:full_tensor()
  local truth = data.fields.sst:read(data.steps - 1)[0]
  local function panel(field, title, range, colormap)
    return {data = field:flip{0}, title = title, unit = "°C", x = {0, 358}, y = {-88, 88}, range = range,
            colormap = colormap}
  end
  run:picture("maps", {panel(truth, "truth"), panel(last, "prediction", "temperature"),
    panel(last - truth, "error", nil, "diverging")}, {title = "Sea surface temperature, August 2020"})
end

say("\n  test on 2018 to 2020, RMSE in kelvin")
for _, name in ipairs {"persistence", "climatology", "network"} do say("  %-14s %8.3f", name, rmse[name]) end
say("  written to %s", run.folder)
if rmse.network >= rmse.climatology then say("  the network is not better than the climatology: train it longer") end
