-- SPDX-License-Identifier: Apache-2.0
-- Forward functions replaced by name (V14), and the names of modules in traces (V16).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"tp"})
local kF64 = {dtype = "float64"}
local S, R, P = mh.Shard, mh.Replicate, mh.Partial
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end

--- Every rank adds its share of the bias to its addend of the product; the sum is made outside.
local RowParallelLinear = nn.Module:extend("RowParallelLinear")
function RowParallelLinear:init(inputs, outputs)
  self.weight = nn.Parameter(mh.randn({outputs, inputs}, kF64))
  self.bias = nn.Parameter(mh.randn({outputs}, kF64))
  self.share = mh.ones({1}, kF64)
end
function RowParallelLinear:forward(x) return mh.linear(x, self.weight) + self.bias * self.share end

local Block = nn.Module:extend("Block")
function Block:init(features, hidden)
  self.fc1 = nn.Linear(features, hidden)
  self.fc2 = RowParallelLinear(hidden, features)
end
function Block:forward(x) return x + self.fc2(self.fc1(x):gelu()) end

local Net = nn.Module:extend("Net")
function Net:init() self.blocks = nn.Sequential(Block(6, 7), Block(6, 8)) end
function Net:forward(x) return self.blocks(x) * 2 end

local function net()
  mh.manual_seed(5)
  return Net():double()
end
local function batch()
  mh.manual_seed(8)
  return mh.randn({4, 3, 6}, kF64)
end

local function divided()
  local model = mh.parallelize_module(net(), mesh, {
    parameter = {["blocks.*.fc1.*"] = {S(0)}, ["blocks.*.fc2.weight"] = {S(1)}},
    forward = {["blocks.*.fc1.input"] = {{R()}}, ["blocks.*.fc2.output"] = {{R()}}},
  })
  local share = mh.from_local(mh.full({1}, 1 / mh.world_size(), kF64), mesh, {P()})
  for _, block in model.blocks:each() do block.fc2.share = share end
  return model
end

local function reduce_before_bias(self, _, x) return mh.linear(x, self.weight):redistribute{R()} + self.bias end

--- Output, gradients, and the operators of the forward as "module: operator".
local function outcome(model)
  local y, lines = nil, {}
  local _, records = mh.op_trace(function() y = model(batch()) end)
  for i, record in ipairs(records) do lines[i] = ("%s: %s"):format(record.module, record.op) end
  y:sin():sum():backward()
  local found = {output = plain(y:detach())}
  for name, p in model:named_parameters() do found[name] = plain(p.grad) end
  return found, lines
end

local function count(lines, text)
  local sum = 0
  for _, line in ipairs(lines) do sum = sum + (line:find(text, 1, true) and 1 or 0) end
  return sum
end

function tests.test_V14_the_sum_is_made_before_the_bias_with_an_operator_less()
  local expected = outcome(net())
  local before, whole_trace = outcome(divided())
  local model = divided()

  mh.patch(model, {["blocks.*.fc2"] = reduce_before_bias})
  local after, trace = outcome(model)

  testing.assert_all_close(before, expected)
  testing.assert_all_close(after, expected)
  testing.assert_equal(count(whole_trace, "fc2: ") - count(trace, "fc2: "), 2)  -- one in each of two blocks
  testing.assert_equal(#whole_trace - #trace, 2)
  testing.assert_equal(count(trace, "fc2: aten::mul"), 0)
end

function tests.test_V14_before_parallelize_module_it_is_the_same()
  local model = net()
  mh.patch(model, {["blocks.1"] = function(self, forward, x) return forward(self, x * 1) end})
  mh.parallelize_module(model, mesh, {parameter = {["blocks.0.fc1.weight"] = {S(0)}},
      forward = {["blocks.1.input"] = {x = {S(1)}}}})
  local seen
  model.blocks[1].fc1:register_forward_pre_hook(function(_, args) seen = args[1].placements end)

  testing.assert_close(plain(model(batch())), net()(batch()))
  testing.assert_equal({#seen, seen[1].dim}, {1, 1})  -- the argument's name is that of the function that was written
end

function tests.test_patches_nest_and_come_off()
  local model, x = net(), batch()
  local expected = model(x)
  local order = {}
  local function note(word)
    return function(self, forward, ...)
      order[#order + 1] = word
      return forward(self, ...)
    end
  end

  local inner = mh.patch(model, {blocks = note "inner"})
  local outer = mh.patch(model, {["b*"] = note "outer", ["blocks.0.fc1"] = note "fc1"})
  testing.assert_equal(model(x), expected)
  testing.assert_equal(order, {"outer", "inner", "fc1"})
  outer.remove()
  testing.assert_equal(model(x), expected)
  testing.assert_equal(order, {"outer", "inner", "fc1", "inner"})
  inner.remove()
  testing.assert_equal(model(x), expected)

  testing.assert_equal(#order, 4)
  testing.assert_equal(rawget(model.blocks, "forward"), nil)
end

function tests.test_an_exact_name_wins()
  local model, seen = net(), {}
  local function note(word)
    return function(self, forward, ...)
      seen[#seen + 1] = word
      return forward(self, ...)
    end
  end

  mh.patch(model, {["blocks.*.fc?"] = note "pattern", ["blocks.*.fc1"] = note "more letters",
      ["blocks.1.fc1"] = note "exact"})
  model(batch())

  testing.assert_equal(seen, {"more letters", "pattern", "exact", "pattern"})
end

function tests.test_what_cannot_be_patched()
  local function nothing() end
  local function refused(patches, text) testing.assert_error(function() mh.patch(net(), patches) end, text) end
  refused({["blocks.*.fc3"] = nothing}, "patch: 'blocks.*.fc3' matches no module; did you mean 'blocks.0.fc1'")
  refused({["b*.*.fc1"] = nothing, ["*.0.fc1"] = nothing}, "patch: '*.0.fc1' and 'b*.*.fc1' both match 'blocks.0.fc1'")
  refused({["blocks.0"] = 3}, "patch: 'blocks.0' is a number, expected a function(self, forward, ...)")
  refused({nothing}, "patch: the names of modules are strings, got 1")
  testing.assert_error(function() mh.patch(3, {}) end, "patch: expected an nn.Module, got 3")
end

-- ---- Names of modules in traces -------------------------------------------------------------------------------------

local Breaks = nn.Module:extend("Breaks")
function Breaks:forward(x) error(tostring(x * 3)) end

function tests.test_V16_the_trace_names_the_module_of_every_operator()
  local model = divided()
  local x = mh.distribute_tensor(batch(), mesh, {R()})

  local _, records = mh.op_trace(function()
    local _ = x + 1
    pcall(Breaks(), x)
    local y = model(x):sum()
    mh.op_trace(function() model.blocks(x) end)
    y:backward()
  end)

  local seen = {}
  for _, record in ipairs(records) do
    local name = record.module or "none"
    if name ~= seen[#seen] then seen[#seen + 1] = name end
  end
  testing.assert_equal(seen, {"none", "", "blocks.0.fc1", "blocks.0", "blocks.0.fc2", "blocks.0", "blocks.1.fc1",
    "blocks.1", "blocks.1.fc2", "blocks.1", "", "none"})
end

return tests
