-- SPDX-License-Identifier: Apache-2.0
-- Values that went on without a word, or to an error that did not say what is wrong.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local nn = mh.nn
local tests = {}

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

function tests.test_records_that_no_log_could_have()
  refused {
    {function() mh.log{f = print} end, "log: cannot write function, which is 'f'"},
    {function() mh.log{a = {b = {f = print}}} end, "log: cannot write function, which is 'a.b.f'"},
    {function() mh.log{a = {1, b = 2}} end, "log: 'a' is a list with 1 other keys"},
    {function() mh.log{a = coroutine.create(print)} end, "log: cannot write thread, which is 'a'"},
  }
  mh.log{a = mh.ones{2}, b = {1, 2, c = nil}, d = "x", e = true, f = mh.none, g = 0 / 0}
  testing.assert_equal(mh.log(1.0), 0.0)
end

function tests.test_methods_are_not_assigned_to()
  local net = nn.Linear(2, 2)
  refused {
    {function() net.train = false end, "Linear: 'train' is a method, which false would hide", "net:train(false)"},
    {function() net.eval = true end, "Linear: 'eval' is a method", "fix   net:eval()"},
    {function() net.zero_grad = 3 end, "Linear: 'zero_grad' is a method", "fix   call it, net:zero_grad()"},
    {function() net.float = "float32" end, "Linear: 'float' is a method"},
  }
  net.forward = function(_, x) return x + 1 end
  testing.assert_equal(net(mh.ones{1}):item(), 2.0)
end

function tests.test_nan_is_not_a_number_of_an_option()
  local nan, w = 0 / 0, nn.Parameter(mh.ones{2})
  local opt = mh.optim.SGD({w}, {lr = 1})
  local own = mh.optim.Lion({w}, {lr = 1})
  refused {
    {function() mh.optim.SGD({w}, {lr = nan}) end, "SGD: option 'lr' is nan, expected a number"},
    {function() mh.optim.SGD({w}, {lr = 1, momentum = 0.5, dampening = nan}) end, "SGD: option 'dampening' is nan"},
    {function() opt.param_groups[1].lr = nan end, "SGD: option 'lr' is nan, expected a number"},
    {function() mh.optim.Lion({w}, {lr = nan}) end, "Lion: option 'lr' is nan, expected a number"},
    {function() mh.optim.Adafactor({w}, {beta2_decay = nan}) end, "Adafactor: option 'beta2_decay' is nan"},
    {function() own.param_groups[1].lr = nan end, "Lion: option 'lr' is nan, expected a number"},
    {function() opt:scale_grads(nan) end, "scale_grads: the factor is nan, expected a number"},
    {function() mh.clip_grad_value({w}, nan) end, "clip_value is "},
    {function() mh.metrics.acc{climatology = nan} end, "acc: climatology is "},
    {function()
      mh.losses.relative_lp(mh.ones{1, 1, 2}, mh.ones{1, 1, 2}, {eps = nan})
    end, "relative_lp: eps is "},
    {function() nn.LSTM(2, 2, {dropout = nan}) end, "LSTM: dropout is "},
  }
end

function tests.test_losses_of_other_shapes_name_a_remedy_that_helps()
  local function loss(a, b) return function() mh.mse_loss(mh.ones(a), mh.ones(b)) end end
  refused {
    {loss({1, 46}, {1, 48}), "have  [1, 46] and [1, 48]", "fix   give a target of the shape of the input"},
    {loss({2, 3}, {3}), "have  [2, 3] and [3]", "fix   expand one of them, if broadcasting is meant"},
  }
end

function tests.test_pictures_are_png_files()
  local image = mh.zeros({4, 4, 3}, {dtype = "uint8"})
  refused {
    {function() mh.files.write_png("x.pdf", image) end, "write_png: pictures are PNG files, not pdf", "have  'x.pdf'",
      "fix   name it 'x.png'"},
    {function() mh.plot.lines("a/x.SVG", {{y = {1}}}) end, "plot.lines: pictures are PNG files, not svg",
      "fix   name it 'a/x.png'"},
    {function() mh.plot.maps("x.jpeg", {{data = mh.ones{2, 2}}}) end, "plot.maps: pictures are PNG files, not jpeg"},
  }
end

function tests.test_memory_limit_is_a_size()
  local function limit(value)
    return mh.ComputeConfig{plan_ngpus = 1, pas_config = {memory_limit = value}}.pas_config.memory_limit
  end
  testing.assert_equal({limit("6GB"), limit("500 MiB"), limit("1.5GiB"), limit(7)},
      {6000000000, 500 << 20, 3 << 29, 7})
  refused {
    {function() limit("6 gigs") end, "ComputeConfig: pas_config.memory_limit is '6 gigs'", "have  units B, GB, GiB",
      "fix   write it as \"512MiB\""},
    {function() limit("") end, "pas_config.memory_limit is ''"},
    {function() mh.ComputeConfig{plan_ngpus = 1, memory_limit = 7} end, "ComputeConfig: unknown field 'memory_limit'",
      "pas_config = {memory_limit = ...}"},
    {function() mh.ComputeConfig{plan_ngpus = 1, pipeline_nstages = 2} end, "pas_config = {pipeline_nstages = ...}"},
  }
end

function tests.test_norms_by_name()
  local x = mh.tensor{{3.0, 4.0}, {6.0, 8.0}}
  testing.assert_close(x:norm("fro"):item(), 125 ^ 0.5)
  testing.assert_close(mh.norm(x, "fro", {0, 1}, true), mh.tensor{{125 ^ 0.5}})
  testing.assert_close(x:norm{p = "fro", dim = 1}, mh.tensor{5.0, 10.0})
  testing.assert_close(x:norm{dim = 1}, mh.tensor{5.0, 10.0})
  testing.assert_close(x:norm("fro", {keepdim = true}), mh.tensor{{125 ^ 0.5}})
  testing.assert_close(x:norm{keepdim = true, dtype = "float64"}, mh.tensor({{125 ^ 0.5}}, {dtype = "float64"}))
  testing.assert_close(x:norm(1, {keepdim = true}), mh.tensor{{21.0}})
  testing.assert_equal(mh.tensor(2.0):norm{keepdim = true}:item(), 2.0)
  testing.assert_equal({x:norm(math.huge):item(), x:norm(-math.huge):item()}, {8.0, 3.0})
  refused {
    {function() x:norm("nuc") end, "norm: unknown order 'nuc'", "have  a number, \"fro\", math.huge, -math.huge",
      "mh.linalg_matrix_norm(x, \"nuc\")"},
    {function() mh.norm(x, {p = "l2"}) end, "norm: unknown order 'l2'"},
  }
end

return tests
