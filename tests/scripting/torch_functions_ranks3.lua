-- SPDX-License-Identifier: Apache-2.0
-- Y16: functions of torch, methods of its tensors and functions of torch.nn.utils that are not operators, on plain
-- tensors and on blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local nn = mh.nn
local utils = nn.utils
local tests = {}

local function cut(x, ...) return mh.distribute_tensor(x, mesh, {mh.Shard(...)}) end

function tests.test_Y16_tensors_of_values()
  local x = cut(mh.arange(7), 0, {4, 0, 3})
  assert(mh.as_tensor(x):is_same(x) and mh.as_tensor(x, {dtype = "float64"}).dtype == "float64")
  testing.assert_equal(mh.as_tensor({{1, 2}, {3, 4}}, {dtype = "int16"}).dtype, "int16")
  local leaf = mh.asarray(mh.ones({2}, {requires_grad = true}) * 2, {copy = true, requires_grad = true})
  assert(leaf.is_leaf and leaf.requires_grad)
  testing.assert_equal(x:new_tensor{1, 2}.dtype, "int64")
  assert(not x:double():new_tensor({1}, {requires_grad = true}):is_shard_tensor())
  testing.assert_equal({x:type(), x:type("int8").dtype, x:short().dtype, x:byte().dtype, x:char().dtype,
    x:cdouble().dtype, x:cfloat().dtype}, {"int64", "int8", "int16", "uint8", "int8", "complex128", "complex64"})
  testing.assert_equal({x:ndimension(), x:nelement(), mh.numel(x), x.is_cpu, x.is_cuda, x.is_meta, x.is_sparse},
    {1, 7, 7, mh.device() == "cpu", mh.device() ~= "cpu", false, false})
  local z = cut(mh.complex(mh.randn({4, 3}, kF64), mh.randn({4, 3}, kF64)), 0)
  testing.assert_close(z.H:full_tensor(), z:full_tensor():conj():transpose(0, 1))
  testing.assert_error(function() return mh.ones{2, 2, 2}.H end, "H: a matrix is required")
  testing.assert_error(function() mh.as_tensor("a") end, "as_tensor: expected numbers or a tensor, got 'a'")
  testing.assert_equal(mh.get_default_device(), mh.device())
end

function tests.test_Y16_shapes_and_places()
  testing.assert_equal(mh.broadcast_shapes({2, 1}, {3}, {1, 1, 1}), {1, 2, 3})
  testing.assert_equal(mh.broadcast_shapes(), {})
  testing.assert_equal(mh.broadcast_shapes({0}, {1}), {0})
  testing.assert_error(function() mh.broadcast_shapes({2}, {3}) end, "broadcast_shapes: sizes 2 and 3 of dim -1 differ")
  local flat = mh.tensor{0, 59, 23, -1, 17, 34, 8}
  for _, indices in ipairs {flat, cut(flat, 0, {4, 0, 3})} do
    local a, b, c = mh.unravel_index(indices, {3, 4, 5})
    testing.assert_equal((a * 20 + b * 5 + c):full_tensor(), flat:remainder(60))
    assert(c:full_tensor():lt(5):all():item() and b:full_tensor():lt(4):all():item())
  end
  testing.assert_error(function() mh.unravel_index(cut(flat, 0), {3, 4}) end, "an index is beyond the 12 elements")
end

function tests.test_Y16_unique()
  local x = mh.tensor{{3, 1, 3}, {2, 2, 3}, {3, 1, 3}}
  for _, one in ipairs {x, cut(x, 0, {1, 0, 2}), cut(x, 1)} do
    local values, inverse, counts = one:unique{return_inverse = true, return_counts = true}
    testing.assert_equal({values:tolist(), counts:tolist()}, {{1, 2, 3}, {2, 2, 5}})
    testing.assert_equal(values[inverse], x)
    local rows, times = mh.unique(one, {dim = 0, return_counts = true})
    testing.assert_equal({rows:tolist(), times:tolist()}, {{{2, 2, 3}, {3, 1, 3}}, {1, 2}})
  end
end

-- x.sum(dim=None, keepdim=True) of PyTorch.
function tests.test_Y16_reductions_over_all_dims_keep_them()
  local values = mh.randn({4, 3, 5}, kF64)
  for _, place in ipairs {function(x) return x end, function(x) return cut(x, 0, {1, 0, 3}) end,
                          function(x) return cut(x, 2) end} do
    for _, name in ipairs {"sum", "mean", "nansum", "amax", "std", "var", "norm", "logsumexp"} do
      local plain, x = values:clone():requires_grad_(true), place(values:clone()):requires_grad_(true)
      local expected = name == "logsumexp" and plain:logsumexp{dim = {0, 1, 2}} or plain[name](plain)
      local dims = name == "logsumexp" and {0, 1, 2} or nil
      local found = x[name](x, {dim = dims, keepdim = true})
      testing.assert_equal(found.shape, {1, 1, 1})
      testing.assert_close(found:full_tensor():reshape{}, expected)
      expected:square():backward()
      found:square():sum():backward()
      testing.assert_close(x.grad:full_tensor(), plain.grad)
    end
    local x = place(values:clone())
    testing.assert_equal({x:any{keepdim = true}.shape, x:argmax{keepdim = true}.shape}, {{1, 1, 1}, {1, 1, 1}})
    testing.assert_equal(x:mean{keepdim = true, dtype = "float32"}.dtype, "float32")
    testing.assert_error(function() x:prod{keepdim = true} end, "prod: no overload fits the arguments")
    testing.assert_error(function() x:max{keepdim = true} end, "argument 'dim' is missing")
    testing.assert_error(function() x:sum{dtype = "int64", dims = 1} end, "has no argument 'dims'; did you mean 'dim'?")
  end
end

function tests.test_Y16_printing()
  local x = mh.tensor{1.23456, 1000.5}
  mh.set_printoptions{precision = 2}
  testing.assert_equal(tostring(x), "tensor([   1.23, 1000.50])")
  mh.set_printoptions{sci_mode = true}
  testing.assert_equal(tostring(x), "tensor([1.23e+00, 1.00e+03])")
  mh.set_printoptions{profile = "default", threshold = 5, edgeitems = 1}
  testing.assert_equal(tostring(mh.arange(6)), "tensor([0,  ..., 5])")
  mh.set_printoptions{profile = "default"}
  testing.assert_equal(tostring(mh.arange(6)), "tensor([0, 1, 2, 3, 4, 5])")
  testing.assert_error(function() mh.set_printoptions{profile = "long"} end, "unknown profile 'long'")
  testing.assert_error(function() mh.set_printoptions{edgeitems = 0} end, "edgeitems is 0, expected 1 or more")
end

function tests.test_Y16_hooks_after_accumulation()
  for _, place in ipairs {false, mh.Shard(0, {4, 0, 3})} do
    local x = mh.ones({7}, kF64)
    if place then x = mh.distribute_tensor(x, mesh, {place}) end
    x = x:detach():requires_grad_(true)
    local seen = {}
    local first = x:register_post_accumulate_grad_hook(function(leaf)
      seen[#seen + 1] = leaf.grad:sum():item()
    end)
    x:register_post_accumulate_grad_hook(function(leaf)
      seen[#seen + 1] = "second"
      if #seen > 3 then leaf.grad = nil end
    end)
    ;(x * 3):sum():backward()
    ;(x * 3):sum():backward()
    testing.assert_equal(seen, {21.0, "second", 42.0, "second"})
    assert(x.grad == nil, "the hook has freed the gradient")
    first.remove()
    ;(x * 3):sum():backward()
    testing.assert_equal(#seen, 5)
    x:register_post_accumulate_grad_hook(function() error("of the hook", 0) end)
    testing.assert_error(function() x:sum():backward() end, "of the hook")
  end
  testing.assert_error(function() mh.ones{2}:register_post_accumulate_grad_hook(print) end,
      "register_post_accumulate_grad_hook: the tensor is not a leaf that requires a gradient")
end

--- Hooks of a unit's parameters see gradients that are reduced and complete, those of earlier passes among them.
function tests.test_Y16_hooks_after_accumulation_in_units()
  local x = mh.arange(0, 54, kF64):reshape{9, 6}:sin()
  local function trained(make, input)
    local net = nn.Linear(6, 6):double()
    net:load_state_dict{weight = mh.arange(0, 36, kF64):reshape{6, 6}:cos(), bias = mh.ones({6}, kF64)}
    net = make(net)
    local seen, handles = {}, {}
    for i, parameter in ipairs(net:parameters()) do
      local step, mine = mh.optim.SGD({parameter}, {lr = 0.1, momentum = 0.9}), {}
      seen[i] = mine
      handles[i] = parameter:register_post_accumulate_grad_hook(function(leaf)
        mine[#mine + 1] = leaf.grad:is_shard_tensor() and leaf.grad:full_tensor() or leaf.grad:clone()
      end)
      parameter:register_post_accumulate_grad_hook(function(leaf)
        step:step()
        if #mine == 2 then leaf.grad = nil end
      end)
    end
    for _ = 1, 3 do net(input):square():mean():backward() end
    for _, handle in ipairs(handles) do handle.remove() end
    net(input):square():mean():backward()
    for i, parameter in ipairs(net:parameters()) do
      local whole = parameter:detach()
      table.insert(seen[i], whole:is_shard_tensor() and whole:full_tensor() or whole)
    end
    return seen
  end
  local expected = trained(function(net) return net end, x)
  local ways = {
    {"fully_shard", {min_numel = 1}}, {"fully_shard", {min_numel = 10}},
    {"fully_shard", {min_numel = 1, reshard_after_backward = false}}, {"replicate", {}},
  }
  for _, way in ipairs(ways) do
    way[2].mesh = mesh
    local seen = trained(function(net) return mh[way[1]](net, way[2]) end, cut(x, 0, {2, 0, 7}))
    for i, list in ipairs(expected) do
      testing.assert_equal({#seen[i], #list}, {4, 4})
      for k, one in ipairs(list) do testing.assert_close(seen[i][k], one) end
    end
  end
end

--- Hooks stay with the parameter that another tensor replaces.
function tests.test_Y16_hooks_of_replaced_parameters_are_refused()
  local plan = {parameter = {weight = {mh.Shard(0)}}}
  local calls = {
    fully_shard = function(net) mh.fully_shard(net, {mesh = mesh}) end,
    replicate = function(net) mh.replicate(net, {mesh = mesh}) end,
    parallelize_module = function(net) mh.parallelize_module(net, mesh, plan) end,
  }
  for name, call in pairs(calls) do
    for _, register in ipairs {"register_hook", "register_post_accumulate_grad_hook"} do
      local net = nn.Linear(6, 6)
      local hook = net.bias[register](net.bias, function() end)
      testing.assert_error(function() call(net) end, name .. ": the parameter 'bias' has gradient hooks")
      assert(not net.weight:is_shard_tensor(), "nothing has changed")
      hook.remove()
      call(net)
      net.weight:register_hook(function() end)
    end
  end
  local net = nn.Linear(6, 6)
  net.bias:register_hook(function() end)
  testing.assert_error(function() mh.distribute_module(net, mesh) end,
      "distribute_module: the parameter 'bias' has gradient hooks")
  assert(not net.weight:is_shard_tensor())
end

--- Hooks of the engine's own are none that the program would miss.
function tests.test_Y16_parameters_of_units_are_replaced()
  local x = mh.arange(0, 54, kF64):reshape{9, 6} / 10
  local weight = mh.arange(0, 36, kF64):reshape{6, 6}:sin()
  local function linear()
    local net = nn.Linear(6, 6):double()
    net:load_state_dict{weight = weight, bias = weight[0]}
    return net
  end
  local plain = linear()
  plain(x):square():sum():backward()
  for _, op in ipairs {"fully_shard", "replicate"} do
    local options = {mesh = mesh, min_numel = op == "fully_shard" and 1 or nil}
    local function unit() return mh[op](linear(), options) end
    local net = unit()
    mh.parallelize_module(net, mesh, {parameter = {weight = {mh.Shard(1)}, bias = {mh.Replicate()}}})
    testing.assert_equal(net.weight.placements[1], mh.Shard(1, {2, 2, 2}))
    local cut = mh.distribute_tensor(x, mesh, {mh.Shard(0, {2, 0, 7})})
    net(cut):square():sum():backward()
    mh.finish_grad_sync(net:parameters())
    for _, name in ipairs {"weight", "bias"} do
      testing.assert_close(net[name].grad:full_tensor(), plain[name].grad)
    end
    net = unit()
    net.weight:register_hook(function() end)
    testing.assert_error(function()
      mh.parallelize_module(net, mesh, {parameter = {weight = {mh.Shard(1)}}})
    end, "parallelize_module: the parameter 'weight' has gradient hooks")
  end
end

--- Parameters of several shapes, plain and cut.
local function parameters(place)
  local list = {}
  for i, shape in ipairs {{4, 3}, {5}, {}, {2, 3, 2}} do
    local x = mh.arange(0, i == 3 and 1 or mh.zeros(shape):numel(), kF64):reshape(shape) * i + 1
    if place and #shape > 0 then x = mh.distribute_tensor(x, mesh, {place(x)}) end
    list[i] = nn.Parameter(x)
  end
  return list
end

local kPlaces = {
  function(x) return mh.Shard(0, {1, 0, x:size(0) - 1}) end, function(x) return mh.Shard(x.ndim - 1) end,
  function() return mh.Replicate() end,
}

function tests.test_Y16_one_vector_of_parameters()
  local expected = utils.parameters_to_vector(parameters()):detach()
  testing.assert_equal(expected:numel(), 30)
  for _, place in ipairs(kPlaces) do
    local list = parameters(place)
    testing.assert_equal(utils.parameters_to_vector(list):detach():full_tensor(), expected)
    for _, vector in ipairs {expected * 2, cut(expected * 2, 0, {20, 0, 10})} do
      local plain = parameters()
      utils.vector_to_parameters(vector, list)
      utils.vector_to_parameters(vector, plain)
      for i, one in ipairs(parameters()) do
        testing.assert_equal(list[i]:detach():full_tensor(), one:detach() * 2)
        testing.assert_equal(plain[i]:detach(), one:detach() * 2)
      end
    end
  end
  testing.assert_error(function() utils.vector_to_parameters(mh.ones{3}, parameters()) end, "expected [30]")
end

function tests.test_Y16_norms_of_gradients()
  local whole = utils.parameters_to_vector(parameters()):detach()
  for _, place in ipairs(kPlaces) do
    local list = parameters(place)
    for _, one in ipairs(list) do one.grad = one:detach() * 1 end
    local gradients = {}
    for i, one in ipairs(list) do gradients[i] = one.grad end
    for _, p in ipairs {1, 2, math.huge} do
      testing.assert_close(utils.get_total_norm(gradients, {norm_type = p}), mh.linalg_vector_norm(whole, p + 0.0),
          {rtol = 1e-12})
    end
    utils.clip_grads_with_norm_(list, 1.0, utils.get_total_norm(gradients))
    testing.assert_close(utils.get_total_norm(gradients), mh.tensor(1.0, kF64), {rtol = 1e-6})
    utils.clip_grad_norm_(list, 0.5)
    testing.assert_close(utils.get_total_norm(gradients), mh.tensor(0.5, kF64), {rtol = 1e-6})
    gradients[1]:fill_(0 / 0)
    testing.assert_error(function() utils.get_total_norm(gradients, {error_if_nonfinite = true}) end, "the norm is")
  end
end

function tests.test_Y16_layers_fused_with_their_norm()
  local x = mh.randn({2, 3, 6, 5}, kF64)
  for _, case in ipairs {{nn.Conv2d(3, 4, 3, {bias = false}), false}, {nn.Conv2d(3, 4, 3, {padding = "same"}), false},
      {nn.ConvTranspose2d(3, 4, 3), true}} do
    local conv, bn = case[1]:double(), nn.BatchNorm2d(4):double()
    for _ = 1, 3 do bn(conv(x)) end
    nn.init.uniform_(bn.weight, 0.5, 1)
    conv:eval()
    bn:eval()
    local fused = utils.fuse_conv_bn_eval(conv, bn, case[2])
    testing.assert_close(fused(x), bn(conv(x)))
    testing.assert_close(fused(cut(x, 2, {2, 0, 4})):full_tensor(), bn(conv(x)))
    assert(not rawequal(fused.weight, conv.weight) and fused:class_name() == conv:class_name())
  end
  local linear, bn = nn.Linear(5, 3):double(), nn.BatchNorm1d(3):double()
  testing.assert_error(function() utils.fuse_linear_bn_eval(linear, bn) end, "the modules are training")
  local rows = mh.randn({7, 5}, kF64)
  bn(linear(rows))
  linear:eval()
  bn:eval()
  testing.assert_close(utils.fuse_linear_bn_eval(linear, bn)(rows), bn(linear(rows)))
end

function tests.test_Y16_sparse_initial_values()
  local x = nn.init.sparse_(mh.empty({10, 6}, kF64), 0.25, 2.0)
  testing.assert_equal(x:eq(0):sum(0):tolist(), {3, 3, 3, 3, 3, 3})
  mh.manual_seed(4)
  local plain = nn.init.sparse_(mh.empty({10, 6}, kF64), 0.5)
  for _, place in ipairs(kPlaces) do
    mh.manual_seed(4)
    local blocks = mh.distribute_tensor(mh.zeros({10, 6}, kF64), mesh, {place(plain)})
    testing.assert_equal(nn.init.sparse_(blocks, 0.5):full_tensor(), plain)
  end
  testing.assert_error(function() nn.init.sparse_(mh.empty{3}, 0.5) end, "sparse_: a matrix is required")
end

function tests.test_Y16_groups_by_pattern()
  local net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 1))
  local groups = mh.optim.groups(net, {["1"] = {lr = 0.5}, ["1.1"] = {lr = 0.25, weight_decay = 0.1},
    ["2"] = {frozen = true}})
  testing.assert_equal({#groups, #groups[1].params, groups[2].lr, #groups[2].params}, {3, 2, 0.5, 2})
  testing.assert_equal(groups[3].lr, 0.25)
  local opt = mh.optim.AdamW(groups, {lr = 0.125})
  testing.assert_equal({opt.param_groups[1].lr, opt.param_groups[2].lr, opt.param_groups[3].lr}, {0.125, 0.5, 0.25})
  local schedule = mh.optim.ExponentialLR(opt, 0.5)
  schedule:step()
  testing.assert_equal(schedule:get_last_lr(), {0.0625, 0.25, 0.125})
  testing.assert_error(function() mh.optim.groups(net, {["3"] = {lr = 1}}) end, "groups: '3' matches no module")
  testing.assert_error(function() mh.optim.groups(net, {["2"] = 3}) end, "groups: the options of '2' are 3")
end

function tests.test_Y16_averages_in_a_scope()
  local net = mh.fully_shard(nn.Linear(3, 3, {bias = false}), {mesh = mesh})
  local ema = mh.EMA(net, {decay = 0.5})
  local function value() return net.weight:detach():full_tensor():clone() end
  local before = value()
  mh.no_grad(function() net.weight:add_(1) end)
  ema:update()
  testing.assert_close(ema:with_averages(value), before + 0.5)
  testing.assert_error(function() ema:with_averages(function() error("evaluation", 0) end) end, "evaluation")
  testing.assert_close(value(), before + 1)
  ema:swap()
  testing.assert_error(function() ema:with_averages(value) end, "the averages are in the module already")
  ema:swap()
  testing.assert_error(function() ema:with_averages(3) end,
      "EMA: with_averages: the first argument is 3, expected a function")
end

function tests.test_Y16_autocast_has_options()
  local x = mh.ones{2, 2}
  local function dtype() return x:matmul(x).dtype end
  testing.assert_equal({mh.autocast({dtype = "float16"}, dtype), mh.autocast({enabled = false}, dtype),
    mh.autocast({cache = false}, dtype), mh.autocast("bfloat16", function()
      return mh.autocast({enabled = false}, dtype)
    end)}, {"float16", "float32", "bfloat16", "float32"})
  testing.assert_error(function() mh.autocast({cached = true}, dtype) end, "autocast: unknown option 'cached'")
end

function tests.test_Y16_lists_of_parameters()
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.list = nn.ParameterList{mh.ones{2}}
    self.dict = nn.ParameterDict{b = mh.zeros{3}, a = nn.Parameter(mh.ones{1}, false)}
  end
  local net = Net()
  net.list:append(mh.zeros{4})
  net.dict.c = nn.Parameter(mh.ones{5})
  local names = {}
  for name in net:named_parameters() do names[#names + 1] = name end
  testing.assert_equal(names, {"list.0", "list.1", "dict.a", "dict.b", "dict.c"})
  testing.assert_equal({#net.list, net.list[-1].shape, net.dict:keys(), net.dict.a.requires_grad},
    {2, {4}, {"a", "b", "c"}, false})
  for i, one in net.list:each() do testing.assert_equal(one.shape, i == 0 and {2} or {4}) end
  testing.assert_equal(tostring(net.list),
      "ParameterList((0): Parameter of float32 [2]\n  (1): Parameter of float32 [4])")
end

function tests.test_Y16_batch_norms_and_seeds()
  local x = mh.randn({4, 3, 5}, kF64)
  local sync, plain = nn.SyncBatchNorm(3, kF64), nn.BatchNorm1d(3, kF64)
  testing.assert_close(sync(cut(x, 0, {1, 0, 3})):full_tensor(), plain(x))
  testing.assert_close(sync.running_var:full_tensor(), plain.running_var)
  testing.assert_equal(mh.seed_everything(11), 11)
  local first, number = mh.rand{3}, math.random()
  mh.seed_everything(11)
  testing.assert_equal({mh.rand{3}:tolist(), math.random()}, {first:tolist(), number})
  mh.manual_seed(2)
  local drop = nn.FeatureAlphaDropout(0.5)
  local whole = drop(x)
  mh.manual_seed(2)
  testing.assert_close(drop(cut(x, 0, {1, 0, 3})):full_tensor(), whole)
end

return tests
