-- SPDX-License-Identifier: Apache-2.0
-- S26: assignments to rows and parts of a tensor, over and off its cut dim, give what they give on a plain tensor.
local mh = require "moonhalo"
local t = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kCuts = {{mh.Shard(0, {5, 1, 3})}, {mh.Shard(0, {0, 4, 5})}, {mh.Shard(1)}, {mh.Replicate()}}

local function drawn(seed, shape)
  mh.manual_seed(seed)
  return mh.randn(shape, {dtype = "float64"})
end

local kWrites = {
  row = function(x) x[3] = 7 end,
  row_of_numbers = function(x, v) x[-1] = v:sum(0) end,
  rows = function(x) x["0:2"] = 0 end,
  added = function(x, v) x[4] = x[4] + v[0] end,
  cell = function(x) x["2, 1"] = 5; x["0, -1"] = x["8, 0"] end,
  column = function(x, v) x[":, 2"] = v[":, 1"] end,
  row_of_a_view = function(x, v) x:t()[1] = v[":, 0"] end,
  diagonal = function(x) x:diagonal():fill_(2) end,
  split = function(x) x:split(4, 0)[2]:mul_(3); x:unbind(0)[1]:zero_() end,
  flat = function(x) x:view{18, 2}[5] = 1; x:flatten()["::5"] = -1 end,
  masked_row = function(x, v) x[6]:masked_fill_(v[6]:gt(0), 0.5) end,
  plain = function(x) x[1] = drawn(8, {4}); x["2:4, 1"] = drawn(9, {2}) end,
}

local tests = {}
for name, write in pairs(kWrites) do
  tests["test_S26_" .. name] = function()
    for _, cut in ipairs(kCuts) do
      local x, v = drawn(1, {9, 4}), drawn(2, {9, 4})
      local leaf, value = mh.distribute_tensor(x, mesh, cut):requires_grad_(),
          mh.distribute_tensor(v, mesh, {mh.Shard(0)})
      x:requires_grad_()
      local y, expected = leaf * 2, x * 2
      -- as in PyTorch: no gradient through these
      if name == "split" then y, expected = y:detach(), expected:detach() end

      write(expected, v)
      write(y, value)

      t.assert_close(y:full_tensor(), expected)
      if name ~= "split" then
        expected:square():sum():backward()
        y:square():sum():backward()
        t.assert_close(leaf.grad:full_tensor(), x.grad)
      end
    end
  end
end

return tests
