-- SPDX-License-Identifier: Apache-2.0
-- mh.checkpoint in units of fully_shard that cast their parameters: the same bits as without it.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local units = require "support.sharded_units"
local nn = mh.nn

local tests = {}
local mesh, mine, whole = units.mesh, units.mine, units.whole

-- ---- A model that computes its layers again -------------------------------------------------------------------------

--- Layers of several kinds, which run in segments if `again`; `scale` is read as a field.
local Net = nn.Module:extend("Net")
function Net:init(again)
  self.again, self.dtypes = again, {}
  self.first = nn.Linear(4, 8)
  self.norm = nn.LayerNorm(8)
  self.attention = nn.MultiheadAttention(8, 2, {batch_first = true})
  self.conv = nn.Conv1d(8, 8, 3, {padding = 1})
  self.gates = nn.ModuleList{nn.Linear(8, 8), nn.Linear(8, 8)}
  self.scale = nn.Parameter(mh.randn{8})
  self.last = nn.Linear(8, 2)
  self.frozen = nn.Linear(8, 8)
  for _, p in ipairs(self.frozen:parameters()) do p:requires_grad_(false) end
end
function Net:segment(fn, ...)
  if not self.again then return fn(...) end
  return mh.checkpoint(fn, ...)
end
function Net:forward(x)
  local h = self:segment(self.first, x)
  h = self:segment(function(y) return y + (self.attention(y, y, y)) end, self.norm(h))
  h = self:segment(function(y)
    self.dtypes[#self.dtypes + 1] = self.scale.dtype
    return self:segment(self.gates[1], self.conv(y:transpose(1, 2)):transpose(1, 2)) * self.scale
  end, h)
  h = mh.tanh(self:segment(self.gates[0], h)) + self:segment(function(y) return self.frozen(y) end, h)
  return self.last(h)
end

--- Result, gradients and parameters after two steps; `ways` says how the model is divided and called.
local function trained(again, ways)
  mh.manual_seed(3)
  local net = Net(again)
  local given = {mesh = mesh, min_numel = 1, mp_policy = {param_dtype = ways.dtype}}
  for key, value in pairs(ways.settings or {}) do given[key] = value end
  for _, name in ipairs(ways.units or {}) do mh.fully_shard(net:get_submodule(name), given) end
  mh.fully_shard(net, given)
  local opt, seen = mh.optim.SGD(net:parameters(), {lr = 0.125}), {}
  for step = 1, 2 do
    opt:zero_grad()
    local function forward() return net(mine(step):float()) end
    local y = ways.autocast and mh.autocast("bfloat16", forward) or forward()
    y:float():square():mean():backward()
    opt:sync_shard_grad()
    seen["result " .. step] = whole(y)
    for name, gradient in pairs(units.gradients(net)) do seen[("gradient %d %s"):format(step, name)] = gradient end
    opt:step()
  end
  for name, p in net:named_parameters() do
    testing.assert_equal(p.dtype, "float32")
    seen[name] = whole(p)
  end
  for _, dtype in ipairs(net.dtypes) do testing.assert_equal(dtype, ways.dtype or "float32") end
  return seen, #net.dtypes
end

local ways = {
  one_unit = {dtype = "bfloat16"},
  half = {dtype = "float16"},
  units_in_segments = {dtype = "bfloat16", units = {"first", "gates.1", "gates.0"}},
  units_of_attention = {dtype = "bfloat16", units = {"attention", "conv"}},
  kept_after_forward = {dtype = "bfloat16", settings = units.settings[2]},
  kept_after_backward = {dtype = "bfloat16", settings = units.settings[3], units = {"gates.1"}},
  autocast = {dtype = "bfloat16", autocast = true},
  autocast_alone = {autocast = true},
}
for name, way in pairs(ways) do
  tests["test_V15_segments_use_the_casts_of_their_unit_" .. name] = function()
    local expected, once = trained(false, way)
    local seen, times = trained(true, way)
    testing.assert_equal({once, times}, {2, 4})  -- the segment ran again in both steps
    local names = 0
    for key, value in pairs(expected) do
      names = names + 1
      assert(seen[key]:equal(value), key)
    end
    assert(names > 20, names)
  end
end

-- A segment that fails, and a unit whose forward fails, leave the parameters in their places.
function tests.test_V15_parameters_are_back_in_place_after_errors()
  local Failing = nn.Module:extend("Failing")
  function Failing:init() self.fc, self.fails = nn.Linear(4, 4), true end
  function Failing:forward(x)
    return mh.checkpoint(function(y)
      local h = self.fc(y)
      if self.fails then error("stop here") end
      return h
    end, x)
  end
  local net = mh.fully_shard(Failing(), {mesh = mesh, min_numel = 1, mp_policy = {param_dtype = "bfloat16"}})
  local weight = net.fc.weight
  testing.assert_error(function() net(mine():float()) end, "stop here")
  assert(net.fc.weight:is_same(weight))
  net.fails = false
  local y = net(mine():float())
  net.fails = true
  testing.assert_error(function() y:sum():backward() end, "stop here")
  assert(net.fc.weight:is_same(weight))
end

function tests.test_V15_a_segment_that_is_no_function_is_refused()
  local Wrong = nn.Module:extend("Wrong")
  function Wrong:init() self.fc = nn.Linear(4, 4) end
  function Wrong:forward(x) return mh.checkpoint(3, self.fc(x)) end
  local net = mh.fully_shard(Wrong(), {mesh = mesh, min_numel = 1, mp_policy = {param_dtype = "bfloat16"}})
  testing.assert_error(function() net(mine():float()) end, "bad argument #1, expected a function, got 3")
end

return tests
