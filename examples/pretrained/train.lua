-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * a model of PyTorch, exported by model.py, that is trained further on a field which is cut over the ranks
--  * weights that go back to PyTorch: torch.load opens what mh.save_pt writes
--
-- Next month's anomaly of the sea surface temperature from the last three (../sst/data). README.md has the commands.
local mh = require "moonhalo"

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  model = here .. "/net.pt2",
  data = here .. "/../sst/data/noaa_ersst_v5_sst_monthly.nc",
  output = here .. "/output",
  epochs = 6,
  stop = 0,         -- batches of an epoch; 0: all
  batch = 8,        -- months per step
  lr = 3e-3,
  dtype = "float32",
}
local rank = mh.rank()
local function say(...) if rank == 0 then print(string.format(...)) end end

-- ---- Data: anomalies of 128 months, blocks of latitudes, 0 on land --------------------------------------------------

local kTrained = 96  -- months of 2010 to 2017
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"latitude"})
local sst = mh.scatter_tensor(mh.h5.open(cfg.data).sst, mesh, {mh.Shard(1)}, {dtype = cfg.dtype, decode = true})
local sea = sst[0]:isfinite():to(cfg.dtype)
local climatology = sst[("0:%d"):format(kTrained)]:unflatten(0, {kTrained // 12, 12}):mean{0}
local months = mh.arange(sst.shape[1]):remainder(12)
local anomalies = (sst - climatology:index_select(0, months)):nan_to_num()

--- Three months before each of `first` to `last`, and these months.
local function samples(first, last)
  local before = {}
  for k = 3, 1, -1 do before[#before + 1] = anomalies[("%d:%d"):format(first - k, last + 1 - k)] end
  return mh.stack(before, 1), anomalies[("%d:%d"):format(first, last + 1)]:unsqueeze(1)
end

local function mean_square(error) return (error * sea):square():sum() / (sea:sum() * error.shape[1]) end

-- ---- Training -------------------------------------------------------------------------------------------------------

local net = mh.export.load(cfg.model)
local optimizer = mh.optim.AdamW(net:parameters(), {lr = cfg.lr})
for epoch = 1, cfg.epochs do
  local sum, count = 0, 0
  for first = 3, kTrained - 1, cfg.batch do
    local x, y = samples(first, math.min(first + cfg.batch, kTrained) - 1)
    local loss = mean_square(net(x) - y)
    optimizer:zero_grad()
    loss:backward()
    optimizer:step()
    sum, count = sum + loss:item(), count + 1
    mh.log {epoch = epoch, loss = loss:item()}
    if count == cfg.stop then break end
  end
  say("epoch %d  loss %.6f", epoch, sum / count)
end

-- ---- Test, and back to PyTorch --------------------------------------------------------------------------------------

local x, y = samples(kTrained, sst.shape[1] - 1)
local guess = mh.no_grad(function() return net(x) end)
say("RMSE in kelvin, 2018 to 2020: network %.3f, climatology %.3f, persistence %.3f",
  mean_square(guess - y):sqrt():item(), mean_square(y):sqrt():item(), mean_square(x[":, -1:"] - y):sqrt():item())
local sample = {x = x["0:2"]:full_tensor(), y = guess["0:2"]:full_tensor()}
local state = net:state_dict()
if rank == 0 then
  mh.files.make_folder(cfg.output)
  mh.save_pt(cfg.output .. "/tuned.pt", state)
  mh.save_pt(cfg.output .. "/sample.pt", sample)
end
