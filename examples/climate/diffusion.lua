-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * a diffusion transformer with neighbourhood attention on a field that is cut unevenly: an odd grid, 37 x 49
--  * noise that is drawn on the blocks by global index: losses and samples do not depend on the number of ranks
--  * an ensemble forecast made of samples, scored block by block; only sums are sent
--
-- Next year's surface air temperature over North America as a distribution: given the mean of the eight years before,
-- the network turns noise into maps of what the year may differ by. Trained on the A1B scenario, tested on E1 (see
-- train.lua).
--
--     ./dev run examples/climate/diffusion.lua --ranks 3 [--set steps=50] [--log run.jsonl]

local mh = require "moonhalo"
local DiffusionTransformer = require "diffusion_transformer"

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  data = here .. "/data",          -- folder of the two files
  output = here .. "/output",      -- folder for the picture
  steps = 250,                     -- optimizer steps
  batch = 8,                       -- years per step
  lr = 2e-3,                       -- AdamW; decays to 0 along a cosine
  dim = 32,                        -- features of a token
  depth = 3,                       -- blocks
  members = 4,                     -- samples per year
  years = 8,                       -- years of the test, equally spaced
  levels = 12,                     -- steps from noise to a sample
  dtype = "float32",
  seed = 11,
  plot = true,
}
local kYears = 8                   -- years whose mean is known
for _, name in ipairs{"years", "members"} do
  if cfg[name] < 2 then error(string.format("%s=%d: two at least, the scores compare them", name, cfg[name]), 0) end
end

local clock = mh.clock()
mh.manual_seed(cfg.seed)
local rank, ranks = mh.rank(), mh.world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end
local kType = {dtype = cfg.dtype}

-- ---- Data: the year's difference from the mean of the eight before, and that mean -----------------------------------

local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"latitude"})

--- The first rank has the most rows.
local function uneven(rows)
  local list, small = {}, rows // (ranks + 1)
  for r = 2, ranks do list[r] = small end
  list[1] = rows - small * (ranks - 1)
  return list
end

--- Two fields [n, 1, latitude, longitude], in kelvin.
local function read(scenario)
  local file = mh.h5.open(("%s/%s_north_america.nc"):format(cfg.data, scenario))
  local air = file["air_temperature"]
  local field = mh.scatter_tensor(air, mesh, {mh.Shard(1, uneven(air.shape[2]))}, {dtype = cfg.dtype, decode = true})
  local n, mean = field.shape[1] - kYears, 0
  for k = 0, kYears - 1 do mean = mean + field[("%d:%d"):format(k, k + n)] / kYears end
  return (field[("%d:"):format(kYears)] - mean):unsqueeze(1), mean:unsqueeze(1)
end

local change, past = read "A1B"
local n, height, width = change.shape[1], change.shape[3], change.shape[4]
local spread, usual = change:std({0}, {keepdim = true}), past:mean({0}, true)
local past_spread = past:std({0}, {keepdim = true})
local target, known = change / spread, (past - usual) / past_spread
say("%d years of %d x %d; blocks of latitudes: %s", n, height, width, table.concat(change:shard_sizes(2), " + "))

-- ---- The network learns to undo noise -------------------------------------------------------------------------------

local net = DiffusionTransformer{channels = 2, out_channels = 1, size = {height, width}, patch = 2, dim = cfg.dim,
  heads = 4, depth = cfg.depth, window = 7}:to(cfg.dtype)

--- The parts of field and noise in a mixture of level 0 (the field) to 1 (noise); [batch, 1, 1, 1] each.
local function shares(levels)
  local angle = (levels * (math.pi / 2)):reshape{-1, 1, 1, 1}
  return angle:cos(), angle:sin()
end
--- From a mixture and its level to its direction, signal * noise - share of noise * field: both can be had from that.
local function direction(mixture, given, levels) return net(mh.cat({mixture, given}, 1), levels * 1000) end

local opt = mh.optim.AdamW(net:parameters(), {lr = cfg.lr, weight_decay = 0})
local schedule = mh.optim.lr_scheduler.CosineAnnealingLR(opt, {T_max = cfg.steps})
local losses, began, bytes = {}, mh.clock(), mh.comm_stats().bytes
for step in mh.progress(cfg.steps, {desc = "train"}) do
  local chosen = mh.randperm(n):narrow(0, 0, cfg.batch)   -- the same years on every rank
  local field, levels = target:index_select(0, chosen), mh.rand({cfg.batch}, kType)
  local signal, share = shares(levels)
  local noise = mh.randn_like(field)
  local predicted = direction(field * signal + noise * share, known:index_select(0, chosen), levels)
  local loss = mh.mse_loss(predicted, noise * signal - field * share)
  opt:zero_grad()
  loss:backward()
  opt:step()
  schedule:step()
  losses[step] = loss:item()
  mh.log {step = step, loss = losses[step]}
end
local step_ms = (mh.clock() - began) / cfg.steps * 1000
local step_bytes = (mh.comm_stats().bytes - bytes) / cfg.steps

-- ---- Samples for years of the other scenario ------------------------------------------------------------------------

local truth, past_e1 = read "E1"
local some = mh.arange(cfg.years) * ((truth.shape[1] - 1) // (cfg.years - 1))
truth, past_e1 = truth:index_select(0, some), past_e1:index_select(0, some)

--- Kelvin, [members, years, latitude, longitude].
local function sample()
  local given = ((past_e1 - usual) / past_spread)["0:, 0"]:expand{cfg.members, cfg.years, height, width}
    :reshape{cfg.members * cfg.years, 1, height, width}
  local mixture = mh.randn_like(given)
  for k = cfg.levels, 1, -1 do
    local levels = mh.full({mixture.shape[1]}, k / cfg.levels, kType)
    local signal, share = shares(levels)
    local towards = direction(mixture, given, levels)
    local field, noise = mixture * signal - towards * share, mixture * share + towards * signal
    signal, share = shares(mh.full({mixture.shape[1]}, (k - 1) / cfg.levels, kType))
    mixture = field * signal + noise * share
  end
  return mixture:reshape{cfg.members, cfg.years, height, width} * spread:squeeze(1)
end

net:eval()
local samples = mh.inference_mode(sample)
truth = truth:squeeze(1)
local mean = samples:mean({0})
local function rms(x) return x:square():mean():sqrt():item() end
--- Continuous ranked probability score of the ensemble, in kelvin; of a single forecast it is the mean absolute error.
local function score()
  local apart = 0
  for i = 0, cfg.members - 1 do
    for j = i + 1, cfg.members - 1 do apart = apart + (samples[i] - samples[j]):abs():mean():item() end
  end
  return (samples - truth):abs():mean():item() - apart / (cfg.members * (cfg.members - 1))
end

if cfg.plot then
  mh.files.make_folder(cfg.output)
  local year = cfg.years // 2
  local maps = {{truth[year], "truth"}, {samples[0][year], "one sample"}, {samples[1][year], "another"},
      {mean[year], "mean of samples"}}
  for i, map in ipairs(maps) do
    maps[i] = {data = map[1]:full_tensor(), title = map[2], unit = "K", x = {225, 315}, y = {15, 60},
        colormap = "diverging"}
  end
  if rank == 0 then
    mh.plot.maps(cfg.output .. "/samples.png", maps, {title = "Difference from the last eight years, E1"})
  end
end

say("")
say("  test on E1, %d years, %d samples each, in kelvin", cfg.years, cfg.members)
say("  %-44s %8.3f", "RMSE of the mean of the last eight years", rms(truth))
say("  %-44s %8.3f", "RMSE of the mean of the samples", rms(mean - truth))
say("  %-44s %8.3f", "spread of the samples", samples:std({0}):square():mean():sqrt():item())
say("  %-44s %8.3f", "CRPS of the mean of the last eight years", truth:abs():mean():item())
say("  %-44s %8.3f", "CRPS of the samples", score())
say("  %-44s %8.1f ms", "time per step", step_ms)
say("  %-44s %8.1f kB per rank", "bytes moved per step", step_bytes / 1e3)
say("  %-44s %8.1f s", "whole run", mh.clock() - clock)
