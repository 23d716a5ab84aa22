-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * mh.data: a file that is opened, windows in time, a split without leaks, batches that are on a mesh
--  * missing values (land) with masks, and blocks of latitudes that hold as many points of sea each
--  * a longitude that goes round: circular padding beside a cut latitude
--  * a run that stops, and goes on with any number of ranks at the sample where it stopped (--set resume=true)
--  * predictions as a CF file that xarray and others open, with the coordinates of the data
--
-- Next month's sea surface temperature from the last three, as differences from the climatology of 2010 to 2017 (NOAA
-- ERSST v5, 128 monthly means on 89 latitudes x 180 longitudes; data/README.md). Losses do not depend on the number of
-- ranks.
--
--     ./dev run examples/sst/train.lua --ranks 3 [--set epochs=4] [--log run.jsonl]
--     ./dev run examples/sst/train.lua --ranks 2 --set resume=true --set epochs=20

local mh = require "moonhalo"
local nn, optim = mh.nn, mh.optim

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  data = here .. "/data/noaa_ersst_v5_sst_monthly.nc",
  output = here .. "/output",      -- folder for predictions, checkpoint and pictures
  epochs = 12,                     -- those before a resume included
  stop = 0,                        -- batches after which the run stops and saves; 0: none
  batch = 8,                       -- months per step
  lr = 2e-3,                       -- AdamW
  width = 16,                      -- channels
  resume = false,                  -- go on from the checkpoint
  dtype = "float32",
  seed = 7,
  plot = true,
}

local rank, ranks = mh.rank(), mh.world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end
mh.manual_seed(cfg.seed)

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
local state, path = {model = net, optimizer = opt, data = loader}, cfg.output .. "/checkpoint"
if cfg.resume then mh.checkpoint.load(path, state) end
say("%d samples to train on, %d to test; blocks of latitudes: %s", #train, #test, table.concat(sizes, " + "))

local steps_per_epoch = (#train + cfg.batch - 1) // cfg.batch
local done, stopped = 0, false
while loader.epoch < cfg.epochs and not stopped do
  for batch in loader:batches() do
    local x, y = anomalies(batch)
    local loss = ((net(x) - y) * batch.mask):square():sum() / batch.mask:sum()
    opt:zero_grad()
    loss:backward()
    opt:step()
    done = done + 1
    mh.log {epoch = loader.epoch, loss = loss:item()}
    stopped = done == cfg.stop
    if stopped then break end
  end
end
mh.checkpoint.save(path, state)
if stopped then
  say("stopped after %d of %d batches of epoch %d; --set resume=true goes on", done % steps_per_epoch, steps_per_epoch,
      loader.epoch)
  return
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
local function rmse(name) return math.sqrt(squares[name] / points) end

mh.files.make_folder(cfg.output)
local first = data.steps - #test  -- the month of the first prediction
local out = mh.h5.open(cfg.output .. "/prediction.nc", "w")
out:write("sst", mh.cat(predicted, 0), {like = file.sst[("%d:%d"):format(first, data.steps)], compression = 1})
out:set_attr("title", "sea surface temperature, predicted one month ahead")
out:close()

if cfg.plot then
  local last = predicted[#predicted][-1]:full_tensor()
  local truth = data.fields.sst:read(data.steps - 1)[0]
  if rank == 0 then
    local function panel(field, title, more)
      local one = {data = field, title = title, unit = "°C", x = {0, 358}, y = {-88, 88}}
      for key, value in pairs(more or {}) do one[key] = value end
      return one
    end
    mh.plot.maps(cfg.output .. "/maps.png", {
      panel(truth:flip{0}, "truth"), panel(last:flip{0}, "prediction", {range = "temperature"}),
      panel((last - truth):flip{0}, "error", {colormap = "diverging"}),
    }, {title = "Sea surface temperature, August 2020"})
  end
end

say("")
say("  test on 2018 to 2020, RMSE in kelvin")
for _, name in ipairs {"persistence", "climatology", "network"} do say("  %-14s %8.3f", name, rmse(name)) end
say("  written to %s: prediction.nc maps.png checkpoint/", cfg.output)
if rmse("network") >= rmse("climatology") then
  say("  the network is not a better than the climatology: train it longer")
end
