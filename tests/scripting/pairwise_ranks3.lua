-- SPDX-License-Identifier: Apache-2.0
-- D09: PairwiseParallel divides the linear layers of a module two by two, and the model computes what the whole one
-- does. The same file runs on 2, 3 and 4 ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn
local MLP = require "support.mlp"
local training_runs = require "support.training_runs"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"tp"})
local kF64 = {dtype = "float64"}
local R, S = mh.Replicate, mh.Shard
local tests = {}

-- Queries, keys and values come from one layer.
local Attention = nn.Module:extend("Attention")
function Attention:init(features, heads)
  self.heads = heads
  self.c_attn = nn.Linear(features, 3 * features)
  self.c_proj = nn.Linear(features, features)
end
local function attend(self, q, k, v)
  local b, t, e = table.unpack(q.shape)
  local function heads(x) return x:reshape{b, t, self.heads, e // self.heads}:transpose(1, 2) end
  local y = mh.scaled_dot_product_attention(heads(q), heads(k), heads(v), {is_causal = true})
  return y:transpose(1, 2):reshape{b, t, e}
end
function Attention:forward(x) return self.c_proj(attend(self, table.unpack(self.c_attn(x):chunk(3, -1)))) end

-- Four layers, of which the first three have the same input: their order is not a chain.
local Separate = nn.Module:extend("Separate")
function Separate:init(features, heads)
  self.heads = heads
  for _, name in ipairs {"q", "k", "v", "o"} do self[name] = nn.Linear(features, features) end
end
function Separate:forward(x) return self.o(attend(self, self.q(x), self.k(x), self.v(x))) end

local Block = nn.Module:extend("Block")
function Block:init(attention)
  self.norm1, self.norm2 = nn.LayerNorm{6}, nn.LayerNorm{6}
  self.attn = attention(6, 3)
  self.mlp = MLP(6, 7)
end
function Block:forward(x)
  x = x + self.attn(self.norm1(x))
  return x + self.mlp(self.norm2(x))
end

local makers = {
  mlp = function() return MLP(6, 7) end,
  chain = function()
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 7), nn.Linear(7, 6),
      nn.Tanh(), nn.Linear(6, 4))
  end,
  block = function() return Block(Attention) end,
  blocks = function() return nn.Sequential(Block(Attention), nn.ModuleList(Block(Separate))[0]) end,
}
local function new(name)
  mh.manual_seed(3)
  return makers[name]():double()
end

local function train(net, sync)
  mh.manual_seed(4)
  local x = mh.randn({2, 5, 6}, kF64)
  -- Not Adam, which divides rounding errors by their size: gradients of biases of keys are nothing else.
  local opt = mh.optim.SGD(net:parameters(), {lr = 0.01, momentum = 0.9})
  return training_runs.three_steps(net, x, opt, function(y) return (y * y + y:sin()):sum() end, sync)
end

--- Where the weights are: "fc1 S(0), fc2 S(1)".
local function cuts(net)
  local texts = {}
  for name, p in net:named_parameters() do
    local placement = p.placements[1]
    if name:find "weight$" and placement:is_shard() then
      texts[#texts + 1] = ("%s S(%d)"):format(name:gsub("%.weight$", ""), placement.dim)
    end
  end
  return table.concat(texts, ", ")
end

local kBlock = "attn.c_attn S(0), attn.c_proj S(1), mlp.fc1 S(0), mlp.fc2 S(1)"
for name, case in pairs {
  of_an_mlp = {"mlp", mh.PairwiseParallel(), "fc1 S(0), fc2 S(1)"},
  kept_cut = {"mlp", mh.PairwiseParallel{output_layouts = S(1), use_local_output = false}, "fc1 S(0), fc2 S(1)"},
  of_a_chain_with_one_left = {"chain", mh.PairwiseParallel(), "0 S(0), 2 S(1), 4 S(0), 5 S(1)"},
  of_attention_and_mlp = {"block", {attn = mh.PairwiseParallel(), mlp = mh.PairwiseParallel()}, kBlock},
  of_all_inside = {"block", mh.PairwiseParallel(), kBlock},
  by_pattern = {"blocks", {["*.attn"] = mh.PairwiseParallel(), ["1"] = mh.PairwiseParallel()},
    "0.attn.c_attn S(0), 0.attn.c_proj S(1), 1.attn.q S(0), 1.attn.k S(1), 1.attn.v S(0), 1.attn.o S(1), 1.mlp.fc1 " ..
"S(0), 1.mlp.fc2 S(1)"}, } do
  tests["test_D09_pairs_" .. name] = function()
    local net = mh.parallelize_module(new(case[1]), mesh, case[2])
    testing.assert_equal(cuts(net), case[3])
    testing.assert_all_close(train(net), train(new(case[1])))
  end
end

function tests.test_D09_a_pair_needs_one_all_reduce()
  local net = mh.parallelize_module(new "mlp", mesh, mh.PairwiseParallel())
  local x = mh.randn({5, 6}, kF64)
  local function counts() return mh.comm_stats().by_kind.all_reduce.calls, mh.comm_stats().calls end
  local reduced, called = counts()
  local y = mh.no_grad(function() return net(x) end)
  local reduced_after, called_after = counts()

  testing.assert_equal({reduced_after - reduced, called_after - called, y:is_shard_tensor()}, {1, 1, false})
  testing.assert_equal(tostring(mh.PairwiseParallel{output_layouts = S(1)}),
      "PairwiseParallel(output_layouts = Shard(1))")
end

function tests.test_pairs_with_cut_rows_and_without_local_output()
  mh.manual_seed(6)
  local x = mh.randn({7, 6}, kF64)
  local net = mh.parallelize_module(new "mlp", mesh,
    mh.PairwiseParallel{input_layouts = S(0), output_layouts = S(0), use_local_output = false})
  local y = net(mh.distribute_tensor(x, mesh, {S(0)}))

  testing.assert_equal(tostring(y.placements[1]):match "^Shard%(0", "Shard(0")
  testing.assert_close(y:full_tensor(), new "mlp"(x))
end

function tests.test_pairs_that_are_none_are_refused()
  for _, case in ipairs {
    {{["fc1"] = mh.PairwiseParallel()},
    "PairwiseParallel finds no two linear layers that belong together in 'fc1', a Linear"},
    {{[""] = mh.PairwiseParallel(), fc2 = mh.ColwiseParallel()}, "'fc2' has the style ColwiseParallel"},
  } do
    testing.assert_error(function() mh.parallelize_module(new "mlp", mesh, case[1]) end, case[2])
  end
  testing.assert_error(function() mh.PairwiseParallel{output_layout = R()} end, "output_layouts")
end

-- V11 V20
function tests.test_V11_finish_grad_sync_is_a_method_too()
  local plan = {parameter = {["fc1.weight"] = {S(0)}, ["fc2.weight"] = {S(1)}}}
  local expected = train(mh.parallelize_module(new "mlp", mesh, plan), mh.finish_grad_sync)
  testing.assert_equal(train(mh.parallelize_module(new "mlp", mesh, plan), function(net) net:finish_grad_sync() end),
      expected)

  local net = mh.parallelize_module(new "mlp", mesh, {})
  net(mh.distribute_tensor(mh.ones({300, 6}, kF64), mesh, {S(0)})):sin():sum():backward()
  testing.assert_equal(net.fc2.weight.grad.placements[1]:is_partial(), true)
  net:finish_grad_sync()
  for _, p in ipairs(net:parameters()) do testing.assert_equal(p.grad.placements[1]:is_replicate(), true) end
end

return tests
