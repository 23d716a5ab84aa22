-- SPDX-License-Identifier: Apache-2.0
-- The class of modules: registration, walking, state, hooks and text.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local nn = mh.nn

local Block = nn.Module:extend("Block")
function Block:init(width)
  self.conv = nn.Conv2d(width, width, 3, {padding = 1})
  self.norm = nn.BatchNorm2d(width)
  self.scale = nn.Parameter(mh.ones{width, 1, 1})
  self:register_buffer("mask", mh.ones{width, 1, 1}, {persistent = false})
  self.width = width
end
function Block:forward(x) return x + self.norm(self.conv(x)) * self.scale * self.mask end
function Block:extra_repr() return "width=" .. self.width end

local function network() return nn.Sequential(nn.Conv2d(1, 2, 1, {bias = false}), Block(2), nn.ReLU()) end

local function keys(map)
  local list = {}
  for key in map do list[#list + 1] = key end
  return list
end

local tests = {}

function tests.test_names_come_in_order_of_assignment()
  local net = network()

  testing.assert_equal(keys(net:named_parameters()),
    {"0.weight", "1.scale", "1.conv.weight", "1.conv.bias", "1.norm.weight", "1.norm.bias"})
  testing.assert_equal(keys(net:named_modules()), {"", "0", "1", "1.conv", "1.norm", "2"})
  testing.assert_equal(keys(net:named_buffers()),
    {"1.mask", "1.norm.running_mean", "1.norm.running_var", "1.norm.num_batches_tracked"})
  testing.assert_equal(keys(net:state_dict()), {"0.weight", "1.scale", "1.conv.weight", "1.conv.bias", "1.norm.weight",
    "1.norm.bias", "1.norm.running_mean", "1.norm.running_var", "1.norm.num_batches_tracked"})
  testing.assert_equal(#net:parameters(), 6)
  testing.assert_equal(#net:named_parameters(), 6)
  testing.assert_equal(keys(net:named_children()), {"0", "1", "2"})
  testing.assert_equal(rawequal(net:get_submodule("1.conv"), net[1].conv), true)
  testing.assert_equal(rawequal(net:get_parameter("1.conv.weight"), net[1].conv.weight), true)
  testing.assert_equal(rawequal(net:get_buffer("1.mask"), net[1].mask), true)
end

function tests.test_a_shared_parameter_appears_once()
  local a, b = nn.Linear(3, 3), nn.Linear(3, 3)
  b.weight = a.weight

  testing.assert_equal(keys(nn.Sequential(a, b):named_parameters()), {"0.weight", "0.bias", "1.bias"})
end

function tests.test_assignment_replaces_and_removes()
  local net = nn.Linear(2, 2)
  net.weight = mh.ones{2, 2}
  net.bias = nil

  testing.assert_equal(keys(net:named_parameters()), {"weight"})
  testing.assert_equal(net(mh.ones{1, 2}):tolist(), {{2.0, 2.0}})
  testing.assert_equal(net.bias, nil)
end

function tests.test_what_would_not_be_trained_is_refused()
  testing.assert_error(function() Block(2).blocks = {nn.ReLU()} end, "fix   self.blocks = nn.ModuleList(list)")
  testing.assert_error(function() Block(2).offset = mh.zeros({2}, {requires_grad = true}) end,
      "fix   self.offset = mh.nn.Parameter(tensor)")
  testing.assert_error(function() Block(2).train = nn.ReLU() end, "'train' is a method of every module")
  testing.assert_error(function() nn.Sequential(nn.ReLU(), 3) end, "Sequential: argument 2 is not a module but 3")
  testing.assert_error(function() return nn.Sequential(nn.ReLU())[1] end, "no module 1 in a list of 1")
  testing.assert_error(function() nn.Module:extend("Empty")()(1) end, "Empty: has no forward function")
  testing.assert_error(function() network():get_parameter("1.conv.wieght") end,
      "get_parameter: no '1.conv.wieght'; did you mean 'weight'?")
  testing.assert_error(function() network():get_submodule("1.cnv") end,
      "no submodule 'cnv' in '1'; did you mean 'conv'?")
end

function tests.test_tensors_that_are_no_parameters_are_plain_fields()
  local block = Block(2)
  local before = keys(block:named_parameters())
  local w = mh.ones({2}, {requires_grad = true})
  block.activation, block.constant, block.held = w * 2, mh.ones{2}, {w}
  testing.assert_equal(keys(block:named_parameters()), before)
  testing.assert_equal(block.held[1].requires_grad, true)
  block.scale = mh.ones({2, 1, 1}, {requires_grad = true})  -- takes the place of a Parameter
  testing.assert_equal(keys(block:named_parameters()), before)
end

function tests.test_printed_as_in_pytorch()
  testing.assert_equal(tostring(network()), [[
Sequential(
  (0): Conv2d(1, 2, kernel_size=(1, 1), stride=(1, 1), bias=False)
  (1): Block(
    width=2
    (conv): Conv2d(2, 2, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    (norm): BatchNorm2d(2, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
  )
  (2): ReLU()
)]])
  testing.assert_equal(tostring(nn.Linear(3, 4, {bias = false})), "Linear(in_features=3, out_features=4, bias=False)")
  testing.assert_equal(tostring(nn.MaxPool1d(2)),
    "MaxPool1d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)")
end

function tests.test_state_goes_from_one_network_to_another()
  local a, b = network(), network()
  local x = mh.randn{2, 1, 4, 4}
  a(x)
  b:load_state_dict(a:state_dict())

  testing.assert_equal(mh.equal(a:eval()(x), b:eval()(x)), true)
  testing.assert_equal(b[1].norm.num_batches_tracked:item(), 1)
end

function tests.test_state_that_does_not_fit_is_refused()
  local net, state = nn.Linear(2, 3), {weight = mh.zeros{3, 2}, bais = mh.zeros{3}}

  local message = testing.assert_error(function() net:load_state_dict(state) end,
      "Linear: load_state_dict: missing keys: 'bias'")
  testing.assert_equal(message:find("unexpected keys: 'bais'; did you mean 'bias'?", 1, true) ~= nil, true)
  testing.assert_equal(net:load_state_dict(state, {strict = false}),
      {missing_keys = {"bias"}, unexpected_keys = {"bais"}})
  testing.assert_equal(net.weight:abs():sum():item(), 0.0)
  testing.assert_error(function() net:load_state_dict{weight = mh.zeros{2, 3}, bias = mh.zeros{3}} end,
    "'weight' has shape [2, 3], the module's is [3, 2]")
end

local Shared = nn.Module:extend("Shared")
function Shared:init()
  self.mlp = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
  self.shared = self.mlp
  self.tied = nn.Linear(2, 2)
  self.tied.weight = self.mlp[0].weight
end
function Shared:forward(x) return self.tied(self.shared(self.mlp(x))) end

--- PyTorch's names for that module, in its order.
local function shared_names()
  local names = {}
  for _, of in ipairs {"mlp", "shared"} do
    for _, name in ipairs {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
        "1.num_batches_tracked"} do
      names[#names + 1] = of .. "." .. name
    end
  end
  names[#names + 1], names[#names + 2] = "tied.weight", "tied.bias"
  return names
end

function tests.test_a_module_under_two_names_is_in_the_state_under_both()
  local net = Shared()

  testing.assert_equal(keys(net:state_dict()), shared_names())
  testing.assert_equal(#net:parameters(), 5)
  testing.assert_equal(#net:modules(), 5)
  net.shared.again = net  -- a module inside of itself ends there
  testing.assert_equal(keys(net:state_dict()), shared_names())
end

function tests.test_state_of_shared_modules_goes_through_a_file()
  local path = own_path("shared_modules")
  local a, b, x = Shared(), Shared(), mh.randn{4, 2}
  a(x)
  local pairs_of_a = {}
  for name, tensor in a:state_dict() do pairs_of_a[#pairs_of_a + 1] = {name, tensor} end
  mh.safetensors.save(path, pairs_of_a, {format = "pt"})

  b:load_state_dict(mh.safetensors.load(path))

  testing.assert_equal(mh.equal(a:eval()(x), b:eval()(x)), true)
  assert(b.tied.weight == b.mlp[0].weight and b.shared == b.mlp)
  -- A file that has every tensor once says in its metadata which names are the same.
  local once, metadata = {}, {}
  for i, entry in ipairs(pairs_of_a) do
    local first = entry[1]:gsub("^shared", "mlp"):gsub("^tied.weight", "mlp.0.weight")
    if first == entry[1] then once[#once + 1] = entry else metadata[entry[1]] = first end
  end
  mh.safetensors.save(path, once, metadata)
  local c = Shared()
  c:load_state_dict(mh.safetensors.load(path))
  testing.assert_equal(mh.equal(a(x), c:eval()(x)), true)
  os.remove(path)
  testing.assert_error(function() c:load_state_dict(once) end,
    "missing keys: 'shared.0.weight', 'shared.0.bias', 'shared.1.weight'")
end

function tests.test_what_is_no_state_is_refused()
  local net = nn.Linear(2, 3)
  local cases = {
    {"run/model.safetensors", "expected tensors by name, got 'run/model.safetensors'"},
    {mh.ones{3, 2}, "expected tensors by name, got Tensor float32 [3, 2]"},
    {nil, "expected tensors by name, got nil"},
    {{mh.ones{3, 2}}, "element 1 of the list is no {name, tensor} but Tensor float32 [3, 2]"},
    {{{"weight", mh.ones{3, 2}}, "bias"}, "element 2 of the list is no {name, tensor} but 'bias'"},
    {{{"weight"}}, "'weight' is not a tensor but nil"},
    {{{mh.ones{3, 2}, "weight"}}, "names are strings, got "},
    {{weight = 1}, "'weight' is not a tensor but 1"},
    {{[0] = mh.ones{3, 2}}, "names are strings, got 0"},
    {{model = net:state_dict()}, "'model' is not a tensor but OrderedMap"},
  }
  for _, case in ipairs(cases) do
    local message = testing.assert_error(function() net:load_state_dict(case[1]) end, "Linear: load_state_dict: "
        .. case[2])
    assert(message:find("fix   give what state_dict() or mh.safetensors.load(path) returned", 1, true), message)
  end
  testing.assert_error(function() net:load_state_dict(net:state_dict(), false) end, "options are a table, got false")
end

function tests.test_names_are_changed_before_they_are_compared()
  local net = nn.Linear(2, 3)
  local weight, bias = mh.randn{3, 2}, mh.randn{3}
  local given = {["module.net.weight"] = weight, ["module.net.bias"] = bias, step = mh.tensor(7)}

  local left = net:load_state_dict(given, {rename = {{"^module%.", ""}, {"^net%.", ""}}, strict = false})
  testing.assert_equal({left.missing_keys, left.unexpected_keys}, {{}, {"step"}})
  assert(mh.equal(net.weight, weight) and mh.equal(net.bias, bias))
  local function short(name) return name:match("^module%.net%.(.*)$") end
  testing.assert_equal(net:load_state_dict(given, {rename = short}), {missing_keys = {}, unexpected_keys = {}})

  local refused = {
    {{{"^module%.net%..*", "weight"}},
    "rename gives two tensors the name 'weight'\n  have  'module.net.bias' and 'module.net.weight'"},
    {{{"[", ""}}, "rename is a list of {pattern, replacement} or a function: entry 1, '[': "},
    {{"weight"}, "entry 1 is 'weight'"}, {7, "got 7"}, {function() return 7 end, "gave 7 for '"},
  }
  for _, case in ipairs(refused) do
    local message = testing.assert_error(function() net:load_state_dict(given, {rename = case[1]}) end,
        "Linear: load_state_dict: ")
    assert(message:find(case[2], 1, true), message)
  end
end

function tests.test_dtypes_are_cast_or_compared()
  local net = nn.Linear(2, 3)
  local given = net:to("float64"):state_dict()
  local single = nn.Linear(2, 3)

  single:load_state_dict(given)
  testing.assert_equal(single.weight.dtype, "float32")
  testing.assert_error(function() single:load_state_dict(given, {dtype = true}) end,
    "'weight' is float64, the module's is float32; dtype = false casts")
  single:load_state_dict(single:state_dict(), {dtype = true})
  testing.assert_error(function() single:load_state_dict(given, {dtype = "float64"}) end,
      "load_state_dict: dtype is true")
  single:load_state_dict(given, {dtype = "a string of metadata", format = "pt"})
  for _, case in ipairs {
    {{strct = false}, "load_state_dict: unknown option 'strct'; did you mean 'strict'?"},
    {{strict = false, assign = true}, "load_state_dict: unknown option 'assign'"},
    {{strict = "no"}, "load_state_dict: strict is 'no', expected true or false"},
    {{rename = "^module%."}, "load_state_dict: rename is a list of {pattern, replacement} or a function"},
  } do
    testing.assert_error(function() single:load_state_dict(given, case[1]) end, case[2])
  end
end

function tests.test_train_and_eval_reach_all_modules()
  local net = network()
  net:eval()
  for _, module in net:named_modules() do testing.assert_equal(module.training, false) end
  net:train()
  for _, module in net:named_modules() do testing.assert_equal(module.training, true) end
  testing.assert_error(function() net:train("eval") end, "train: mode is 'eval', expected true or false")
  testing.assert_error(function() net:requires_grad_(0) end, "requires_grad_: flag is 0, expected true or false")
end

function tests.test_to_changes_dtype_in_place_and_keeps_integers()
  local net = network()
  local before = net[0].weight
  net(mh.randn{1, 1, 3, 3}):sum():backward()
  net:to("float64")

  testing.assert_equal(before.dtype, "float64")
  testing.assert_equal(before.grad.dtype, "float64")
  testing.assert_equal(before.requires_grad, true)
  testing.assert_equal(net[1].norm.num_batches_tracked.dtype, "int64")
  testing.assert_equal(net[1].norm.running_mean.dtype, "float64")
  testing.assert_equal(net:float()(mh.randn{1, 1, 3, 3}).dtype, "float32")
end

function tests.test_gradients_off_and_cleared()
  local net = nn.Linear(2, 1)
  net(mh.ones{1, 2}):sum():backward()
  testing.assert_equal(net.weight.grad:tolist(), {{1.0, 1.0}})
  net:zero_grad()
  testing.assert_equal(net.weight.grad, nil)
  net:requires_grad_(false)
  testing.assert_equal(net(mh.ones{1, 2}).requires_grad, false)
end

function tests.test_hooks_change_inputs_and_outputs()
  local net, seen = nn.Identity(), {}
  local double = net:register_forward_pre_hook(function(_, args) return {args[1] * 2} end)
  local watch = net:register_forward_hook(function(module, args, output)
    seen[#seen + 1] = args[1]:item()
    return output + 1
  end)

  testing.assert_equal(net(mh.tensor(3.0)):item(), 7.0)
  double:remove()
  testing.assert_equal(net(mh.tensor(3.0)):item(), 4.0)
  watch:remove()
  testing.assert_equal(net(mh.tensor(3.0)):item(), 3.0)
  testing.assert_equal(seen, {6.0, 3.0})
end

function tests.test_unknown_options_of_modules_are_refused()
  local net = nn.Identity()
  for _, call in ipairs {
    {"register_forward_hook", "prepend", function(options) net:register_forward_hook(print, options) end},
    {"register_forward_pre_hook", "prepend", function(options) net:register_forward_pre_hook(print, options) end},
    {"register_buffer", "persistent", function(options) net:register_buffer("mask", mh.ones{2}, options) end},
  } do
    testing.assert_error(function() call[3]{wrong = true} end,
        ("%s: unknown option 'wrong'\n  have  %s"):format(call[1], call[2]))
  end
  testing.assert_equal(net:has "mask", false)
end

-- One function may be several hooks, and a hook may remove itself.
function tests.test_a_hook_is_removed_alone_and_once()
  local net = nn.Identity()
  local function double(_, args) return args[1] * 2 end
  local first, again = net:register_forward_pre_hook(double), net:register_forward_pre_hook(double)
  first.remove()
  first.remove()
  testing.assert_equal(net(mh.tensor(3.0)):item(), 6.0)
  again.remove()
  local once
  once = net:register_forward_hook(function() once.remove() end)
  net:register_forward_hook(function(_, _, output) return output + 1 end)
  testing.assert_equal({net(mh.tensor(3.0)):item(), net(mh.tensor(3.0)):item()}, {4.0, 4.0})
  testing.assert_error(function() net:register_forward_hook(double, {prepend = 1}) end, "prepend is 1, expected true")
end

function tests.test_buffers_are_saved_unless_the_last_call_says_otherwise()
  local net = nn.Identity()
  net:register_buffer("mask", mh.ones{2}, {persistent = false})
  testing.assert_equal(net:state_dict().mask, nil)
  net:register_buffer("mask", mh.ones{2})
  testing.assert_equal(net:state_dict().mask, mh.ones{2})
  testing.assert_error(function() net:register_buffer("mask", mh.ones{3}, {persistent = "no"}) end,
      "register_buffer: persistent is 'no', expected true or false")
  testing.assert_equal(net.mask, mh.ones{2})
end

function tests.test_hooks_of_several_values()
  local Two = nn.Module:extend("Two")
  function Two:forward(a, b) return b, a end
  local net = Two()
  net:register_forward_hook(function(_, args, output) return {output[1], args[1], args.n, n = 3} end)

  testing.assert_equal({net("a", "b")}, {"b", "a", 2})
end

function tests.test_containers()
  local list = nn.ModuleList{nn.Linear(2, 2), nn.ReLU()}
  list:append(nn.Tanh()):add(nn.Sigmoid())
  local named = nn.ModuleDict{b = nn.ReLU(), a = nn.Linear(1, 1)}
  named.c = nn.Tanh()

  testing.assert_equal({#list, #named}, {4, 3})
  testing.assert_equal({tostring(list[-1]), tostring(list[2])}, {"Sigmoid()", "Tanh()"})
  testing.assert_equal(named:keys(), {"a", "b", "c"})
  local names = {}
  for i, module in list:each() do names[i + 1] = module:class_name() end
  testing.assert_equal(names, {"Linear", "ReLU", "Tanh", "Sigmoid"})
  testing.assert_equal(keys(nn.Sequential():add(nn.ReLU()):add(nn.Linear(1, 1)):named_parameters()),
      {"1.weight", "1.bias"})
end

function tests.test_a_class_extends_another()
  local Wide = Block:extend("Wide")
  function Wide:init() Wide.super.init(self, 4); self.last = nn.ReLU() end
  function Wide:forward(x) return self.last(Wide.super.forward(self, x)) end
  local net = Wide()

  testing.assert_equal(net(mh.randn{1, 4, 3, 3}):min():item() >= 0, true)
  testing.assert_equal(keys(net:named_children()), {"conv", "norm", "last"})
  testing.assert_equal(net:class_name(), "Wide")
end

function tests.test_arguments_of_another_kind()
  testing.assert_error(function() mh.metrics.mse{}:value{over = 5} end, "mse:value: over is 5, expected a mesh")
  testing.assert_error(function() mh.progress(2, {desc = {}}) end, "progress: desc is {}, expected a string")
end

-- 0 is true for Lua, and false for Python.
function tests.test_options_that_are_true_or_false()
  for _, case in ipairs {
    {function() nn.Conv2d(1, 2, 3, {bias = 0}) end, "Conv2d: bias is 0, expected true or false"},
    {function() nn.Linear(1, 2, 0) end, "Linear: bias is 0, expected true or false"},
    {function() nn.BatchNorm2d(2, {affine = "no"}) end, "BatchNorm2d: affine is 'no', expected true or false"},
    {function() mh.functional.dropout(mh.ones{2}, 0.5, 1) end, "dropout: training is 1, expected true or false"},
  } do
    testing.assert_error(case[1], case[2])
  end
end

function tests.test_apply_visits_children_first()
  local order = {}
  network():apply(function(module) order[#order + 1] = module:class_name() end)

  testing.assert_equal(order, {"Conv2d", "Conv2d", "BatchNorm2d", "Block", "ReLU", "Sequential"})
end

return tests
