-- SPDX-License-Identifier: Apache-2.0
-- Arguments that nothing would read are errors, as in PyTorch: more than a function takes, and options that it does
-- not know. Every public function is called.
local mh = require "moonhalo"
local public_functions = require "support.public_functions"
local testing = require "moonhalo.testing"
local wrong = require "support.wrong_values"

local tests = {}

--- Functions that take any number of arguments, or look at the object first. {name, what}
local kLeftOut = {
  {"^mh%.accumulate$", "gives the others to the function of a batch"},
  {"^mh%.assume$", "gives them to the function"}, {"^mh%.autocast$", "gives them to the function"},
  {"^mh%.checkpoint$", "gives them to the function"}, {"^mh%.enable_grad$", "gives them to the function"},
  {"^mh%.inference_mode$", "gives them to the function"}, {"^mh%.no_grad$", "gives them to the function"},
  {"^mh%.op_trace$", "gives them to the function"}, {"^mh%.record$", "gives them to the function"},
  {"^mh%.func%.", "gives them to the function or the module"}, {"^EMA:with_averages$", "gives them to the function"},
  {"^mh%.summary$", "gives them to the module"}, {"^Module:call$", "gives them to forward"},
  {"^Module:init$", "belongs to the class"}, {"^ModuleDict:init$", "belongs to the class, which is called"},
  {"^Module:forward$", "belongs to the class"},
  {"^ModuleDict:forward$", "is an error in any case"}, {"^Module:extend$", "is called on classes"},
  {"^mh%.build_optimizer$", "gives them to the optimizer"}, {"^mh%.broadcast_shapes$", "takes any number of shapes"},
  {"^mh%.get_mesh$", "takes names of dims"}, {"^DeviceMesh:slice$", "takes names of dims"},
  {"^mh%.nn%.Identity$", "takes any, as in PyTorch"}, {"^mh%.expert_parallel$", "is an error in any case"},
  {"^Pipeline:forward$", "is an error in any case"}, {"^mh%.nn%.Sequential$", "takes modules"},
  {"^mh%.nn%.ModuleList$", "takes modules"},
  {"^ModuleList:a", "takes modules"}, {"^Canvas:clip$", "gives them to the function"},
  {"^Module:to$", "takes words, each once: test_methods_that_take_words"},
  {"^Tensor:to$", "the same"}, {"^Tensor:redistribute$", "tested on a ShardTensor"},
  {"^mh%.nn%.Module%.", "the same as Module:"},
}

local function is_left_out(name)
  for _, entry in ipairs(kLeftOut) do
    if name:find(entry[1]) then return true end
  end
  return false
end

--- Where an error names the number of arguments; nil if it does not.
local function refusal(message)
  local text = tostring(message)
  return text:find("arguments, at most %d+ ") or text:find("arguments, none is taken", 1, true)
      or text:find("no overload fits", 1, true)
end

function tests.test_calls_with_more_arguments_than_a_function_takes_are_errors()
  local many, unrefused, tried = {}, {}, 0
  for i = 1, 64 do many[i] = true end
  for _, one in ipairs(public_functions()) do
    if not is_left_out(one.name) then
      tried = tried + 1
      local ok, message
      if one.make then
        local object = one.make()
        ok, message = pcall(object[one.name:match("[%w_]+$")], object, table.unpack(many))
      else
        ok, message = pcall(one.fn, table.unpack(many))
      end
      if ok or not refusal(message) then unrefused[#unrefused + 1] = one.name .. ": " .. tostring(message) end
    end
  end
  assert(tried > 500, "the tables were not found")
  if #unrefused > 0 then
    error(("%d functions ignore arguments\n  %s"):format(#unrefused, table.concat(unrefused, "\n  ")), 0)
  end
end

local function refused(calls)
  for i, one in ipairs(calls) do
    local ok, message = pcall(one[1])
    assert(not ok, ("call %d is not refused, expected %s"):format(i, one[2]))
    for k = 2, #one do
      local said = tostring(message)
      assert(said:find(one[k], 1, true), ("call %d: %s\nexpected %s"):format(i, said, one[k]))
    end
  end
end

local nn = mh.nn

local function sharded()
  local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"a"})
  return mh.distribute_tensor(mh.ones({4}, {device = "cpu"}), mesh, {mh.Shard(0)})
end

function tests.test_the_error_has_the_signature_and_what_to_leave_out()
  local x, net = sharded(), nn.Linear(2, 2)
  local opt = mh.optim.SGD(net:parameters(), {lr = 1})
  refused {
    {function() mh.init_device_mesh("cpu", {1}, {"a"}, 7) end, "init_device_mesh: 4 arguments, at most 3 are taken",
      "have  mh.init_device_mesh(device, shape, names = nil)", "fix   leave out 7"},
    {function() mh.manual_seed(1, 2) end, "manual_seed: 2 arguments, at most 1 is taken", "fix   leave out 2"},
    {function() mh.Replicate(1) end, "Replicate: 1 argument, none is taken"},
    {function() net:parameters{recurse = false} end, "parameters: 1 argument, none is taken", "have  net:parameters()",
      "fix   leave out {recurse = false}"},
    {function() net:state_dict{prefx = "a"} end, "state_dict: 1 argument, none is taken"},
    {function() x:full_tensor{a = 1} end, "full_tensor: 1 argument, none is taken", "have  x:full_tensor()"},
    {function() x:to_local{a = 1} end, "to_local: 1 argument, none is taken"},
    {function() mh.from_local(mh.ones{2}, x.mesh, {mh.Shard(0)}, {run_check = false}) end,
      "from_local: 4 arguments, at most 3 are taken", "fix   leave out {run_check = false}"},
    {function() x:redistribute({mh.Replicate()}, {}, 3) end, "redistribute: 3 arguments, at most 2 are taken"},
    {function() x:redistribute(x.mesh, {mh.Replicate()}, {}, 3) end, "redistribute: 4 arguments, at most 3 are taken"},
    {function() mh.distribute_module(net, x.mesh, nil, nil, nil, 5) end,
      "distribute_module: 6 arguments, at most 5 are taken", "fix   leave out 5"},
    {function() mh.profiler():start{a = 1} end, "start: 1 argument, none is taken"},
    {function() opt:state_dict(1) end, "state_dict: 1 argument, none is taken", "have  opt:state_dict()"},
    {function() mh.optim.StepLR(opt, 1):get_last_lr(1) end, "get_last_lr: 1 argument, none is taken"},
    {function() mh.data.Sampler(4):batches(1) end, "batches: 1 argument, none is taken"},
    {function() mh.log({a = 1}, 2) end, "log: 2 arguments, at most 1 is taken"},
    {function() mh.files.exists("a", "b") end, "exists: 2 arguments, at most 1 is taken"},
    {function() mh.checkpoint.save("a", {}, {}, 4) end, "save: 4 arguments, at most 3 are taken"},
    {function() mh.metrics.rmse{}:add(mh.ones{2}, mh.ones{2}, 1) end, "rmse:add: 3 arguments, at most 2 are taken"},
    {function() x:to("float64", {}, 1) end, "to: 3 arguments, at most 2 are taken"},
  }
end

function tests.test_nils_at_the_end_are_no_arguments()
  testing.assert_equal(mh.rank(nil, nil), 0)
  testing.assert_equal(#nn.Linear(2, 2):parameters(nil), 2)
  testing.assert_equal(nn.ReLU()(mh.ones{1}, nil):item(), 1.0)
  refused {{function() mh.rank(nil, 5) end, "rank: 2 arguments, none is taken", "leave out 5"}}
end

function tests.test_forward_and_init_of_modules()
  local Net, Open = nn.Module:extend("Net"), nn.Module:extend("Open")
  function Open:init() end
  function Open:forward(x) return x end
  local hooked = nn.ReLU()
  hooked:register_forward_hook(function() end)
  refused {
    {function() nn.ReLU()(mh.ones{1}, 2) end, "ReLU: 2 arguments, at most 1 is taken", "fix   leave out 2"},
    {function() hooked(mh.ones{1}, 2) end, "ReLU: 2 arguments, at most 1 is taken"},
    {function() nn.Sequential(nn.Tanh())(mh.ones{1}, 2) end, "Tanh: 2 arguments, at most 1 is taken"},
    {function() mh.summary(nn.Linear(2, 2), mh.ones{1, 2}, 5) end, "Linear: 2 arguments, at most 1 is taken"},
    {function() nn.ModuleDict({a = nn.ReLU()}, 4) end, "ModuleDict: 2 arguments, at most 1 is taken"},
    {function() Net(5) end, "Net: 1 argument, none is taken"},
    {function() nn.Sequential({nn.ReLU()}, nn.ReLU()) end, "Sequential: a list of modules and ReLU"},
  }
  testing.assert_equal(Open(1)(2, 3), 2)  -- a script's functions are functions of Lua
  testing.assert_equal(nn.Identity(4, {unused = 1})(mh.ones{1}):item(), 1.0)
end

function tests.test_methods_that_take_words()
  local net = nn.Linear(2, 2)
  refused {
    {function() net:to("float32", "float64") end, "Linear: to: two dtypes", "have  'float32' and 'float64'"},
    {function() net:to("cpu", {device = "meta"}) end, "Linear: to: two devices"},
  }
  testing.assert_equal(net:to("float64", {dtype = "float64"}).weight.dtype, "float64")
end

function tests.test_lists_have_no_names()
  local x, net = sharded(), nn.Linear(2, 2)
  refused {
    {function() x:redistribute{mh.Replicate(), async_op = true} end, "redistribute: ", "the name 'async_op'"},
    {function() x:redistribute{nonsense = 1} end, "redistribute: ", "'nonsense'"},
    {function() x:redistribute({mh.Replicate()}, {async = true}) end, "redistribute: unknown option 'async'"},
    {function() x:redistribute{"rows"} end, "redistribute: bad argument #1, expected a list of placements",
      "element 1 is 'rows'"},
    {function() mh.init_device_mesh("cpu", {1, names = {"a"}}) end, "init_device_mesh: ", "the name 'names'"},
    {function() nn.Sequential{fc = nn.ReLU()} end, "Sequential: expected modules or a list of them", "the name 'fc'"},
    {function() nn.ModuleList{nn.ReLU(), fc = nn.ReLU()} end, "ModuleList: ", "the name 'fc'"},
    {function() nn.ModuleList():extend_with{fc = nn.ReLU()} end, "ModuleList: extend_with: ", "the name 'fc'"},
    {function() nn.ParameterList{w = mh.ones{2}} end, "ParameterList: ", "the name 'w'"},
    {function() mh.optim.SGD{net.weight, lr = 0.1} end, "SGD: the list of parameters has the name 'lr'",
      "SGD({w}, {lr = ...})"},
    {function() mh.optim.Adam{{params = {net.weight}}, lr = 0.1} end, "Adam: the list of parameters has the name 'lr'"},
    {function() mh.optim.Lion{net.weight, lr = 0.1} end, "Lion: expected a list of parameters", "the name 'lr'"},
    {function() mh.optim.Lion{{params = {net.weight}}, lr = 0.1} end, "Lion: expected a list of groups", "'lr'"},
    {function() mh.broadcast_shapes{2, nonsense = 1} end, "broadcast_shapes: shape 1 is "},
    {function() mh.gradcheck(mh.sin, {mh.ones{2}, eps = 1}) end, "gradcheck: ", "the name 'eps'"},
    {function() nn.utils.get_total_norm{mh.ones{2}, norm_type = 1} end, "get_total_norm: ", "the name 'norm_type'"},
    {function() nn.utils.parameters_to_vector{net.weight, fc = net.bias} end, "parameters_to_vector: ", "'fc'"},
    {function() mh.distributions.Normal(mh.zeros{3}, 1.0):sample{2, n_samples = 1} end, "Normal:sample: ",
      "the name 'n_samples'"},
    {function() mh.distributions.Categorical{logits = mh.zeros{3}}:sample{2, out = 1} end, "the name 'out'"},
    {function() nn.utils.clip_grad_value_({net.weight, clip = 1}, 1.0) end, "clip_grad_value: ", "the name 'clip'"},
    {function() mh.Shard(0, 1) end, "Shard: bad argument #2, expected a list of the rows of each rank's block, got 1"},
    {function() nn.Parameter(mh.ones{2}, {requires = false}) end, "Parameter: unknown option 'requires'"},
    {function() nn.Parameter(mh.ones{2}, 0) end, "Parameter: requires_grad is 0, expected true or false"},
  }
  testing.assert_equal(nn.Parameter(mh.ones{2}, {requires_grad = false}).requires_grad, false)
end

function tests.test_packed_lists_and_lists_with_methods()
  local net, mesh = nn.Linear(2, 2), mh.init_device_mesh("cpu", table.pack(mh.world_size()), table.pack("a"))
  local parameters, list = table.pack(net.weight, net.bias), setmetatable({}, {__index = table})
  for _, kind in ipairs {"SGD", "Lion"} do
    testing.assert_equal(#mh.optim[kind](parameters, {lr = 0.1}).param_groups[1].params, 2)
    testing.assert_equal(#mh.optim[kind](table.pack({params = parameters}), {lr = 0.1}).param_groups, 1)
  end
  testing.assert_equal(mh.optim.Adam(parameters, {betas = table.pack(0.5, 0.6)}).param_groups[1].betas, {0.5, 0.6})
  testing.assert_equal(#mh.grad((net.weight:sum() + net.bias:sum()), parameters), 2)
  mh.clip_grad_norm(parameters, 1.0)
  testing.assert_equal(mh.Shard(0, table.pack(1, 2)).sizes, {1, 2})
  mh.distribute_tensor(mh.ones({4}, {device = "cpu"}), mesh, table.pack(mh.Shard(0)))
  list:insert(nn.ReLU())
  testing.assert_equal({#nn.Sequential(table.pack(nn.ReLU(), nn.Tanh())), #nn.ModuleList(list), #nn.Sequential(list)},
    {2, 1, 1})
  refused {
    {function() mh.optim.SGD({net.weight, n = 2}, {lr = 1}) end, "SGD: the list of parameters has the name 'n'"},
    {function() nn.ModuleList{nn.ReLU(), n = "a"} end, "ModuleList: ", "the name 'n'"},
    {function() nn.ModuleList():extend_with(nn.ReLU()) end, "expected a list of modules, got ReLU"},
  }
end

function tests.test_elements_behind_a_nil_are_not_dropped()
  refused {
    {function() nn.ModuleList{nn.ReLU(), nil, nn.Tanh()} end, "ModuleList: element 2 of the list is nil"},
    {function() nn.Sequential{nn.ReLU(), nil, nn.Tanh()} end, "Sequential: element 2 of the list is nil"},
    {function() nn.Sequential(table.pack(nn.ReLU(), nil)) end, "Sequential: element 2 of the list is nil"},
    {function() nn.Sequential(nil, nn.ReLU()) end, "Sequential: argument 1 is not a module but nil"},
    {function() nn.ModuleList():append(nn.ReLU(), nil, nn.Tanh()) end, "ModuleList: expected a module, got nil"},
  }
end

function tests.test_errors_name_the_case()
  local net = nn.Linear(2, 2)
  local parentheses = ", or put parentheses around a call that returns several results: f((g(x)))"
  refused {
    {function() mh.files.exists(("abc"):gsub("b", "c")) end, "leave out 1" .. parentheses},
    {function() net(mh.ones{3, 2}:max(0)) end, "Linear: 2 arguments, at most 1 is taken", parentheses},
    {function() nn.Dropout(0.5, true) end, "Dropout: 2 arguments, at most 1 is taken", "have  Dropout(p = 0.5)",
      "fix   leave out true" .. parentheses},
    {function() nn.ReLU(3) end, "ReLU: 1 argument, none is taken"},
    {function() mh.optim.Adam(net:parameters(), {betas = {0.9, "a"}}) end, "Adam: option 'betas' is {0.9, 'a'}"},
    {function() mh.optim.Lion(net:parameters(), {betas = {0.9, "a"}}) end, "Lion: option 'betas' is {0.9, 'a'}"},
  }
end

function tests.test_zero_grad_of_modules_takes_set_to_none()
  local net = nn.Linear(2, 1)
  for _, given in ipairs {{true}, {{set_to_none = true}}, {}} do
    net(mh.ones{1, 2}):sum():backward()
    net:zero_grad(table.unpack(given))
    testing.assert_equal(net.weight.grad, nil)
  end
  net(mh.ones{1, 2}):sum():backward()
  net:zero_grad{set_to_none = false}
  testing.assert_equal(net.weight.grad:tolist(), {{0.0, 0.0}})
  refused {{function() net:zero_grad{to_none = true} end, "zero_grad: unknown option 'to_none'"}}
end

return tests
