-- SPDX-License-Identifier: Apache-2.0
-- Operators called through their schemas: values against numbers worked out by hand, and the ways to pass arguments.
local mh = require "moonhalo"
local t = mh.testing

local tests = {}

local f64 = {dtype = "float64"}
local function F(values) return mh.tensor(values, f64) end
local function I(values) return mh.tensor(values) end
local inf = mh.inf

local a, v = F{{1, 2}, {3, 4}}, F{3, 1, 2}
local x = F{-2, -0.5, 0, 1.5}

-- Tables of {what, result, expected}; expected tables take the result's dtype.
local function elementwise_values()
  local e = math.exp(1)
  return {
    {"abs", x:abs(), {2, 0.5, 0, 1.5}},
    {"add alpha", mh.add(a, a, {alpha = 2}), {{3, 6}, {9, 12}}},
    {"add scalar", a:add(1), {{2, 3}, {4, 5}}},
    {"atan2", mh.atan2(F{1}, F{1}), {math.pi / 4}},
    {"clamp both", x:clamp(-1, 1), {-1, -0.5, 0, 1}},
    {"clamp max only", x:clamp(nil, 0), {-2, -0.5, 0, 0}},
    {"clamp keyword", x:clamp{min = 0}, {0, 0, 0, 1.5}},
    {"div floor", mh.div(F{7, -7}, 2, {rounding_mode = "floor"}), {3, -4}},
    {"erf", F{0}:erf(), {0}},
    {"exp", F{0, 1}:exp(), {1, e}},
    {"isinf", F{1, inf}:isinf(), {false, true}},
    {"lerp", mh.lerp(F{0}, F{10}, 0.3), {3}},
    {"log1p", F{e - 1}:log1p(), {1}},
    {"masked_fill", v:masked_fill(v:gt(1.5), 0), {0, 1, 0}},
    {"mul", mh.mul(a, 2), {{2, 4}, {6, 8}}},
    {"pow", a:pow(2), {{1, 4}, {9, 16}}},
    {"relu", x:relu(), {0, 0, 0, 1.5}},
    {"rsqrt", F{4}:rsqrt(), {0.5}},
    {"sign", x:sign(), {-1, -1, 0, 1}},
    {"tanh", F{0}:tanh(), {0}},
    {"where tensors", mh.where(v:gt(1.5), v, F{0, 0, 0}), {3, 0, 2}},
    {"where scalar", mh.where(v:gt(1.5), v, 0.0), {3, 0, 2}},
    {"where method", v:where(v:gt(1.5), -1.0), {3, -1, 2}},
  }
end

local function reduction_values()
  return {
    {"all", I{1, 0}:bool():all(), false},
    {"amax dim", a:amax(1), {2, 4}},
    {"any dim", I{{0, 1}, {0, 0}}:any(1), {true, false}},
    {"argmax", a:argmax(), 3},
    {"argsort", v:argsort(), I{1, 2, 0}},
    {"bincount", mh.bincount(I{0, 2, 2}), I{1, 0, 2}},
    {"cumsum", v:cumsum(0), {3, 4, 6}},
    {"logsumexp", F{0, 0}:logsumexp(0), math.log(2)},
    {"mean dims", a:mean{dim = {0, 1}, keepdim = true}, {{2.5}}},
    {"mean axis", a:mean{axis = 0}, {2, 3}},
    {"norm", F{3, 4}:norm(), 5},
    {"prod", a:prod(), 24},
    {"softmax", F{0, 0}:softmax(0), {0.5, 0.5}},
    {"sort values", (v:sort()), {1, 2, 3}},
    {"std unbiased", F{1, 3}:std(), math.sqrt(2)},
    {"sum dim", a:sum(0), {4, 6}},
    {"sum keepdim", a:sum({1}, true), {{3}, {7}}},
    {"var correction", F{1, 3}:var{dim = 0, correction = 0}, 1},
  }
end

local function product_values()
  return {
    {"addmm", mh.addmm(a, a, a, {beta = 0, alpha = 1}), {{7, 10}, {15, 22}}},
    {"bmm", mh.bmm(a:unsqueeze(0), a:unsqueeze(0)), {{{7, 10}, {15, 22}}}},
    {"cross", mh.cross(F{1, 0, 0}, F{0, 1, 0}, {dim = 0}), {0, 0, 1}},
    {"det", mh.det(a), -2},
    {"dot", v:dot(v), 14},
    {"einsum list", mh.einsum("ij,jk->ik", {a, a}), {{7, 10}, {15, 22}}},
    {"einsum varargs", mh.einsum("ij,j->i", a, F{1, 1}), {3, 7}},
    {"inverse", mh.linalg_inv(a), {{-2, 1}, {1.5, -0.5}}},
    {"kron", mh.kron(F{1, 2}, F{1, 1}), {1, 1, 2, 2}},
    {"linear", mh.linear(F{1, 1}, a, F{1, 0}), {4, 7}},
    {"matmul", a:matmul(a), {{7, 10}, {15, 22}}},
    {"outer", mh.outer(F{1, 2}, F{1, 3}), {{1, 3}, {2, 6}}},
    {"solve", mh.linalg_solve(a, F{5, 11}), {1, 2}},
    {"trace", a:trace(), 5},
  }
end

local function shape_values()
  return {
    {"cat", mh.cat({a, a}, 1), {{1, 2, 1, 2}, {3, 4, 3, 4}}},
    {"diag", mh.diag(a), {1, 4}},
    {"expand", F{1, 2}:expand(2, -1), {{1, 2}, {1, 2}}},
    {"flip", v:flip(0), {2, 1, 3}},
    {"permute", mh.zeros({2, 3, 4}):permute(2, 0, 1):size(0), 4},
    {"repeat", F{1, 2}["repeat"](F{1, 2}, 2), {1, 2, 1, 2}},
    {"roll", v:roll(1, 0), {2, 3, 1}},
    {"squeeze", mh.zeros({1, 2, 1}):squeeze(0):dim(), 2},
    {"stack", mh.stack({v, v}, 1), {{3, 3}, {1, 1}, {2, 2}}},
    {"tril", a:tril(), {{1, 0}, {3, 4}}},
    {"unsqueeze", v:unsqueeze(-1):size(1), 1},
  }
end

local function layer_values()
  local image = mh.arange(16, f64):view(1, 1, 4, 4)
  return {
    {"avg_pool2d", mh.avg_pool2d(image, 2), {{{{2.5, 4.5}, {10.5, 12.5}}}}},
    {"conv1d", mh.conv1d(F{{{1, 2, 3, 4}}}, F{{{1, -1}}}, nil, {stride = 1}), {{{-1, -1, -1}}}},
    {"conv2d", mh.conv2d(image, mh.ones({1, 1, 3, 3}, f64), F{1}, {padding = {0, 0}}), {{{{46, 55}, {82, 91}}}}},
    {"embedding", mh.embedding(a, I{1, 0}), {{3, 4}, {1, 2}}},
    {"layer_norm", mh.layer_norm(F{{1, 3}}, {2}, nil, nil, 0), {{-1, 1}}},
    {"max_pool2d", mh.max_pool2d(image, {2, 2}), {{{{5, 7}, {13, 15}}}}},
    {"one_hot", mh.one_hot(I{1, 0}, 2), I{{0, 1}, {1, 0}}},
  }
end

local function index_values()
  return {
    {"gather", a:gather(1, I{{1}, {0}}), {{2}, {3}}},
    {"index_select", a:index_select(1, I{1}), {{2}, {4}}},
    {"scatter", mh.zeros({3}, f64):scatter(0, I{2}, 5), {0, 0, 5}},
    {"take_along_dim", mh.take_along_dim(v, I{0}, 0), {3}},
  }
end

local function factory_values()
  return {
    {"arange step", mh.arange(1, 2, 0.25), mh.tensor{1, 1.25, 1.5, 1.75}},
    {"eye", mh.eye(2, f64), {{1, 0}, {0, 1}}},
    {"full", mh.full({2}, 7, f64), {7, 7}},
    {"linspace", mh.linspace(0, 1, 3, f64), {0, 0.5, 1}},
    {"zeros_like", mh.zeros_like(v), {0, 0, 0}},
  }
end

function tests.test_values_of_eighty_operators()
  local cases = {}
  for _, values in ipairs{elementwise_values, reduction_values, product_values, shape_values, layer_values,
      index_values, factory_values} do
    local rows = values()
    table.move(rows, 1, #rows, #cases + 1, cases)
  end
  assert(#cases >= 60, "the table has only " .. #cases .. " rows")
  for _, case in ipairs(cases) do
    local name, result, expected = case[1], case[2], case[3]
    local ok, message = pcall(function()
      if mh.is_tensor(result) then
        t.assert_close(result, expected)
      else
        t.assert_equal(result, expected)
      end
    end)
    if not ok then error(name .. ": " .. message, 0) end
  end
end

function tests.test_several_results_and_lists()
  local values, indices = F{{1, 5}, {7, 2}}:max(1)
  t.assert_close(values, {5, 7})
  t.assert_equal(indices:tolist(), {1, 0})

  local parts = mh.arange(5):split(2)
  t.assert_equal({#parts, parts[3]:tolist()}, {3, {4}})

  local q, r = mh.linalg_qr(F{{2, 0}, {0, 3}})
  t.assert_close(q:matmul(r), {{2, 0}, {0, 3}})
  t.assert_equal(mh.result_type(I{1}, 1.5), "float32")
  t.assert_equal({mh.is_floating_point(F{1}), mh.equal(F{1}, F{1})}, {true, true})
end

function tests.test_argument_forms()
  local x = mh.arange(24, f64):view({2, 3, 4})
  t.assert_equal(x:view(4, 6).shape, {4, 6})
  t.assert_equal(x:view(-1).shape, {24})
  t.assert_equal(mh.zeros(2, 3).shape, {2, 3})
  t.assert_equal(mh.zeros(3).shape, {3})
  t.assert_equal(mh.zeros({}).shape, {})
  t.assert_close(x:sum{dim = {0}, keepdim = true}, x:sum({0}, true))
  t.assert_close(x:sum{}, x:sum())
  t.assert_equal(x:sum(2.0).shape, {2, 3})
  t.assert_equal(mh.full({2.0, 1.0}, 0).shape, {2, 1})
  t.assert_equal(mh.full({2}, 0).dtype, "int64")
  t.assert_equal(mh.cat{tensors = {x, x}, dim = 2}.shape, {2, 3, 8})
  t.assert_close(mh.sub(10, F{1, 2}), {9, 8})
  t.assert_equal(F{1, 2}:add(I{1, 1}[0]).dtype, "float64")
  t.assert_close(mh.full({2}, F{4}[0]), {4, 4})
  t.assert_equal(F{1}:eq(1):item(), true)
  t.assert_equal(mh["aten::neg"](F{1}):item(), -1)
end

function tests.test_in_place_and_out()
  local x = F{1, 2}
  local same = x:add_(1)
  assert(rawequal(same, x), "an in-place operator gives its argument back")
  t.assert_close(x, {2, 3})
  local out = mh.empty({2}, f64)
  mh.add(x, x, {out = out})
  t.assert_close(out, {4, 6})
end

function tests.test_indexing_operators_take_lists_with_holes()
  local x = mh.arange(6):view(2, 3)
  t.assert_equal(mh.index(x, {nil, I{2, 0}}):tolist(), {{2, 0}, {5, 3}})
  t.assert_equal(mh.index(x, {mh.none, I{1}}):tolist(), {{1}, {4}})
end

function tests.test_factories()
  local x = mh.randn({2, 2}, {dtype = "float64", requires_grad = true})
  t.assert_equal({x.dtype, x.requires_grad, x.is_leaf}, {"float64", true, true})
  t.assert_equal(mh.ones({2}, {dtype = mh.int32}).dtype, "int32")
  t.assert_equal(mh.empty({2, 3}, {device = "meta"}).device, "meta")
  t.assert_equal(mh.zeros_like(x, {dtype = "float32"}).dtype, "float32")
  t.assert_equal(mh.randint(3, {50}):max():item() <= 2, true)
  t.assert_equal(mh.randperm(5):sort():tolist(), {0, 1, 2, 3, 4})
  t.assert_equal(mh.arange(3).dtype, "int64")
  t.assert_equal(mh.zeros_like(mh.zeros({1, 2, 3, 3}), {memory_format = "channels_last"}):stride(), {18, 1, 6, 2})
end

function tests.test_random_numbers_follow_the_seed_of_this_rank()
  local function draw()
    mh.manual_seed(11)
    return {mh.rand(3), mh.randn(2), mh.dropout(mh.ones(50), 0.5, true), mh.rand_like(mh.ones(3)), mh.randperm(9),
            mh.ones(20):bernoulli(0.5), mh.empty(3):normal_(), mh.alpha_dropout(mh.ones(9), 0.2, true),
            mh.feature_dropout(mh.ones(4, 4, 2), 0.5, true)}
  end
  t.assert_equal(draw(), draw())
  local g = mh.Generator{seed = 5}
  local first = mh.rand(3, {generator = g})
  t.assert_equal(mh.rand(3, {generator = mh.Generator{seed = 5}}), first)
  assert(not mh.equal(mh.rand(3, {generator = g}), first))
end

function tests.test_dropout_keeps_the_mean()
  mh.manual_seed(1)
  local y = mh.dropout(mh.ones(20000), 0.25, true)
  t.assert_close(y:mean(), 1.0, {atol = 0.02})
  t.assert_equal(mh.dropout(mh.ones(4), 0.5, false):tolist(), {1, 1, 1, 1})
  local per_channel = mh.feature_dropout(mh.ones(2, 8, 5), 0.5, true)
  t.assert_close(per_channel:std(2), mh.zeros(2, 8))
  local normal = mh.alpha_dropout(mh.randn(50000), 0.3, true)
  t.assert_close(normal:var(), 1.0, {atol = 0.05})
end

return tests
