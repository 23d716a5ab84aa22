-- SPDX-License-Identifier: Apache-2.0
-- An optimizer takes over and refuses these: parameter groups and states.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local optim = mh.optim

local function parameter(value) return mh.tensor({value, -value}, {dtype = "float64", requires_grad = true}) end

local function step(opt, ...)
  opt:zero_grad()
  local loss = 0
  for _, p in ipairs {...} do loss = (p ^ 2):sum() + loss end
  loss:backward()
  opt:step()
end

local tests = {}

function tests.test_a_parameter_belongs_to_one_group()
  local a, b = parameter(1), parameter(2)
  local opt = optim.Adam({a}, {lr = 0.1})
  testing.assert_error(function() opt:add_param_group{params = {a}} end,
      "Adam: a parameter is given twice\n  have  shape [")
  testing.assert_error(function() opt:add_param_group{params = {b, b}} end,
      "Adam: a parameter is given twice\n  have  shape [")
  assert(#opt.param_groups == 1, "a refused group is not added")
  opt:add_param_group{params = {b}, lr = 0.2}
  testing.assert_error(function() opt:add_param_group{params = {b}} end,
      "Adam: a parameter is given twice\n  have  shape [")
  assert(#opt.param_groups == 2)
end

function tests.test_options_of_imported_states()
  local opt = optim.SGD({parameter(1)}, {lr = 0.1})
  local state = {state = {}, param_groups = {{params = {0}, lr = 0.1}}}
  local function import(options)
    return function() mh.checkpoint.import_optimizer(opt, state, options) end
  end
  testing.assert_error(import{nmes = {}}, "checkpoint.import_optimizer: unknown option 'nmes'; did you mean 'names'?")
  state.state[0] = 3
  testing.assert_error(import(), "checkpoint.import_optimizer: the state of parameter 0 is not a table\n  have  3")
  testing.assert_error(import{names = "w"}, "checkpoint.import_optimizer: names are a list\n  have  'w'")
end

-- Those that are written in Lua, too.
function tests.test_what_an_optimizer_refuses_changes_nothing()
  for _, class in ipairs {"Adam", "NAdam"} do
    local own = parameter(1)
    local opt, same = optim[class]({own}, {lr = 0.1}), optim.SGD({own}).param_groups[1].params[1]
    testing.assert_error(function() opt:add_param_group{params = {same}} end, "a parameter is given twice")
    testing.assert_equal(#opt.param_groups, 1)
    testing.assert_error(function() return opt.lr end, "'lr'")
    testing.assert_error(function() opt.lr = 0.5 end, "'lr'")
    testing.assert_error(function() opt.param_groups = {} end, "param_groups")
    testing.assert_equal(opt.name, class)
  end
end

function tests.test_an_entry_without_state_forgets_the_state()
  local a, b = parameter(1), parameter(1)
  local used, fresh = optim.Adam({a}, {lr = 0.1}), optim.Adam({b}, {lr = 0.1})
  local blank = fresh:state_dict()
  step(used, a)
  assert(next(used:state_dict().state[1]) ~= nil, "a step makes a state")
  used:load_state_dict(blank)
  assert(next(used:state_dict().state[1]) == nil, "the state of a parameter without one is gone")
  mh.no_grad(function() a:copy_(b) end)
  for _ = 1, 3 do
    step(used, a)
    step(fresh, b)
  end
  testing.assert_equal(a, b)
end

function tests.test_states_that_lack_what_a_step_needs_are_refused()
  local cases = {
    {"AdamW", {amsgrad = true}, "max_exp_avg_sq", "a tensor"}, {"Adam", {}, "step", "an integer"},
    {"RMSprop", {centered = true}, "grad_avg", "a tensor"}, {"RMSprop", {momentum = 0.9}, "momentum_buffer",
  "a tensor"}, }
  for _, case in ipairs(cases) do
    local name, options, key, wanted = table.unpack(case)
    local a = parameter(1)
    local opt = optim[name]({a}, options)
    step(opt, a)
    local state = opt:state_dict()
    opt:load_state_dict(state)
    state.state[1][key] = nil
    testing.assert_error(function() opt:load_state_dict(state) end,
        ("load_state_dict: '%s' of parameter 1 is nil, expected %s"):format(key, wanted))
  end
end

function tests.test_states_of_another_kind_of_numbers_are_refused()
  local a = parameter(1)
  local opt = optim.Adam({a}, {lr = 0.1})
  step(opt, a)
  local state = opt:state_dict()
  local wanted = "expected a tensor of real floating-point numbers"
  for _, dtype in ipairs {"int32", "bool", "complex128"} do
    local good = state.state[1].exp_avg_sq
    state.state[1].exp_avg_sq = good:to(dtype)
    testing.assert_error(function() opt:load_state_dict(state) end, wanted)
    state.state[1].exp_avg_sq = good
  end
  state.state[1].exp_avg_sq = state.state[1].exp_avg_sq:to("float32")
  opt:load_state_dict(state)
  step(opt, a)
end

function tests.test_numpys_words_for_dims()
  local x = mh.arange(6, {dtype = "float64"}):view(2, 3)
  testing.assert_equal(x:sum{axis = 1, keepdims = true}, x:sum{dim = 1, keepdim = true})
  testing.assert_equal(x:mean{dim = 0, keepdims = true}, x:mean{dim = 0, keepdim = true})
end

return tests
