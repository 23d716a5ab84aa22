-- SPDX-License-Identifier: Apache-2.0
-- Y16: transformer layers and losses have PyTorch's results and gradients (golden/nn_modules.py), also on blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local golden = require "golden.nn_layers"
local modules = require "support.golden_modules"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local nn = mh.nn
local tests = {}

for i, case in ipairs(golden) do
  tests[("test_Y16_%s_%d_equals_pytorch"):format(case[1](nn):class_name(), i)] = function()
    modules.check(case)
    modules.check(case, mesh, mh.Shard(0))
    -- The batch of transformers is dim 1.
    local all_three = true
    for _, shape in ipairs(case[2]) do all_three = all_three and #shape == 3 end
    if all_three then modules.check(case, mesh, mh.Shard(1)) end
    modules.check(case, mesh, mh.Replicate())
  end
end

function tests.test_Y16_masks_and_stacks()
  local x = modules.sines({5, 3, 4}, 1)
  local function encoder(n)
    return n.TransformerEncoder(function() return n.TransformerEncoderLayer(4, 2, {dim_feedforward = 6}) end, 2)
  end
  local net = modules.filled(encoder)
  local causal = net(x, {is_causal = true})
  local mask = mh.ones({5, 5}, {dtype = "bool"}):triu(1)
  testing.assert_close(net(x, {src_mask = mask}), causal)
  -- The end of a sequence does not change its beginning.
  local other = x:clone()
  other[4] = other[4] + 1
  testing.assert_close(net(other, {is_causal = true}):narrow(0, 0, 4), causal:narrow(0, 0, 4))
  local first = net.layers[0].linear1.weight
  mh.manual_seed(1)
  local fresh = encoder(nn)
  assert(not mh.equal(fresh.layers[0].linear1.weight, fresh.layers[1].linear1.weight), "layers begin with own draws")
  assert(first.requires_grad)
end

function tests.test_Y16_mistakes()
  local x = mh.ones({4, 3})
  local cases = {
    {function() nn.TransformerEncoderLayer(5, 2) end, "TransformerEncoderLayer: d_model 5 is not divisible by nhead 2"},
    {function() nn.TransformerEncoderLayer(4, 2, {activation = "gelo"}) end, "did you mean 'gelu'?"},
    {function() nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 2) end, "expected a function that makes one"},
    {function() nn.HingeEmbeddingLoss()(x) end, "HingeEmbeddingLoss: the call has 1 arguments, expected 2 tensors"},
    {function() nn.HingeEmbeddingLoss()(x, mh.ones{3}) end, "input and target have different shapes"},
    {function() nn.GaussianNLLLoss{reduction = "avg"} end, "GaussianNLLLoss: unknown reduction 'avg'"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
