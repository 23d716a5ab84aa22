-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * data, domain and tensor parallelism at once, 2 x 2 x 2 ranks: samples, latitudes and attention heads are divided
--  * parameters, gradients and states of the optimizer kept in blocks (fully_shard), micro-batches, one norm over all
--  cuts
--  * a checkpoint that any number of ranks goes on with: --set resume=true on 3 ranks continues what 8 ranks saved
--  * the same model without any of that by hand: --set policy=tp, or autodist, and mh.parallelize divides it
--
-- Next year's surface air temperature over North America from the eight years before, as a vision transformer's
-- correction to their mean (the data of examples/climate/train.lua). Losses do not depend on the ranks or on how they
-- are used.
--
--     ./dev run examples/train_at_scale/train.lua --ranks 8 [--set steps=50] [--log run.jsonl]
--     ./dev run examples/train_at_scale/train.lua --ranks 3 --set resume=true --set steps=80
--     ./dev run examples/train_at_scale/train.lua --ranks 4 --set policy=autodist

local mh = require "moonhalo"
local VisionTransformer = require "vision_transformer"

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  data = here .. "/../climate/data",  -- folder of the file
  output = here .. "/output",         -- folder for the checkpoint
  steps = 60,                         -- optimizer steps, those before a resume included
  batch = 16,                         -- samples per step, of all ranks together
  micros = 2,                         -- micro-batches per step: memory of activations / 2
  lr = 2e-3,                          -- AdamW
  max_norm = 1.0,                     -- gradients are clipped to this
  dim = 64, heads = 4, depth = 2, patch = 4,
  policy = "",                        -- "": divided by hand; "data", "tp", "autodist": by mh.parallelize
  unit = 0,                           -- with a policy: ranks of a unit; 0: all
  resume = false,                     -- go on from the checkpoint
  dtype = "float32",
  seed = 7,
}
local kYears = 8

local rank, ranks = mh.rank(), mh.world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end
mh.manual_seed(cfg.seed)

-- ---- The mesh: who shares what --------------------------------------------------------------------------------------

-- Ranks for data, domain and tensor parallelism. Any other product will do.
local kShapes = {[1] = {1, 1, 1}, [2] = {1, 2, 1}, [3] = {1, 3, 1}, [4] = {2, 2, 1}, [6] = {1, 3, 2}, [8] = {2, 2, 2}}
local shape = cfg.policy ~= "" and {1, 1, ranks} or kShapes[ranks] or {ranks, 1, 1}
local mesh = mh.init_device_mesh(mh.device(), shape, {"data", "domain", "tensor"})

-- ---- The field: by hand each rank reads its latitudes, for a policy all of it ---------------------------------------

local air = mh.h5.open(cfg.data .. "/A1B_north_america.nc")["air_temperature"]
local field = mh.scatter_tensor(air, mesh["domain"], {mh.Shard(1)}, {dtype = cfg.dtype, decode = true})
if cfg.policy ~= "" then field = field:full_tensor() end
local n = field.shape[1] - kYears

--- Inputs [samples, 8, latitude, longitude] and targets [samples, 1, latitude, longitude] of chosen years, as
--- differences from the mean of the eight.
local function samples(chosen)
  local years = {}
  for k = 0, kYears - 1 do years[k + 1] = field:index_select(0, chosen + k) end
  local seen = mh.stack(years, 1)
  local mean = seen:mean({1}, true)
  return seen - mean, field:index_select(0, chosen + kYears):unsqueeze(1) - mean
end

--- Part `i` of `parts` of a list of samples.
local function part(chosen, i, parts)
  local first = chosen:numel() * i // parts
  return chosen:narrow(0, first, chosen:numel() * (i + 1) // parts - first)
end

-- ---- The model ------------------------------------------------------------------------------------------------------

local net = VisionTransformer{channels = kYears, out_channels = 1, size = {field.shape[2], field.shape[3]},
  patch = cfg.patch, dim = cfg.dim, heads = cfg.heads, depth = cfg.depth}:to(cfg.dtype)

if cfg.policy == "" then
  -- Heads and features over "tensor": two layers that belong together are cut by columns and by rows.
  local plan = {parameter = {}}
  for _, name in ipairs {"query", "key", "value", "widen"} do
    plan.parameter["blocks.*." .. name .. ".*"] = {mh.Shard(0)}
  end
  for _, name in ipairs {"mix", "narrow"} do plan.parameter["blocks.*." .. name .. ".weight"] = {mh.Shard(1)} end
  mh.parallelize_module(net, mesh["tensor"], plan)
  -- The rest of every parameter is kept in blocks over "data". Samples and latitudes need no more than their tensors.
  for _, block in net.blocks:each() do mh.fully_shard(block, {mesh = mesh["data"]}) end
  mh.fully_shard(net, {mesh = mesh["data"]})
else
  local unit = cfg.unit > 0 and cfg.unit or ranks
  local config = mh.ComputeConfig{plan_ngpus = unit, runtime_ngpus = ranks, use_zero = true}
  local example = samples(mh.arange(cfg.batch // cfg.micros // config.units))
  mh.parallelize(net, {x = example}, cfg.policy, config)
  if net.parallel.report then say("%s", net.parallel.report) end
  mesh = net.parallel.mesh
end
local data = mesh[cfg.policy == "" and "data" or "unit"]  -- its ranks see other samples

-- ---- Training -------------------------------------------------------------------------------------------------------

local opt = mh.build_optimizer(net, mh.optim.AdamW, {lr = cfg.lr, weight_decay = 1e-2})
local sampler = mh.data.Sampler{size = n, batch = cfg.batch, seed = cfg.seed, drop_last = true}
local state, step = {model = net, optimizer = opt, data = sampler}, 0
local path = cfg.output .. "/checkpoint"
if cfg.resume then step = mh.checkpoint.load(path, state).step end
say("%d samples of %d x %d; %s; step %d", n, field.shape[2], field.shape[3], mesh, step)

--- The loss of a step; each data rank takes its part of every micro-batch.
local function train(chosen)
  local total = 0
  opt:zero_grad()
  for micro = 0, cfg.micros - 1 do
    local mine = part(part(chosen, micro, cfg.micros), data.rank, data:size())
    local x, y = samples(mine)
    local loss = mh.mse_loss(net(x), mh.local_batch(y, data)) / cfg.micros
    loss:backward()
    total = total + loss:item()
  end
  opt:clip_gnorm(cfg.max_norm)
  opt:step()
  return total
end

local began, first, bytes = mh.clock(), step, mh.comm_stats().bytes
while step < cfg.steps do
  for chosen in sampler:batches() do
    step = step + 1
    local loss = train(chosen)
    mh.log {step = step, loss = loss}
    if step % 10 == 0 then say("step %4d  loss %.4f K^2", step, loss) end
    if step >= cfg.steps then break end  -- before the sampler goes on
  end
end
local taken = math.max(step - first, 1)
state.step = step
mh.checkpoint.save(path, state)

local held, whole = 0, 0
for _, parameter in ipairs(net:parameters()) do
  held, whole = held + parameter:to_local():numel(), whole + parameter:numel()
end
say("%.0f ms and %.0f kB sent per step; this rank keeps %d of %d parameters; saved %s",
  (mh.clock() - began) / taken * 1e3, (mh.comm_stats().bytes - bytes) / taken / 1e3, held, whole, path)
