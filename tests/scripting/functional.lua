-- SPDX-License-Identifier: Apache-2.0
-- The functions of torch.nn.functional against PyTorch's numbers; gradients are the operators' own.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local F = mh.functional

local kF64 = {dtype = "float64"}
local function arange(n) return mh.arange(n, kF64) end
local x, y = (arange(24) * 0.7):sin():reshape{4, 6}, (arange(24) * 0.3):cos():reshape{4, 6}
local classes, weight = mh.tensor{0, 5, 2, 3}, arange(6) + 1
local sign = mh.tensor({1, -1, 1, -1}, kF64)

-- Each with the reduction to use: mean, sum, and the results of "none" against cos(0), cos(1), ...
local losses = {
  {"mse_loss", function(r) return mh.mse_loss(x, y, {reduction = r}) end, 0.770684038523, 18.496416924542,
  -0.480087262097},
  {"l1_loss", function(r) return mh.l1_loss(x, y, {reduction = r}) end, 0.682536518473, 16.380876443357,
  -0.44270463211}, {"smooth_l1_loss", function(r) return mh.smooth_l1_loss(x, y, {reduction = r, beta = 0.5}) end,
    0.482409129887, 11.577819117295, -0.414170142064},
  {"huber_loss", function(r) return mh.huber_loss(x, y, {reduction = r, delta = 0.7}) end,
    0.294567572255, 7.069621734118, -0.268120733993},
  {"cross_entropy", function(r)
    return mh.cross_entropy(x, classes, {weight = weight, label_smoothing = 0.1, ignore_index = 2, reduction = r})
  end, 1.3144239509, 14.458663459898, {2.764121839415, 5.741461509673, 0.0, 5.953080110809}},
  {"nll_loss", function(r) return mh.nll_loss(x:log_softmax(1), classes, {reduction = r}) end,
    1.709188836425, 6.836755345702, {2.308202317075, 0.951556738425, 2.115498997213, 1.461497292989}},
  {"binary_cross_entropy", function(r) return mh.binary_cross_entropy(x:sigmoid(), y:sigmoid(), {reduction = r}) end,
    0.720827854219, 17.29986850125, -0.430747555576},
  {"binary_cross_entropy_with_logits", function(r)
    return mh.binary_cross_entropy_with_logits(x, y:sigmoid(), {pos_weight = weight, reduction = r})
  end, 1.646623626153, 39.518967027677, -9.628264800672},
  {"gaussian_nll_loss", function(r) return mh.gaussian_nll_loss(x, y, y * y, {full = true, reduction = r}) end,
    5.100557857732, 122.413388585565, -64.716273925442},
  {"poisson_nll_loss", function(r) return mh.poisson_nll_loss(x, y:exp(), {reduction = r}) end,
    1.005633139841, 24.135195356176, -0.784586429437},
  {"kl_div", function(r) return mh.kl_div(x:log_softmax(1), y:softmax(1), {reduction = r}) end,
    0.051294170236, 1.231060085654, 0.162159170761},
  {"cosine_embedding_loss", function(r) return mh.cosine_embedding_loss(x, y, sign, {margin = 0.1, reduction = r}) end,
    0.565098492957, 2.260393971827, {0.24075876522, 0.0, 1.408155562395, 0.611479644211}},
  {"triplet_margin_loss", function(r) return mh.triplet_margin_loss(x, y, x * y, {margin = 0.5, reduction = r}) end,
    0.990208526239, 3.960834104954, {1.128249203163, 0.171194310215, 0.794183074421, 1.867207517155}},
}

local function weighted(t) return (t * arange(t:numel()):reshape(t.shape):cos()):sum():item() end

local tests = {}

for _, case in ipairs(losses) do
  tests["test_" .. case[1]] = function()
    testing.assert_close(case[2]("mean"):item(), case[3], {rtol = 1e-10})
    testing.assert_close(case[2]("sum"):item(), case[4], {rtol = 1e-10})
    local none = case[2]("none")
    if type(case[5]) == "table" then
      testing.assert_close(none, case[5])
    else
      testing.assert_close(weighted(none), case[5], {rtol = 1e-10})
    end
  end
end

function tests.test_loss_modules_are_the_functions()
  local nn = mh.nn
  local pairs_of = {
    {nn.MSELoss(), mh.mse_loss(x, y)},
    {nn.HuberLoss{delta = 0.7}, mh.huber_loss(x, y, {delta = 0.7})},
    {nn.BCEWithLogitsLoss{pos_weight = weight}, mh.binary_cross_entropy_with_logits(x, y:clamp(0, 1),
    {pos_weight = weight}), y:clamp(0, 1)},
    {nn.CrossEntropyLoss{weight = weight, reduction = "sum"},
  mh.cross_entropy(x, classes, {weight = weight, reduction = "sum"}), classes}, }
  for _, case in ipairs(pairs_of) do testing.assert_close(case[1](x, case[3] or y), case[2]) end
end

function tests.test_a_loss_of_different_shapes_is_refused()
  testing.assert_error(function() mh.mse_loss(x, y["0"]) end,
      "mse_loss: input and target have different shapes\n  have  [4, 6] and [6]")
  testing.assert_error(function() mh.mse_loss(x, y, {reduction = "avg"}) end, "mse_loss: unknown reduction 'avg'")
  testing.assert_error(function() mh.huber_loss(x, y, {detla = 1}) end,
      "huber_loss: unknown option 'detla'; did you mean 'delta'?")
end

function tests.test_kl_div_by_batch_and_normalize()
  testing.assert_close(mh.kl_div(x:log_softmax(1), y:log_softmax(1), {reduction = "batchmean", log_target = true}):item(
      ), 0.307765021414)
  testing.assert_close(weighted(mh.normalize(x, {p = 3, dim = 0})), 0.021155412998)
  testing.assert_close(weighted(mh.cosine_similarity(x, y, 0)), -1.171813281503)
end

function tests.test_pad_modes()
  local line = mh.tensor{{{1.0, 2.0, 3.0, 4.0}}}
  testing.assert_equal(mh.pad(line, {2, 1}):tolist(), {{{0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0}}})
  testing.assert_equal(mh.pad(line, {1, 0}, "constant", 9.0):tolist(), {{{9.0, 1.0, 2.0, 3.0, 4.0}}})
  testing.assert_equal(mh.pad(line, {2, 1}, "circular"):tolist(), {{{3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0}}})
  testing.assert_equal(mh.pad(line, {2, 1}, "reflect"):tolist(), {{{3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0}}})
  testing.assert_equal(mh.pad(line, {2, 1}, "replicate"):tolist(), {{{1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0}}})
end

local function with_gradients()
  local a, b = mh.zeros({2, 2}, kF64), mh.zeros({3}, kF64)
  a.grad, b.grad = mh.tensor({{3, 0}, {0, 0}}, kF64), mh.tensor({0, -4, 0}, kF64)
  return a, b
end

function tests.test_clip_grad_norm_scales_all_alike()
  for _, case in ipairs{{2.0, 5.0}, {1.0, 7.0}, {math.huge, 4.0}, {3.0, 91 ^ (1 / 3)}} do
    local a, b = with_gradients()
    local norm = mh.clip_grad_norm({a, b, mh.zeros{1}}, 1.0, {norm_type = case[1]})

    testing.assert_close(norm:item(), case[2])
    testing.assert_close(a.grad[0][0]:item(), 3 / (case[2] + 1e-6), {rtol = 1e-9})
    testing.assert_close(b.grad[1]:item(), -4 / (case[2] + 1e-6), {rtol = 1e-9})
  end
end

function tests.test_clipping_leaves_small_gradients_and_finds_bad_ones()
  local a, b = with_gradients()
  mh.clip_grad_norm({a, b}, 10.0)
  testing.assert_equal(a.grad[0][0]:item(), 3.0)
  mh.clip_grad_value({a, b}, 2.0)
  testing.assert_equal({a.grad[0][0]:item(), b.grad[1]:item()}, {2.0, -2.0})
  b.grad:fill_(0 / 0)
  testing.assert_error(function() mh.clip_grad_norm({a, b}, 1.0, {error_if_nonfinite = true}) end,
      "error_if_nonfinite is set")
end

function tests.test_arguments_of_another_kind()
  local image = mh.ones{1, 2, 4}
  for _, case in ipairs {
    {function() mh.clip_grad_value({1}, 1) end, "clip_grad_value: parameter 1 is 1, expected a tensor"},
    {function() F.interpolate(mh.ones{1, 1, 2, 2}, {scale_factor = {2, "a"}}) end, "scale_factor[2] is 'a', expected"},
    {function() F.local_response_norm(image, "a") end, "local_response_norm: size is 'a', expected an integer"},
    {function() F.lp_pool1d(image, true, 2) end, "lp_pool1d: norm_type is true, expected a number"},
    {function() F.max_unpool1d(image, mh.zeros({1, 2, 4}, {dtype = "int64"}), 2, {output_size = 5.5}) end,
      "max_unpool1d: output_size is 5.5, expected a list of integers"},
  } do
    testing.assert_error(case[1], case[2])
  end
end

function tests.test_dropout_is_repeatable_and_off_when_not_training()
  local ones = mh.ones{100}
  mh.manual_seed(5)
  local first = F.dropout(ones, 0.5)
  mh.manual_seed(5)
  testing.assert_equal(mh.equal(F.dropout(ones, {p = 0.5}), first), true)
  testing.assert_equal(mh.equal(F.dropout(ones, {p = 0.5, training = false}), ones), true)
end

function tests.test_other_names_are_the_operators()
  testing.assert_equal(F.relu(mh.tensor{-1.0, 2.0}):tolist(), {0.0, 2.0})
  testing.assert_equal(F.one_hot(mh.tensor{1, 0}, 3):tolist(), {{0, 1, 0}, {1, 0, 0}})
  testing.assert_close(F.softmax(x, 1):sum(1), mh.ones({4}, kF64))
end

return tests
