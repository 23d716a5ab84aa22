-- SPDX-License-Identifier: Apache-2.0
-- Wrong calls name the operator, what was passed, what it takes, and the script's line.
local mh = require "moonhalo"
local t = mh.testing

local tests = {}

local function line_of(message) return tonumber(message:match("errors%.lua:(%d+): ")) end

function tests.test_no_overload_fits()
  local x = mh.ones({2, 3})
  local cases = {
    {function() mh.matmul(x, "a") end,
     {"matmul: no overload fits", "matmul(Tensor float32 [2, 3], 'a')", "aten::matmul(Tensor self, Tensor other)",
      "argument 'other' needs Tensor, got 'a'"}},
    {function() x:sum{dims = 0} end, {"has no argument 'dims'; did you mean 'dim'?"}},
    {function() x:sum(0, 1, 2, 3) end, {"sum: no overload fits"}},
    {function() mh.zeros() end, {"argument 'size' is missing"}},
    {function() mh.zeros({2}, {dtype = "flaot"}) end,
    {"argument 'dtype' needs ScalarType?, got 'flaot'; did you mean 'float'"}},
    {function() x:view({1.5}) end, {"view", "{1.5}"}},
    {function() mh.cat(x) end, {"argument 'tensors' needs Tensor[]"}},
    {function() x:softmax() end, {"argument 'dim' is missing"}},
    {function() x:sum(0, {dim = 0}) end, {"argument 'dim' is given twice"}},
    {function() mh.relu(nil) end, {"argument 'self'"}},
    {function() mh.relu() end, {"argument 'self' is missing"}},
    {function() mh.zeros({2}, {requires_grad = 1}) end, {"argument 'requires_grad' needs bool"}},
    {function() mh.add(x, x, {1, alpha = 2}) end, {"mixes a list and options"}},
  }
  for _, case in ipairs(cases) do
    local message
    for _, text in ipairs(case[2]) do message = t.assert_error(case[1], text) end
    assert(line_of(message), "no script line in: " .. message)
  end
end

function tests.test_a_failing_kernel_names_the_call()
  local message = t.assert_error(function() mh.ones({2, 3}):mm(mh.ones({2, 3})) end,
      "mm: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)")
  assert(message:find("call  mm(Tensor float32 [2, 3], Tensor float32 [2, 3])", 1, true), message)
  assert(not message:find("Exception raised from", 1, true), message)
  assert(not message:find("libtorch", 1, true), message)
end

function tests.test_the_line_is_the_callers()
  local function fails() return mh.matmul(1, 2) end
  local ok, message = pcall(fails)
  t.assert_equal(ok, false)
  local here = debug.getinfo(1, "l").currentline
  t.assert_equal(line_of(message), here - 3)
end

function tests.test_unknown_names()
  t.assert_error(function() return mh.matmull end, "no function or operator 'matmull'; did you mean 'matmul'?")
  t.assert_error(function() return mh.zzzzqqq end, "mh: no function or operator 'zzzzqqq'")
  t.assert_error(function() return mh.ones(1):reluu() end,
      "no attribute, method or operator 'reluu'; did you mean 'relu'")
  t.assert_error(function() return mh.ones(1).shap end, "did you mean 'shape'?")
  t.assert_error(function() mh.ones(1).shape = 3 end, "attribute 'shape' cannot be set")
  t.assert_error(function() mh.ones(1).sum(3) end,
      "sum: called on 3, which is not a tensor\n  fix   write a colon, not a dot: x:sum(...)")
  t.assert_error(function() mh.hash_tensor(mh.ones(1), {}, true) end,
      "\n  fix   options are given by name: {keepdim = true}")
  t.assert_error(function() mh.zeros({2}, "float64") end, "\n  fix   options are given by name: {dtype = 'float64'}")
  t.assert_error(function() mh.Generator{sed = 1} end, "unknown option 'sed'; did you mean 'seed'?")
  t.assert_error(function() return mh.Generator().foo end, "Generator: no attribute or method 'foo'")
end

function tests.test_names_of_python_are_answered_with_names_that_exist()
  for _, name in ipairs {"fft", "linalg", "special", "save", "utils", "distributed", "autograd"} do
    local message = t.assert_error(function() return mh[name] end, "'" .. name .. "'")
    local found = 0
    for path in message:match("\n  fix   (.*)"):gmatch("mh%.([%a][%w_%.]*)") do
      local value = mh
      for part in path:gmatch("[%w_]+") do value = value[part] end
      found = found + 1
    end
    assert(found > 0, message)
  end
  t.assert_error(function() return mh.ones(1):numpy() end, "fix   x:tolist()")
end

function tests.test_wrong_self()
  local x = mh.ones(2)
  local function cases(list)
    for _, case in ipairs(list) do
      local message = t.assert_error(case[1], case[2])
      assert(line_of(message) and message:find("\n  fix   write a colon, not a dot" .. case[3], 1, true), message)
    end
  end
  local net = mh.nn.Sequential(mh.nn.Linear(2, 2))
  local opt, own = mh.optim.SGD(net:parameters(), {lr = 0.1}), mh.optim.NAdam(net:parameters())
  local Own = mh.nn.Module:extend("Own")
  function Own:width() return self.wide end
  local own_net = Own()
  local mesh = mh.init_device_mesh(mh.device(), {1})
  cases {
    {function() x.item() end, "item: called without its tensor", ": x:item()"},
    {function() x.item(3) end, "item: called on 3, which is not a tensor", ": x:item(...)"},
    {function() x.sum() end, "sum: called without its tensor", ": x:sum()"},
    {function() x.sum(0) end, "sum: called on 0, which is not a tensor", ": x:sum(...)"},
    {function() x.softmax{dim = 0} end, "softmax: called on {dim = 0}, which is not a tensor", ": x:softmax(...)"},
    {function() opt.step() end, "step: called without its optimizer", ": opt:step()"},
    {function() own.step() end, "step: called without its optimizer", ": opt:step()"},
    {function() opt.zero_grad{} end, "zero_grad: called on {}, which is not an optimizer", ": opt:zero_grad(...)"},
    {function() mesh.size("domain") end, "size: called on 'domain', which is not a mesh", ": mesh:size(...)"},
    {function() net.parameters() end, "parameters: called without its module", ": net:parameters()"},
    {function() net.load_state_dict({}) end, "load_state_dict: called on {}, which is not a module",
    ": net:load_state_dict(...)"},
    {function() return net.train(false) end, "train: called on false, which is not a module", ": net:train(...)"},
    {function() net.length() end, "length: called without its module", ": net:length()"},
    {function() own_net.width() end, "attempt to index a nil value (local 'self')",
  ", before the method's name: object:method(...)"}, }
  mh.Tensor.item(mh.ones(1))
  mh.nn.Module.parameters(net)
end

local nn = mh.nn
local Block = nn.Module:extend("Block")
function Block:init(width) self.fc = nn.Linear(width, 3) end
function Block:forward(x)
  if x == "mine" then error({code = 7}) end
  if x == "text" then error("stop", 0) end
  if x == "line" then error("stop here") end
  if x == "nil" then return x.a.b end
  if x == "again" then
    local ok, message = pcall(self.fc, 1)
    assert(not ok)
    error("wrapped: " .. message)
  end
  return self.fc(x)
end
local kTail = debug.getinfo(Block.forward, "S").lastlinedefined - 1
local Net = nn.Module:extend("Net")
function Net:init(other) self.blocks, self.other = nn.ModuleList{Block(4), Block(4)}, function() return other end end
function Net:forward(x)
  if self.other() then return self.other()(x) end
  return self.blocks[1](x)
end

--- The error of net(x), which must be a string that ends in the place.
local function at(net, x, place)
  local ok, message = pcall(net, x)
  assert(not ok and type(message) == "string", message)
  assert(message:sub(-#place - 9) == "\n  in    " .. place, message)
  return message
end

function tests.test_errors_in_modules_name_line_and_path()
  local message = at(Net(), mh.ones{2, 3}, "blocks.1.fc (Linear) of Net")
  t.assert_equal(line_of(message), kTail)
  t.assert_equal(line_of(at(nn.Sequential(nn.Identity(), Net()), mh.ones{2, 3},
      "1.blocks.1.fc (Linear) of Sequential")), kTail)
  at(Net(), "line", "blocks.1 (Block) of Net")
  at(Net(), "nil", "blocks.1 (Block) of Net")
  at(Net(nn.Sequential(Block(4))), mh.ones{2, 3}, "0.fc (Linear) of Sequential, called by Net")
  local around = Net()
  around.other = function() return nn.Sequential(around.blocks[1]) end  -- made again around what the net has
  at(around, mh.ones{2, 3}, "blocks.1.fc (Linear) of Net")
  local net = Net()
  net:register_forward_hook(function(_, _, y) return y:nothing() end)
  at(net, mh.ones{2, 4}, "Net")
  at(nn.Sequential(net), mh.ones{2, 4}, "0 (Net) of Sequential")
  net.self = net
  at(net, mh.ones{2, 3}, "blocks.1.fc (Linear) of Net")
end

function tests.test_errors_keep_what_they_are()
  local ok, value = pcall(Net(), "mine")
  t.assert_equal({ok, value.code}, {false, 7})
  t.assert_equal({pcall(Net(), "text")}, {false, "stop"})
  t.assert_equal({pcall(error, "x", 0)}, {false, "x"})
  t.assert_equal({pcall(function(...) return select("#", ...), ... end, nil, 2, nil)}, {true, 3, nil, 2, nil})
  t.assert_equal({pcall(error)}, {false})
  assert(not pcall(pcall))
  local _, message = pcall(Net(), "again")
  local _, count = message:gsub("\n  in    ", "")
  t.assert_equal(count, 1)
  assert(message:find("in    blocks.1.fc (Linear) of Net", 1, true), message)
end

function tests.test_pcall_and_modules_may_yield()
  local Wait = nn.Module:extend("Wait")
  function Wait:forward(x) return coroutine.yield(x) + 1, 2 end
  local co = coroutine.create(function(x) return pcall(nn.Sequential(Wait()), x) end)
  t.assert_equal({coroutine.resume(co, 5)}, {true, 5})
  t.assert_equal({coroutine.resume(co, 6)}, {true, true, 7, 2})
  co = coroutine.create(function(x) return pcall(nn.Sequential(Wait()), x) end)
  coroutine.resume(co, 5)
  local _, ok, message = coroutine.resume(co, "a")
  assert(ok == false and message:find("in    0 (Wait) of Sequential", 1, true), message)
end

function tests.test_the_line_of_tail_calls()
  local calls = {
    function() return mh.interpolate(mh.ones{1, 1, 4}, {mode = "bilinear"}) end,
    function() return nn.Linear(3) end,
    function() return mh.optim.Adam({}, {lr = 1}) end,
    function() return mh.parallelize_module(1) end,
    function() return nn.Linear(3, 3):get_submodule("a") end,
  }
  for i, call in ipairs(calls) do
    local _, message = pcall(call)
    t.assert_equal({i, line_of(message)}, {i, debug.getinfo(call, "S").linedefined})
  end
end

function tests.test_an_endless_recursion_ends()
  local function deeper(x) return 1 + deeper(x) end
  local ok, message = pcall(deeper, 1)
  assert(not ok and message:find("stack overflow", 1, true), message)
  local Loop = nn.Module:extend("Loop")
  function Loop:forward(x) return self(x) + 1 end
  ok, message = pcall(Loop(), 1)
  assert(not ok and tostring(message):find("overflow", 1, true), message)
end

function tests.test_modules()
  assert(require "moonhalo" == mh)
  assert(require "moonhalo.testing" == t)
  t.assert_error(function() require "moonhalo.no_such_file" end, "no embedded file 'no_such_file.lua'")
end

function tests.test_errors_survive_coroutines()
  local co = coroutine.create(function()
    coroutine.yield(1)
    mh.ones(2):mm(mh.ones(2))
  end)
  t.assert_equal({coroutine.resume(co)}, {true, 1})
  local ok, message = coroutine.resume(co)
  t.assert_equal(ok, false)
  assert(line_of(message), message)
end

function tests.test_assertions_fail_when_they_should()
  local a = mh.ones(2)
  t.assert_error(function() t.assert_close(a, mh.zeros(2)) end, "2 of 2 elements differ, by at most 1.0")
  t.assert_error(function() t.assert_close(a, mh.ones(3)) end, "shapes differ")
  t.assert_error(function() t.assert_close(a, a:double()) end, "dtypes differ")
  t.assert_error(function() t.assert_close(a, a, {rtl = 1}) end, "unknown option 'rtl'")
  t.assert_error(function() t.assert_close(mh.tensor{mh.nan}, mh.tensor{mh.nan}) end, "1 of 1")
  t.assert_close(mh.tensor{mh.nan}, mh.tensor{mh.nan}, {equal_nan = true})
  t.assert_error(function() t.assert_equal({1, {2}}, {1, {3}}) end, "expected  {1, {3}}")
  t.assert_error(function() t.assert_equal({1}, {1, 2}) end, "values differ")
  t.assert_error(function() t.assert_error(function() end, "x") end, "no error")
  t.assert_error(function() t.assert_error(function() error("y") end, "x") end, "another error")
end

function tests.test_values_that_would_be_lost_or_never_end_are_refused()
  t.assert_error(function() mh.tensor{nonsense = 1} end, "tensor: a list has names too, got {nonsense = 1}")
  t.assert_error(function() mh.tensor{{1, 2, x = 3}} end, "tensor: a list has names too")
  local opt = mh.optim.SGD({mh.ones(2):requires_grad_()}, {lr = 0.1})
  t.assert_error(function() mh.optim.CosineAnnealingWarmRestarts(opt, -1) end,
      "T_0 is -1, expected a number of at least 1")
  t.assert_error(function() mh.optim.StepLR(opt, 0 / 0) end, "step_size is nan, expected a number of at least 1")
  t.assert_error(function() mh.optim.LambdaLR(opt, function() end) end, "LambdaLR: the factor of group 0 is nil")
  t.assert_error(function() mh.nn.Dropout(0 / 0) end, "p is nan, expected a probability")
  t.assert_error(function() mh.EMA(mh.nn.Linear(2, 2), 0 / 0) end, "decay is nan")
end

function tests.test_objects_of_two_kinds_are_unequal()
  local mesh, placement = mh.init_device_mesh(mh.device(), {1}), mh.Shard(0)
  t.assert_equal({mesh == placement, placement == mesh, mesh == mh.Generator(), placement == mh.Shard(0)},
      {false, false, false, true})
end

function tests.test_assertions_see_what_is_in_tables_of_names()
  local one, other = {steps = {{w = mh.ones(2)}}}, {steps = {{w = mh.zeros(2)}}}
  t.assert_all_close(one, {steps = {{w = mh.ones(2)}}})
  t.assert_error(function() t.assert_all_close(one, other) end, "2 of 2 elements differ")
  t.assert_error(function() t.assert_close({w = mh.ones(2)}, {w = mh.zeros(2)}) end,
      "expected a tensor, a number or a list of numbers")
end

return tests
