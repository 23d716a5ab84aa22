-- SPDX-License-Identifier: Apache-2.0
-- Layers, losses, optimizers and checkpoints on ShardTensors equal the same on one plain tensor (float64, 1e-10).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local nn, optim, F = mh.nn, mh.optim, mh.functional

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local kRows = mh.world_size() == 3 and {1, 5, 3} or nil  -- of 9

local function plain(tensor) return tensor and (tensor:is_shard_tensor() and tensor:full_tensor() or tensor) end

--- Result, gradient of the input, gradients and buffers of `net` for the cotangent cos(0.7 k).
local function outcome(net, fn, x)
  local y = fn(x, net)
  local weights = (mh.arange(y:numel(), kF64):reshape(y.shape) * 0.7):cos()
  if y.requires_grad then (y * weights):sum():backward() end
  local values = {result = plain(y:detach()), input = plain(x.grad)}
  if net then
    for name, p in net:named_parameters() do values["gradient of " .. name] = plain(p.grad) end
    for name, b in net:named_buffers() do values["buffer " .. name] = plain(b):clone() end
  end
  return values
end

local function same_as_plain(build, fn, shape, dim)
  local function network()
    mh.manual_seed(3)
    return build and build():double()
  end
  mh.manual_seed(1)
  local x = mh.randn(shape, kF64)
  local expected = outcome(network(), fn, x:clone():requires_grad_())

  local cut = mh.distribute_tensor(x, mesh, {mh.Shard(dim, shape[dim + 1] == 9 and kRows or nil)}):requires_grad_()
  local actual = outcome(network(), fn, cut)

  for name, value in pairs(expected) do
    testing.assert_equal(actual[name] ~= nil and name or "missing " .. name, name)
    testing.assert_close(actual[name], value)
  end
end

local function forward(x, net) return net(x) end
local function with(fn) return function(x) return fn(x, mh.ones_like(x):detach() * 0.3) end end

-- name, network, function of (input, network), shape, cut dimension
local kField = {2, 4, 9, 6}
local cases = {
  {"conv_padded", function() return nn.Conv2d(4, 3, 3, {padding = 1}) end, forward},
  {"conv_strided", function() return nn.Conv2d(4, 4, 3, {padding = 1, stride = 2, groups = 2}) end, forward},
  {"conv_circular", function() return nn.Conv2d(4, 4, 3, {padding = 1, padding_mode = "circular"}) end, forward},
  {"conv_same_even", function() return nn.Conv2d(4, 4, {4, 3}, {padding = "same"}) end, forward},
  {"conv_transposed", function() return nn.ConvTranspose2d(4, 2, 2, {stride = 2}) end, forward},
  {"batch_norm", function() return nn.BatchNorm2d(4) end, forward},
  {"group_norm", function() return nn.GroupNorm(2, 4) end, forward},
  {"instance_norm", function() return nn.InstanceNorm2d(4, {affine = true}) end, forward},
  {"layer_norm_over_the_cut", function() return nn.LayerNorm{4, 9, 6} end, forward},
  {"layer_norm_beside_the_cut", function() return nn.LayerNorm(6) end, forward},
  {"rms_norm", function() return nn.RMSNorm(6) end, forward},
  {"linear", function() return nn.Linear(6, 5) end, forward},
  {"flatten_linear", function() return nn.Sequential(nn.Flatten(), nn.Linear(216, 3)) end, forward},
  {"max_pool", nil, function(x) return nn.MaxPool2d(2)(x) end},
  {"avg_pool", nil, function(x) return nn.AvgPool2d(3, {stride = 2, padding = 1})(x) end},
  {"lp_pool", nil, function(x) return nn.LPPool2d(2, 3, {stride = 2, ceil_mode = true})(x * x + 1) end},
  {"response_norm", nil, function(x) return nn.LocalResponseNorm(3, {alpha = 0.4})(x) end},
  {"response_norm_along_the_cut", nil, function(x) return nn.LocalResponseNorm(4,
  {alpha = 0.4})(x:transpose(1, 2)) end}, {"unfold_and_fold", nil, function(x)
    return nn.Fold({9, 6}, {3, 2}, {padding = 1})(nn.Unfold({3, 2}, {padding = 1})(x) * 2)
  end},
  {"max_unpool_beside_the_cut", nil, function(x)
    local values, indices = nn.MaxPool2d(2, {return_indices = true})(x)
    return nn.MaxUnpool2d(2)(values, indices)
  end, {9, 2, 4, 6}, 0},
  {"fractional_max_pool_beside_the_cut", nil, function(x)
    mh.manual_seed(8)
    return nn.FractionalMaxPool2d(2, {output_ratio = 0.7})(x)
  end, {9, 2, 6, 5}, 0},
  {"pixel_unshuffle_shuffle", nil, function(x)
    return nn.PixelShuffle(3)(nn.PixelUnshuffle(3)(x):tanh())
  end},
  {"channel_shuffle", nil, function(x) return nn.ChannelShuffle(2)(x) end},
  {"pool_to_one", nil, function(x) return nn.AdaptiveAvgPool2d(1)(x) end},
  {"softmax_over_the_cut", nil, function(x) return nn.Softmax(2)(x) end},
  {"prelu", function() return nn.PReLU() end, forward},
  {"normalize", nil, function(x) return mh.normalize(x, {dim = 2}) end},
  {"cross_entropy", nil, function(x) return mh.cross_entropy(x, mh.zeros({2, 9, 6}, {dtype = "int64"})) end},
  {"gaussian_nll", nil, function(x) return mh.gaussian_nll_loss(x, x * 0.5, x * x + 1) end},
  {"attention", function() return nn.MultiheadAttention(12, 3, {batch_first = true}) end,
    function(x, net) return (net(x, x, x)) end, {2, 9, 12}, 1},
  {"attention_without_weights", function() return nn.MultiheadAttention(12, 3, {batch_first = true}) end,
    function(x, net) return net(x, x, x, {need_weights = false}) end, {2, 9, 12}, 1},
  {"X07_causal_attention", function() return nn.MultiheadAttention(12, 3, {batch_first = true}) end,
    function(x, net) return net(x, x:tanh(), x, {need_weights = false, is_causal = true}) end, {2, 9, 12}, 1},
  {"X07_attention_with_padding", function() return nn.MultiheadAttention(12, 3, {batch_first = true}) end,
    function(x, net)
    local padding = mh.arange(9):unsqueeze(0):ge(mh.tensor{{9}, {5}})
    return net(x, x, x, {need_weights = false, is_causal = true, key_padding_mask = padding})
  end, {2, 9, 12}, 1},
  {"X07_attention_with_dropout", function() return nn.MultiheadAttention(12, 3,
    {batch_first = true, dropout = 0.3}) end, function(x, net)
      mh.manual_seed(8)
      return net(x, x, x, {need_weights = false})
    end, {2, 9, 12}, 1},
  {"X04_neighborhood_1d", function() return nn.NeighborhoodAttention1d(12, 3, 4, {dilation = 2}) end, forward,
  {2, 9, 12}, 1},
  {"X04_neighborhood_2d", function() return nn.NeighborhoodAttention2d(12, 3, {5, 4},
    {stride = {2, 1}, scale = 0.4}) end, forward, {2, 9, 6, 12}, 1},
  {"X04_neighborhood_2d_columns", function() return nn.NeighborhoodAttention2d(8, 2, 7, {bias = false}) end,
    forward, {1, 7, 9, 8}, 2},
  {"X04_neighborhood_3d", function() return nn.NeighborhoodAttention3d(8, 2, {2, 3, 3},
    {is_causal = {true, false, true}}) end, forward, {1, 4, 9, 3, 8}, 2},
}
for _, reduction in ipairs{"mean", "sum", "none"} do
  for _, loss in ipairs{"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
      "kl_div"} do
    cases[#cases + 1] = {loss .. "_" .. reduction, nil, with(function(x, y) return F[loss](x, y,
        {reduction = reduction}) end)}
  end
end

local tests = {}

for _, case in ipairs(cases) do
  tests["test_" .. case[1]] = function()
    local before = mh.set_fallback("error")
    local done, problem = pcall(same_as_plain, case[2], case[3], case[4] or kField, case[5] or 2)
    mh.set_fallback(before or "replicate")
    if not done then error(problem, 0) end
  end
end

-- The whole counts: one row on each rank is a batch of three, one row of all is refused by all.
function tests.test_batch_norm_counts_the_values_of_all_ranks()
  local norm = nn.BatchNorm1d(2):double()
  local full = mh.tensor({{1, 2}, {3, 5}, {8, 1}}, {dtype = "float64"})
  local found = norm(mh.distribute_tensor(full, mesh, {mh.Shard(0)}))
  testing.assert_close(found:full_tensor(), nn.BatchNorm1d(2):double()(full))
  local one = mh.distribute_tensor(full["0:1"], mesh, {mh.Shard(1)})
  testing.assert_error(function() norm(one) end, "BatchNorm1d: expected more than 1 value per channel when training")
end

-- ---- Optimizers on ShardTensor parameters ---------------------------------------------------------------------------

local optimizers = {
  SGD = function(p) return optim.SGD(p, {lr = 0.05, momentum = 0.9, nesterov = true}) end,
  Adam = function(p) return optim.Adam(p, {lr = 0.05, amsgrad = true}) end,
  AdamW = function(p) return optim.AdamW(p, {lr = 0.05}) end,
  RMSprop = function(p) return optim.RMSprop(p, {lr = 0.01, momentum = 0.5, centered = true}) end,
  Adagrad = function(p) return optim.Adagrad(p, {lr = 0.1}) end,
  LBFGS = function(p) return optim.LBFGS(p, {lr = 0.5, max_iter = 4}) end,
}

--- Losses of some steps of a two-layer network, and its weights after them. `place` distributes the weights.
local function train(make, place, x, y, state)
  mh.manual_seed(4)
  local net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)):double()
  if place then
    for name, p in net:named_parameters() do
      net:get_submodule(name:match("^(.-)%.[^.]+$"))[name:match("[^.]+$")] =
        nn.Parameter(mh.distribute_tensor(p:detach(), mesh, {place(name)}))
    end
  end
  local opt = make(net:parameters())
  local losses = {}
  local function closure()
    opt:zero_grad()
    local loss = mh.mse_loss(net(x), y)
    loss:backward()
    losses[#losses + 1] = plain(loss:detach()):item()
    return loss
  end
  if state then
    net:load_state_dict(state.net)
    opt:load_state_dict(state.opt)
  end
  for _ = 1, 4 do
    if opt.name == "LBFGS" then
      opt:step(closure)
    else
      closure()
      mh.clip_grad_norm(net:parameters(), 0.3)
      opt:step()
    end
  end
  return losses, net, opt
end

local placements = {
  Replicate = function() return mh.Replicate() end,
  Shard = function(name) return name:find("weight") and mh.Shard(0) or mh.Replicate() end,
}

for name, make in pairs(optimizers) do
  for placed, place in pairs(placements) do
    tests["test_" .. name .. "_on_" .. placed] = function()
      mh.manual_seed(2)
      local x, y = mh.randn({9, 5}, kF64), mh.randn({9, 3}, kF64)
      local expected, net = train(make, nil, x, y)

      local cut = {mh.Shard(0, kRows)}
      local actual, sharded = train(make, place, mh.distribute_tensor(x, mesh, cut), mh.distribute_tensor(y, mesh, cut))

      testing.assert_close(mh.tensor(actual, kF64), expected)
      for key, value in net:state_dict() do testing.assert_close(plain(sharded:state_dict()[key]), value) end
    end
  end
end

--- Saved from one placement, loaded into another: the run goes on as if nothing had happened.
function tests.test_a_checkpoint_moves_between_placements()
  local path = own_path("checkpoint")
  mh.manual_seed(2)
  local x, y = mh.randn({9, 5}, kF64), mh.randn({9, 3}, kF64)
  local _, net, opt = train(optimizers.AdamW, placements.Shard, x, y)
  mh.checkpoint.save(path, {model = net, optimizer = opt})
  local saved = mh.checkpoint.load(path)
  local expected = train(optimizers.AdamW, nil, x, y, {net = saved.model, opt = saved.optimizer})

  local actual = train(optimizers.AdamW, placements.Shard, x, y, {net = saved.model, opt = saved.optimizer})

  testing.assert_close(mh.tensor(actual, kF64), expected)
end

-- X02: masks and weights do not depend on the rank.
function tests.test_X02_weights_and_masks_are_the_same_on_all_ranks()
  mh.manual_seed(9)
  local weight, mask = nn.Linear(6, 4).weight:detach(), nn.Dropout(0.5)(mh.ones{50})

  for _, one in ipairs{weight, mask} do
    local all = mh.from_local(one:reshape{1, -1}, mesh, {mh.Shard(0)}):full_tensor()
    testing.assert_equal(mh.equal(all:amax(0), all:amin(0)), true)
  end
end

-- X02: initial values that are placed, not drawn, on cut dims.
function tests.test_X02_dirac_and_eye_on_any_cut()
  for _, case in ipairs{{nn.init.dirac_, {9, 4, 3, 3}, 3}, {nn.init.dirac_, {9, 4, 5}}, {nn.init.eye_, {9, 4}}} do
    local fill, shape, groups = table.unpack(case)
    local expected = fill(mh.ones(shape, kF64), groups)
    for _, placement in ipairs{mh.Replicate(), mh.Shard(0, kRows), mh.Shard(1), mh.Shard(-1)} do
      local cut = mh.distribute_tensor(mh.ones(shape, kF64), mesh, {placement})
      testing.assert_close(fill(cut, groups):full_tensor(), expected)
    end
  end
end

-- X02, P12: one seed gives one mask, however the input is cut.
function tests.test_X02_dropout_of_a_shard_tensor_is_the_same_for_any_cut()
  for _, layer in ipairs{nn.Dropout(0.4), nn.Dropout2d(0.5), nn.AlphaDropout(0.3)} do
    local masks = {}
    for i, placement in ipairs{mh.Replicate(), mh.Shard(2, kRows), mh.Shard(0), mh.Shard(3)} do
      mh.manual_seed(21)
      local x = mh.distribute_tensor(mh.ones(kField, kF64), mesh, {placement})
      masks[i] = layer(x):full_tensor()
      testing.assert_equal(mh.equal(masks[i], masks[1]), true)
    end
    testing.assert_equal(masks[1]:min():item() < masks[1]:max():item(), true)
  end
end

return tests
