-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * a simulation and a network on the same blocks: shallow water in a zonal channel is integrated and learned from
--  without
--    ever leaving its ranks; both look past their blocks by padding, circular along longitude, mirrored at the walls
--  * a cut along both dims on 4 ranks, uneven on 2 and 3; the losses are those of one rank
--  * a network in the place of the solver: run on by itself and scored against persistence
--
-- Waves in a rotating, shallow channel of water (21 x 40 tiles of 100 km, a mean depth of 1 km): the network takes one
-- step of half an hour where the solver takes fifteen. It is trained on some wave trains and tested on others.
--
--     ./dev run examples/channel/train.lua --ranks 4 [--set steps=50] [--log run.jsonl]

local mh = require "moonhalo"
local ConvNeXt = require "convnext"

local cfg = mh.config {
  steps = 200,                     -- optimizer steps
  trains = 12,                     -- wave trains to learn from, and as many to test on
  pictures = 24,                   -- states kept of each, half an hour apart
  batch = 16,                      -- pairs of states per step
  lr = 3e-3,                       -- AdamW; decays to 0 along a cosine
  width = 16,                      -- channels of the network
  dtype = "float32",
  seed = 3,
}
local kRows, kColumns = 21, 40     -- latitudes, longitudes
local kStart, kHours = 5, {1, 2, 5}  -- the picture that the tests start from, and how far they go
local kPictures = kStart + 2 * kHours[#kHours]
if cfg.pictures < kPictures then
  error(string.format("pictures=%d: the tests need %d at least", cfg.pictures, kPictures), 0)
end

local clock = mh.clock()
mh.manual_seed(cfg.seed)
local rank, ranks = mh.rank(), mh.world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end

-- ---- The domain: 2 x 2 blocks on four ranks, else blocks of latitudes ----------------------------------------------

local kTwoDims = ranks == 4
local mesh = kTwoDims and mh.init_device_mesh(mh.device(), {2, 2}, {"latitude", "longitude"})
  or mh.init_device_mesh(mh.device(), {ranks}, {"latitude"})

--- The first block is the largest, as on a machine whose first rank is the quickest.
local function sizes(extent, parts)
  local list, small = {}, extent // (parts + 1)
  for i = 2, parts do list[i] = small end
  list[1] = extent - small * (parts - 1)
  return list
end
local placements = kTwoDims and {mh.Shard(2, sizes(kRows, 2)), mh.Shard(3, sizes(kColumns, 2))}
  or {mh.Shard(2, sizes(kRows, ranks))}

-- ---- The simulation: linear shallow water, du/dt = fv - g dh/dx and so on, on tiles ---------------------------------

local kTile, kDepth, kGravity, kCoriolis, kTimeStep, kSubsteps = 1e5, 1e3, 9.81, 1e-4, 120.0, 15

--- (east - west) / 2 tiles: longitudes close on themselves.
local function along_longitude(x)
  local wide = mh.pad(x, {1, 1, 0, 0}, "circular")
  return (wide:narrow(3, 2, kColumns) - wide:narrow(3, 0, kColumns)) / (2 * kTile)
end
--- (north - south) / 2 tiles: heights are mirrored at the walls; what crosses them, `sign` = -1, turns round.
local function along_latitude(x, sign)
  local tall = mh.pad(x, {0, 0, 1, 1}, "reflect")
  local north, south = tall:narrow(2, 2, kRows), tall:narrow(2, 0, kRows)
  if sign < 0 then
    local rows = mh.arange(kRows, {dtype = cfg.dtype}):reshape{1, 1, kRows, 1}
    north, south = north * (1 - 2 * rows:eq(kRows - 1)), south * (1 - 2 * rows:eq(0))
  end
  return (north - south) / (2 * kTile)
end

--- Half an hour of the state [batch, 3, latitude, longitude]: velocities eastward and northward (m/s), height (m).
local function simulate(state)
  local u, v, h = table.unpack(state:split(1, 1))
  for _ = 1, kSubsteps do  -- forward in time for velocities, backward for heights
    u, v = u + kTimeStep * (kCoriolis * v - kGravity * along_longitude(h)),
           v - kTimeStep * (kCoriolis * u + kGravity * along_latitude(h, 1))
    h = h - kTimeStep * kDepth * (along_longitude(u) + along_latitude(v, -1))
  end
  return mh.cat({u, v, h}, 1)
end

--- Water at rest under bumps of some metres, at places drawn by seed: the same for any number of ranks.
local function wave_trains(count)
  local y = mh.arange(kRows, {dtype = cfg.dtype}):reshape{1, 1, kRows, 1}
  local x = mh.arange(kColumns, {dtype = cfg.dtype}):reshape{1, 1, 1, kColumns}
  local function drawn(low, high) return mh.rand({count, 1, 1, 1}, {dtype = cfg.dtype}) * (high - low) + low end
  local height = mh.zeros({count, 1, kRows, kColumns}, {dtype = cfg.dtype})
  for _ = 1, 3 do
    local dx = (x - drawn(0, kColumns) + kColumns / 2) % kColumns - kColumns / 2  -- the shorter way round
    local dy = y - drawn(3, kRows - 4)
    height = height + drawn(-4, 4) * (-(dx * dx + dy * dy) / (2 * drawn(2, 3):square())):exp()
  end
  local rest = mh.zeros_like(height)
  return mh.distribute_tensor(mh.cat({rest, rest, height}, 1), mesh, placements)
end

--- States of every train, half an hour apart: a list of [trains, 3, latitude, longitude].
local function film(count)
  local states = {wave_trains(count)}
  for k = 2, cfg.pictures do states[k] = simulate(states[k - 1]) end
  return states
end

local films = mh.no_grad(function() return film(cfg.trains) end)
local tests = mh.no_grad(function() return film(cfg.trains) end)
local simulated = mh.clock() - clock
say("%d x %d tiles in blocks of %s latitudes and %s longitudes; %d + %d wave trains simulated in %.1f s", kRows,
    kColumns,
    table.concat(films[1]:shard_sizes(2), " + "), table.concat(films[1]:shard_sizes(3), " + "), cfg.trains, cfg.trains,
      simulated)

-- ---- Training: what half an hour changes ---------------------------------------------------------------------------

local before = mh.cat({table.unpack(films, 1, cfg.pictures - 1)}, 0)
local change = mh.cat({table.unpack(films, 2)}, 0) - before
local scale, change_scale = before:square():mean({0, 2, 3}, true):sqrt(), change:square():mean({0, 2, 3}, true):sqrt()
before, change = before / scale, change / change_scale

local net = ConvNeXt{channels = 3, width = cfg.width, depth = 3}:to(cfg.dtype)
local opt = mh.optim.AdamW(net:parameters(), {lr = cfg.lr})
local schedule = mh.optim.lr_scheduler.CosineAnnealingLR(opt, {T_max = cfg.steps})
local pairs_of_states = before.shape[1]
local bytes = mh.comm_stats().bytes
local began = mh.clock()
for step in mh.progress(cfg.steps, {desc = "train"}) do
  local chosen = mh.randperm(pairs_of_states):narrow(0, 0, cfg.batch)
  local loss = mh.mse_loss(net(before:index_select(0, chosen)), change:index_select(0, chosen))
  opt:zero_grad()
  loss:backward()
  opt:step()
  schedule:step()
  mh.log {step = step, loss = loss:item()}
end
local step_ms = (mh.clock() - began) / cfg.steps * 1000
local step_bytes = (mh.comm_stats().bytes - bytes) / cfg.steps

-- ---- The network in the place of the solver -------------------------------------------------------------------------

local function rmse(guess, truth) return (guess - truth):select(1, 2):square():mean():sqrt():item() end
say("")
say("  height on unseen wave trains, RMSE in metres")
say("  %-22s %10s %10s", "", "network", "persistence")
mh.inference_mode(function()
  local state, at = tests[kStart], 0
  for _, hours in ipairs(kHours) do
    while at < 2 * hours do state, at = state + net(state / scale) * change_scale, at + 1 end
    local truth = tests[kStart + at]
    say("  after %2d half hours %13.3f %10.3f", at, rmse(state, truth), rmse(tests[kStart], truth))
  end
end)
say("")
say("  %-30s %8.1f ms", "time per step", step_ms)
say("  %-30s %8.1f kB per rank", "bytes moved per step", step_bytes / 1e3)
say("  %-30s %8.1f s", "whole run", mh.clock() - clock)
