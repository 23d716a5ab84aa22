-- SPDX-License-Identifier: Apache-2.0
-- Y16: layers, functions, computed parameters and distributions give PyTorch's numbers (golden/torch_values.py) and
-- gradients, on plain tensors and on uneven and empty blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local golden = require "golden.torch_values"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local nn, F, D = mh.nn, mh.functional, mh.distributions
local tests = {}

local function wave(shape, phase)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return (mh.arange(0, count, kF64) * 0.7 + phase):sin():reshape(shape)
end

local function fill(module)
  module:double()
  local tensors, names = {}, {}
  for _, list in ipairs {module:named_parameters(), module:named_buffers()} do
    for name, tensor in list do
      if tensor:is_floating_point() then tensors[name], names[#names + 1] = tensor, name end
    end
  end
  table.sort(names)
  mh.no_grad(function()
    for i, name in ipairs(names) do tensors[name]:copy_(wave(tensors[name].shape, i + 0.0)) end
  end)
  return module
end

local function compare(name, results)
  local expected = golden[name]
  testing.assert_equal(#results, #expected)
  for i, one in ipairs(results) do
    local whole = one:detach():full_tensor():double()
    testing.assert_equal(whole.shape, expected[i].shape)
    local flat = whole:reshape{-1}
    if flat:numel() > 7 then
      flat = mh.stack({(flat * wave(flat.shape, 0.9)):sum(), (flat * wave(flat.shape, 2.1)):sum()}, 0)
    end
    local values = {table.unpack(expected[i])}
    local ok, problem = pcall(testing.assert_close, flat, mh.tensor(values, kF64), {rtol = 1e-11, atol = 1e-12})
    if not ok then error(("%s, tensor %d: %s"):format(name, i, problem), 2) end
  end
end

--- Plain; the first dim in blocks {3, 0, rest}, even blocks of the last one, and whole on every rank.
local function each_cut(fn)
  fn(function(x) return x end)
  fn(function(x)
    local rows = x:size(0)
    return mh.distribute_tensor(x, mesh, {mh.Shard(0, {math.min(3, rows), 0, rows - math.min(3, rows)})})
  end)
  fn(function(x) return mh.distribute_tensor(x, mesh, {mh.Shard(x.ndim - 1)}) end)
  fn(function(x) return mh.distribute_tensor(x, mesh, {mh.Replicate()}) end)
end

local function with_gradient(run, ...)
  local inputs = {...}
  for i, one in ipairs(inputs) do inputs[i] = one:detach():requires_grad_(true) end
  local result = run(table.unpack(inputs))
  ;(result * wave(result.shape, 0.3)):sum():backward()
  local list = {result}
  for i, one in ipairs(inputs) do list[i + 1] = one.grad end
  return list
end

function tests.test_Y16_losses()
  local classes = mh.tensor{0, 4, 2, 2, 1, 3, 0}
  local rows = {{1, 3, -1, 0, 0}, {0, -1, 1, 1, 1}, {4, 2, 0, -1, 1}}
  local labels = mh.tensor{rows[1], rows[1], rows[1], rows[2], rows[2], rows[3], rows[3]}
  local weight, y = wave({5}, 1.0):abs(), wave({7, 5}, 2.0)
  local function sums(u, v) return (u - v):abs():sum(-1) end
  each_cut(function(cut)
    local x, other = cut(wave({7, 5}, 0.1)), cut(y)
    local far = cut(wave({7, 5}, 0.1) * y + 1)
    compare("MultiMarginLoss", with_gradient(function(a) return nn.MultiMarginLoss(2, 0.7, weight)(a, classes) end, x))
    compare("MultiLabelMarginLoss", with_gradient(function(a)
      return nn.MultiLabelMarginLoss{reduction = "none"}(a, labels)
    end, x))
    compare("MultiLabelSoftMarginLoss", with_gradient(function(a)
      return F.multilabel_soft_margin_loss(a, other:gt(0):double(), {weight = weight})
    end, x))
    compare("TripletMarginWithDistanceLoss", with_gradient(
        nn.TripletMarginWithDistanceLoss{swap = true, reduction = "sum"}, x, other, far))
    compare("TripletOfSums", with_gradient(
        nn.TripletMarginWithDistanceLoss{distance_function = sums, margin = 2.0}, x, other, far))
  end)
end

function tests.test_Y16_ctc()
  local targets = mh.tensor{{1, 2, 2}, {3, 1, 0}, {2, 0, 0}}
  for _, placement in ipairs {false, mh.Shard(1, {2, 0, 1}), mh.Shard(2), mh.Replicate()} do
    local x = wave({6, 3, 4}, 0.5)
    if placement then x = mh.distribute_tensor(x, mesh, {placement}) end
    compare("CTCLoss", with_gradient(function(a)
      return nn.CTCLoss{zero_infinity = true}(a:log_softmax(-1), targets, {6, 5, 6}, {3, 2, 1})
    end, x))
  end
end

function tests.test_Y16_layers_and_functions()
  local adaptive = fill(nn.AdaptiveLogSoftmaxWithLoss(6, 9, {2, 5}, {div_value = 2.0, head_bias = true}))
  local classes = mh.tensor{0, 8, 3, 4, 5, 1, 2}
  each_cut(function(cut)
    local x, rows = cut(wave({2, 4, 7, 3}, 0.1)), cut(wave({7, 6}, 0.4))
    compare("Softmax2d", with_gradient(nn.Softmax2d(), x))
    compare("RReLU", with_gradient(nn.RReLU():eval(), x))
    compare("CrossMapLRN2d_3", with_gradient(nn.CrossMapLRN2d(3, {alpha = 0.5, beta = 0.6, k = 2.0}), x))
    compare("AdaptiveLogProb", with_gradient(function(a) return adaptive:log_prob(a) end, rows))
    compare("AdaptiveLoss", with_gradient(function(a) return select(2, adaptive(a, classes)) end, rows))
    compare("AdaptiveOutput", {(adaptive(rows, classes))})
    compare("affine_grid", {F.affine_grid(cut(wave({2, 2, 3}, 0.0)), {2, 1, 3, 4}, true)})
    compare("softmin", {F.softmin(x, 1)})
    compare("tanhshrink", {F.tanhshrink(x)})
    compare("logsigmoid", {F.logsigmoid(x)})
    compare("upsample_bilinear", {F.upsample_bilinear(x, {scale_factor = 2})})
    compare("adaptive_max_pool2d_with_indices", {F.adaptive_max_pool2d_with_indices(x, {3, 2})})
  end)
end

function tests.test_Y16_bags()
  local bags, offsets = mh.tensor{{1, 2, 0}, {3, 3, 2}}, mh.tensor{0, 2, 2}
  for _, cut in ipairs {false, mh.Shard(1, {2, 0, 1}), mh.Replicate()} do
    local function made(mode, padding)
      local net = fill(nn.EmbeddingBag(5, 3, {mode = mode, padding_idx = padding}))
      if cut then mh.distribute_module(net, mesh, function(_, module)
        module.weight = nn.Parameter(mh.distribute_tensor(module.weight:detach(), mesh, {cut}))
      end) end
      return net
    end
    for _, mode in ipairs {"sum", "mean", "max"} do
      compare("Bag" .. mode:sub(1, 1):upper() .. mode:sub(2), {made(mode, 0)(bags)})
    end
    compare("BagOffsets", {made("sum")(mh.tensor{1, 2, 4, 0}, offsets, wave({4}, 0.2))})
  end
end

--- The layer with the originals of its weight "plain", "cut" in blocks {1, 0, rest}, or "whole" on every rank.
local function placed(net, how)
  local list = net.parametrizations.weight
  for name, tensor in list._parameters do
    local rows = tensor:size(0)
    local placement = how == "cut" and rows > 1 and mh.Shard(0, {1, 0, rows - 1}) or mh.Replicate()
    if how ~= "plain" then
      list:register_parameter(name, nn.Parameter(mh.distribute_tensor(tensor:detach(), mesh, {placement})))
    end
  end
  return net
end

local kLayers = {
  {"linear", function() return nn.Linear(5, 4) end, 0, {7, 5}},
  {"conv", function() return nn.Conv2d(2, 3, 3, {padding = 1}) end, 1, {2, 2, 7, 4}},
  {"transposed", function() return nn.ConvTranspose2d(2, 3, 3) end, 0, {2, 2, 7, 4}},
}

local function names_of(net)
  local names = {}
  for name in net:state_dict() do names[#names + 1] = name end
  return table.concat(names, " ")
end

function tests.test_Y16_weight_norm_and_spectral_norm()
  local parametrizations = nn.utils.parametrizations
  for _, case in ipairs(kLayers) do
    local name, layer, dim, shape = table.unpack(case)
    for _, how in ipairs {"plain", "cut", "whole"} do
      each_cut(function(cut)
        local x = cut(wave(shape, 0.2))
        local normed = parametrizations.weight_norm(fill(layer()), {dim = dim})
        mh.no_grad(function() normed.parametrizations.weight.original0:mul_(1.5) end)
        compare("weight_norm_" .. name, with_gradient(placed(normed, how), x))
        local net = parametrizations.spectral_norm(fill(layer()), {n_power_iterations = 2})
        local part = net.parametrizations.weight[0]
        mh.no_grad(function()
          part._u:copy_(F.normalize(wave(part._u.shape, 0.6), {dim = 0}))
          part._v:copy_(F.normalize(wave(part._v.shape, 0.7), {dim = 0}))
        end)
        placed(net, how)
        net(x)
        local results = with_gradient(net, x)
        results[3], results[4], results[5] = net.parametrizations.weight.original.grad, part._u, part._v
        compare("spectral_norm_" .. name, results)
      end)
    end
  end
end

function tests.test_Y16_names_and_states_of_parametrizations()
  local utils = nn.utils
  local net = utils.parametrizations.weight_norm(nn.Linear(3, 2))
  testing.assert_equal(names_of(net), "bias parametrizations.weight.original0 parametrizations.weight.original1")
  local other = utils.weight_norm(nn.Linear(3, 2))
  other:load_state_dict(net:state_dict())
  testing.assert_close(other.weight, net.weight)
  -- A state of the older function.
  local old = {bias = net.bias, weight_g = net.parametrizations.weight.original0 * 2,
    weight_v = net.parametrizations.weight.original1}
  other:load_state_dict(old, {rename = {{"weight_g$", "parametrizations.weight.original0"},
    {"weight_v$", "parametrizations.weight.original1"}}})
  testing.assert_close(other.weight, net.weight * 2)
  other.weight = mh.ones{2, 3}
  testing.assert_close(other.weight, mh.ones{2, 3})
  utils.remove_weight_norm(other)
  testing.assert_equal(names_of(other), "weight bias")
  assert(not utils.parametrize.is_parametrized(other) and other.weight.is_leaf and other.weight.requires_grad)
  local spectral = utils.spectral_norm(nn.Conv1d(2, 2, 3))
  testing.assert_equal(names_of(spectral), "bias parametrizations.weight.original parametrizations.weight.0._u "
    .. "parametrizations.weight.0._v")
  spectral:eval()
  local before = spectral.parametrizations.weight[0]._u:clone()
  spectral(mh.ones{1, 2, 5})
  testing.assert_equal(spectral.parametrizations.weight[0]._u, before)
  utils.parametrize.remove_parametrizations(spectral, "weight", false)
  testing.assert_equal(names_of(spectral), "weight bias")
  testing.assert_error(function() utils.weight_norm(nn.Linear(2, 2), "wieght") end,
      "weight_norm: Linear has no parameter or buffer 'wieght'; did you mean 'weight'?")
  testing.assert_error(function() utils.weight_norm(utils.spectral_norm(nn.Linear(2, 2))) end,
      "weight_norm: 'weight' of Linear is parametrized already")
  testing.assert_error(function() utils.remove_weight_norm(nn.Linear(2, 2)) end,
      "remove_weight_norm: 'weight' of Linear is not parametrized")
  local Half = nn.Module:extend("Half")
  function Half:forward(x) return x:narrow(0, 0, 1) end
  testing.assert_error(function() utils.parametrize.register_parametrization(nn.Linear(2, 2), "weight", Half()) end,
      "register_parametrization: the parametrization gives float32 [1, 2], expected float32 [2, 2]")
end

function tests.test_Y16_distributions()
  local p, q = wave({7}, 0.2):square(), wave({7}, 1.2):square()
  local root = wave({3, 3}, 0.4):tril() + mh.eye(3, kF64) * 2
  local picks = mh.tensor{0, 3, 1, 2, 2, 0, 1}
  each_cut(function(cut)
    local loc, scale, x = cut(wave({7}, 0.1)), cut(wave({7}, 0.5):abs() + 0.2), cut(wave({7}, 0.9))
    local normal, bernoulli = D.Normal(loc, scale), D.Bernoulli{probs = cut(p)}
    compare("Normal", {normal:log_prob(x), normal:cdf(x), normal:icdf(cut(p)), normal:entropy()})
    local uniform = D.Uniform(loc - 1, loc + scale)
    compare("Uniform", {uniform:log_prob(x), uniform:cdf(x), uniform:entropy(), uniform:variance()})
    compare("Bernoulli", {bernoulli:log_prob(x:gt(0):double()), bernoulli:entropy(), bernoulli:variance()})
    local rows = cut(wave({7, 4}, 0.3))
    local categorical = D.Categorical{logits = rows}
    compare("Categorical", {categorical:log_prob(picks), categorical:entropy(), categorical.probs})
    compare("CategoricalOfProbs", {D.Categorical{probs = rows:abs()}:log_prob(picks)})
    local multi = D.MultivariateNormal(cut(wave({7, 3}, 0.8)), {covariance_matrix = root:matmul(root.T)})
    local second = D.MultivariateNormal(wave({3}, 1.0), {scale_tril = root:abs() + mh.eye(3, kF64)})
    compare("MultivariateNormal", {multi:log_prob(cut(wave({7, 3}, 2.2))), multi:entropy(), multi:variance()})
    compare("kl_normal", {D.kl_divergence(normal, D.Normal(x, scale * 2))})
    compare("kl_uniform", {D.kl_divergence(uniform, D.Uniform(loc - 2, loc + 1.3))})
    compare("kl_bernoulli", {D.kl_divergence(bernoulli, D.Bernoulli{probs = cut(q)})})
    compare("kl_categorical", {D.kl_divergence(categorical, D.Categorical{logits = cut(wave({7, 4}, 1.3))})})
    compare("kl_multi", {D.kl_divergence(multi, second)})
  end)
end

--- Probabilities 0 and 1, whose logits would be infinite, and their log probabilities nan.
function tests.test_Y16_logits_of_certain_events_are_finite()
  for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
    each_cut(function(cut)
      local certain = cut(mh.tensor({0.0, 1.0, 0.5, 1.0, 0.0, 0.25, 1.0}, {dtype = dtype}))
      local rows = mh.stack({certain, 1 - certain}, 1)
      local bernoulli, categorical = D.Bernoulli{probs = certain}, D.Categorical{probs = rows}
      for _, one in ipairs {bernoulli.logits, bernoulli:log_prob(certain:ge(0.5):to(dtype)), bernoulli:entropy(),
        categorical.logits, categorical:log_prob(certain:lt(0.5):long()), categorical:entropy()} do
        assert(one:isfinite():all():item(), dtype)
        assert(one.dtype == dtype)
      end
      assert(bernoulli.logits[0]:item() < -4 and bernoulli.logits[1]:item() > 4, dtype)
      assert(categorical.logits[0][0]:item() < -4 and categorical.logits[0][1]:item() > -0.01, dtype)
    end)
  end
end

function tests.test_Y16_draws_are_the_same_on_blocks()
  local loc, scale, rows = wave({7}, 0.1), wave({7}, 0.5):abs() + 0.2, wave({7, 4}, 0.3)
  local expected
  each_cut(function(cut)
    mh.manual_seed(3)
    local l, s = cut(loc):detach():requires_grad_(true), cut(scale)
    local draws = {D.Normal(l, s):sample{2000}, D.Uniform(cut(loc), cut(loc + 1)):sample{2000},
      D.Bernoulli{logits = cut(loc)}:sample{2000}, D.Categorical{logits = cut(rows)}:sample{2000},
      D.MultivariateNormal(cut(wave({7, 3}, 0.8)), {scale_tril = mh.eye(3, kF64) * 2}):sample{500}}
    for i, one in ipairs(draws) do draws[i] = one:full_tensor() end
    expected = expected or draws
    for i, one in ipairs(draws) do testing.assert_close(one:double(), expected[i]:double()) end
    D.Normal(l, s):rsample{3}:sum():backward()
    testing.assert_close(l.grad:full_tensor(), mh.full({7}, 3.0, kF64))
  end)
  local function near(draws, mean, spread) testing.assert_close(draws:double():mean(0), mean, {atol = spread * 0.1}) end
  near(expected[1], loc, 1.2)
  near(expected[2], loc + 0.5, 0.5)
  near(expected[3], loc:sigmoid(), 0.5)
  for class = 0, 3 do near(expected[4]:eq(class), rows:softmax(-1):select(1, class), 0.5) end
  near(expected[5], wave({7, 3}, 0.8), 4.0)
end

function tests.test_Y16_mistakes()
  local cases = {
    {function() D.Normal(0.0, -1.0) end, "Normal: scale has elements that are not above 0"},
    {function() D.Normal("a", 1.0) end, "Normal: loc is 'a', expected a tensor or a number"},
    {function() D.Bernoulli{} end, "Bernoulli: give either probs or logits"},
    {function() D.Bernoulli{probs = 2.0} end, "Bernoulli: a probability is not within 0 and 1"},
    {function() D.Bernoulli{probs = 0.5}:rsample() end, "draws have no derivative"},
    {function() D.Categorical{probs = -mh.ones{3}} end, "Categorical: a probability is below 0"},
    {function() D.MultivariateNormal(mh.zeros{2}, {scale_tril = mh.eye(3)}) end, "do not fit"},
    {function() D.kl_divergence(D.Normal(0.0, 1.0), D.Uniform(0.0, 1.0)) end, "no formula for Normal and Uniform"},
    {function() D.kl_divergence(nil, D.Normal(0.0, 1.0)) end, "kl_divergence: p is nil, expected a distribution"},
    {function() D.kl_divergence(D.Normal(0.0, 1.0)) end, "kl_divergence: q is nil, expected a distribution"},
    {function() return D.Normal(0.0, 1.0).lok end, "Normal: no field or method 'lok'; did you mean 'loc'?"},
    {function() return D.Norml end, "distributions: no 'Norml'; did you mean 'Normal'?"},
    {function() nn.CTCLoss()(mh.zeros{3, 1, 2}, mh.tensor{{1}}, 3, {1}) end, "input_lengths is 3"},
    {function() nn.EmbeddingBag(5, 3)(mh.tensor{1, 2}) end, "EmbeddingBag: integers of 1 dims without offsets"},
    {function() nn.AdaptiveLogSoftmaxWithLoss(4, 10, {5, 2}) end, "cutoffs are"},
    {function() nn.ParameterList{3} end, "ParameterList: '0' is not a tensor but 3"},
    {function() return nn.ParameterList{mh.ones{2}}[1] end, "ParameterList: no parameter 1 in a list of 1\n  fix   "},
    {function() nn.ParameterList{mh.ones{2}}:at_position(0.5) end, "ParameterList: no parameter 0.5 in a list of 1"},
    {function() nn.ParameterList{mh.ones{2}}:at_position "a" end,
      "ParameterList: the position is 'a', expected an integer"},
    {function() nn.Softmax2d()(mh.ones{2}) end, "Softmax2d: the input has 1 dimensions, expected 3 or 4"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
