-- SPDX-License-Identifier: Apache-2.0
-- D08: a sharded tensor has the methods of any tensor: forty of them, each equal to the same on one plain tensor.
local mh = require "moonhalo"
local t = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kRows = mh.world_size() == 3 and {5, 1, 3} or nil  -- of 9

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end

-- Elementwise methods keep the cut; so do reductions over the other dim.
local kKeeping = {
  abs = {}, exp = {}, sin = {}, cos = {}, tanh = {}, sigmoid = {}, relu = {}, neg = {}, square = {}, sign = {},
  floor = {}, ceil = {}, erf = {}, expm1 = {}, atan = {}, round = {}, reciprocal = {}, gelu = {},
  clamp = {-0.2, 0.5}, pow = {2}, leaky_relu = {0.1}, softmax = {1}, cumsum = {1}, sum = {1}, mean = {1}, amax = {1},
  add = {0.5}, mul = {3}, flip = {{1}}, transpose = {0, 1}, unsqueeze = {0}, isnan = {},
}
local kBinary = {"add", "sub", "mul", "div", "maximum", "minimum", "atan2", "lt", "ge", "eq", "hypot"}
local kOverTheCut = {sum = {0}, mean = {0}, amax = {0}, amin = {0}, prod = {0}, var = {0}, std = {0}, logsumexp = {0},
                     argmax = {0}, norm = {}, softmax = {0}, cumsum = {0}, flip = {{0}}}

local function tensors()
  mh.manual_seed(5)
  local x, y = mh.randn({9, 4}, {dtype = "float64"}), mh.randn({9, 4}, {dtype = "float64"})
  local cut = {mh.Shard(0, kRows)}
  return x, y, mh.distribute_tensor(x, mesh, cut), mh.distribute_tensor(y, mesh, cut)
end

local tests, count = {}, 0

local function case(name, method, args, keeps)
  count = count + 1
  tests["test_D08_" .. name] = function()
    local before = mh.set_fallback("error")
    local x, y, xs, ys = tensors()
    local list = args == "binary" and {y} or args
    local sharded_list = args == "binary" and {ys} or args
    local expected = x[method](x, table.unpack(list))

    local actual = xs[method](xs, table.unpack(sharded_list))

    mh.set_fallback(before or "replicate")
    t.assert_equal(actual:is_shard_tensor(), true)
    t.assert_close(plain(actual), expected)
    if keeps and mh.world_size() > 1 then
      t.assert_equal(tostring(actual.placements[1]):find("Shard", 1, true) ~= nil, true)
    end
    if expected.dtype ~= "float64" or method == "sign" then return end
    local a, b = x:clone():requires_grad_(), xs:clone():requires_grad_()
    a[method](a, table.unpack(list)):cos():sum():backward()
    b[method](b, table.unpack(sharded_list)):cos():sum():backward()
    if not a.grad then return end
    t.assert_close(plain(b.grad), a.grad)
    t.assert_equal(b.grad:shard_sizes(0), b:shard_sizes(0))
  end
end

for method, args in pairs(kKeeping) do case(method, method, args, true) end
for _, method in ipairs(kBinary) do case(method .. "_of_two", method, "binary", true) end
for method, args in pairs(kOverTheCut) do case(method .. "_over_the_cut", method, args) end

function tests.test_D08_covers_forty_methods() t.assert_equal(count >= 40, true) end

return tests
