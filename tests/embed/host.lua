-- SPDX-License-Identifier: Apache-2.0
-- Opened by host.c: functions for its cases. X15
local mh = require "moonhalo"

local config = mh.config {lr = 0.05, failing_rank = -1}
if mh.rank() == config.failing_rank then error("this rank cannot start") end
mh.barrier()
local fields = mh.host.fields

mh.manual_seed(3)
local weight = (mh.rand({1, 1, 3, 3}, {dtype = "float64"}) - 0.5):requires_grad_()
local optimizer = mh.optim.Adam({weight}, {lr = config.lr})
mh.host.state = {optimizer = optimizer, weight = weight, steps = 0}

function nothing() end

function half(x) return (x or 0) / 2 end

--- Weighted sum over the whole of a field of any number of dims: it tells every element's place.
function checksum(name_code)
  local u = fields[string.char(name_code)]
  local total = 0 * u
  for dim = 0, u:dim() - 1 do
    local shape = {}
    for d = 0, u:dim() - 1 do shape[d + 1] = d == dim and u:size(d) or 1 end
    total = total + u * (mh.arange(u:size(dim), {dtype = "float64"}):reshape(shape) + 1) * (dim + 1)
  end
  return total:sum(), u:dim(), u:size(0), u:size(-1)
end

function add(name_code, value) fields[string.char(name_code)]:add_(math.tointeger(value) or value) end

function train()
  local u = fields.u:unsqueeze(0):unsqueeze(0)
  optimizer:zero_grad()
  local loss = mh.mse_loss(mh.conv2d(u, mh.host.state.weight, nil, {padding = 1}), 0.5 * u)
  loss:backward()
  optimizer:step()
  mh.host.state.steps = mh.host.state.steps + 1
  return loss
end

--- The sum of the field now and after some rounds of reading it.
function slow_sum(rounds)
  local first, last = fields.u:sum(), nil
  for _ = 1, math.tointeger(rounds or 1) do last = fields.u:sum() end
  return first, last
end

--- A sum of squares after a stencil, and the bytes of halos that it sent.
function smooth()
  local kernel = mh.arange(9, {dtype = "float64"}):cos():reshape{1, 1, 3, 3}
  local before = mh.comm_stats().by_kind.exchange.bytes
  local out = mh.conv2d(fields.u:unsqueeze(0):unsqueeze(0), kernel, nil, {padding = 1})
  local sent = mh.comm_stats().by_kind.exchange.bytes - before
  return out:square():sum(), mh.tensor{sent}
end

function learned() return mh.host.state.weight:detach():abs():sum(), mh.host.state.steps, config.lr end

function draw() return mh.rand({1}, {dtype = "float64"}) end

function seed(number) mh.manual_seed(number) end

function bytes() return mh.comm_stats().bytes end

-- ---- Mistakes and faults ------------------------------------------------------------------------------------------

function fails() error("the pressure is negative") end

function fails_deep()
  fails()
  return 0
end

function fails_on_rank_1()
  if mh.rank() == 1 then error("rank 1 alone has failed") end
  return fields.u:sum()
end

function fails_before_others_come()
  if mh.rank() == 1 then error("rank 1 alone has failed") end
  local deadline = os.clock() + 0.3
  while os.clock() < deadline do end
  return fields.u:sum()
end

function out_of_memory() return mh.zeros({1 << 40}) end

function leaves() os.exit(5) end

function reads_unknown() return fields.uu end

function text() return "3 apples" end

function parts_ways() return mh.rank() == 0 and fields.u:sum() or fields.u:mean() end

function runs_short_on_rank_1()
  if mh.rank() == 1 then mh.zeros({1 << 40}) end
  return fields.u:sum()
end

function is_killed_on_rank_1()
  if mh.rank() == 1 then os.execute("kill -9 $PPID") end
  return fields.u:sum()
end

-- ---- Ensembles ---------------------------------------------------------------------------------------------------

--- One step for all members, then the loss, the spread around their mean, and the weights.
function train_ensemble()
  local e = fields.e
  local images = e:unsqueeze(1)
  optimizer:zero_grad()
  local loss = mh.mse_loss(mh.conv2d(images, mh.host.state.weight, nil, {padding = 1}), 0.5 * images)
  loss:backward()
  optimizer:step()
  return loss, (e - e:mean(0)):square():mean(0):sqrt():sum(), mh.host.state.weight:detach():abs():sum()
end

--- The member of this rank alone, over the ranks that share it: a row of the mesh {members, blocks of a member}.
function sum_of_member()
  local e = fields.e
  local mesh = e.mesh
  local own = e:to_local()[0]
  if mesh.ndim == 1 then return (mesh:size() == e:size(0) and own or e[0]):sum() end
  return mh.from_local(own, mesh:slice(mesh.names[2]), {mh.Shard(0)}):sum()
end

-- ---- Waiting ------------------------------------------------------------------------------------------------------

function limit(seconds) mh.set_timeout(seconds) end

--- Until a rank is lost.
function endless() while true do fields.u:sum():item() end end

--- The rank with this number takes some seconds before it comes to a sum.
function comes_late(rank)
  if mh.rank() == rank then os.execute("sleep 4") end
  return fields.u:sum()
end

-- ---- What is compared with one rank -------------------------------------------------------------------------------

function verify_train() return mh.host.verify("train") end

--- Sums of a field and of its mask, the mean of what is there, and whether both are cut in the same way.
function masked(name_code)
  local name = string.char(name_code)
  local u, mask = fields[name], mh.host.masks[name]
  local alike = mask.dtype == "bool" and tostring(mask.placements[1]) == tostring(u.placements[1])
  return u:sum(), mask:sum(), (u * mask):sum() / mask:sum(), alike and 1 or 0
end

function verify_masked() return mh.host.verify(function() return (fields.b * mh.host.masks.b):sum()
    / mh.host.masks.b:sum() end) end

--- Writes the field, draws, and leaves gradients.
local function smear(weight)
  local mean = mh.conv2d(fields.u:unsqueeze(0):unsqueeze(0), mh.ones({1, 1, 3, 3}, {dtype = "float64"}) / 9, nil,
      {padding = 1})
  local noise = mh.rand({13, 11}, {dtype = "float64"})
  mh.host.state.weight:square():sum():backward()
  mh.no_grad(function() fields.u:copy_(fields.u * (1 - weight) + (mean[0][0] + noise) * weight) end)
  return fields.u:mean(), mh.host.state.weight.grad
end

function verify_smear() return mh.host.verify(smear, {0.25}, {tolerance = 1e-11}) end

--- Every rank takes the mean of its own block.
function verify_own()
  return mh.host.verify(function()
    local u = fields.u
    if u:is_shard_tensor() then
      u:to_local():sub_(u:to_local():mean())
    else
      u:sub_(u:mean())
    end
  end)
end

function verify_failing()
  return mh.host.verify(function()
    fields.u:add_(1)
    mh.host.state.steps = 99
    return fields.u.mesh:size()
  end)
end

-- ---- Numbers that are not numbers, tiny ones, and rounding ----------------------------------------------------------

--- Operators whose numbers raise every flag, on enough elements for all threads.
function not_finite()
  local zeros = mh.zeros({1 << 20}, {dtype = "float64"})
  local nan, inf = zeros / zeros, (zeros + 1) / zeros
  local tiny = (zeros + 1e-200) * 1e-110
  return nan:isnan():sum(), (inf:isinf() + (zeros + 1e300):float():isinf()):sum(), tiny:gt(0):sum()
end

--- Sums of rounded quotients, in Lua and in tensors.
function thirds(one)
  local sum = 0
  for i = 1, 1000 do sum = sum + one / (3 * i) end
  return sum, (mh.arange(1 << 18, {dtype = "float64"}) / 3):cos():sum()
end

function infinite() return 1, -math.huge end

function spoils() mh.no_grad(function() fields.u:narrow(0, 0, 1):narrow(1, 0, 1):fill_(math.huge) end) end

-- ---- Without an end -------------------------------------------------------------------------------------------------

function loops() while true do end end

function loops_protected()
  while true do pcall(loops) end
end

function loops_in_coroutine()
  local inner = coroutine.create(function() coroutine.wrap(loops)() end)
  while true do coroutine.resume(inner) end
end

function loops_in_handler()
  xpcall(error, function() loops() end)
  return loops()
end

function loops_on_rank_1()
  if mh.rank() == 1 then loops() end
  return fields.u:sum()
end

-- ---- What a checkpoint may lack -------------------------------------------------------------------------------------

function remembers_more() mh.host.state.mean = mh.ones{3} end

function counts_more() mh.host.state.mean, mh.host.state.counter = nil, 3 end

local profiler
function begin_profile()
  profiler = mh.profiler()
  profiler:start()
end

--- Counts the ranges of the solver that the profile shows.
function ranges_found()
  profiler:stop()
  local text, found = profiler:table{rows = 1000}, 0
  for _, name in ipairs {"(sweep)", "(inner)", "(unseen)"} do
    if text:find(name, 1, true) then found = found + 1 end
  end
  return found
end
