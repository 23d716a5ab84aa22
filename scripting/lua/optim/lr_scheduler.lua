-- SPDX-License-Identifier: Apache-2.0
-- Learning-rate schedules: `local schedule = optim.StepLR(opt, 30, {gamma = 0.1})`, then `schedule:step()` after the
-- optimizer's. Formulas, closed in the step count, from torch.optim.lr_scheduler.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local checks = require "moonhalo.internal.field_checks"
local schedule_checks = require "moonhalo.optim.schedule_checks"
local sorted = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"

local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local fail = mh.fail
local schedulers = {}

local Schedule = {}

-- Fields that every schedule may have beside its arguments; `_rate` is that of schedules that follow the step count.
local kFields = " base_lrs last_epoch last_lrs max_lrs num_training_steps _rate _product _product_at"

local rates_of_optimizer = require("moonhalo.internal.registries").rates_of_optimizer

local function check_optimizer(op, optimizer)
  if not mh._is_optimizer(optimizer) then
    fail(("%s: the first argument is %s, expected an optimizer\n" ..
        "  fix   make one first: local opt = optim.AdamW(net:parameters(), {lr = 1e-3})"):format(op,
            mh._describe(optimizer)))
  end
end

--- The learning rates that the optimizer had when its first schedule was made: the first of several schedules has
--- changed them when the next is made (PyTorch's `initial_lr`).
local function initial_rates(op, optimizer)
  check_optimizer(op, optimizer)
  local rates = rates_of_optimizer[optimizer] or {}
  rates_of_optimizer[optimizer] = rates
  local copy = {}
  for i, group in ipairs(optimizer.param_groups) do
    rates[i] = rates[i] or group.lr
    copy[i] = rates[i]
  end
  return copy
end

--- One of `known`.
local function choice(name, key, known)
  return function(value) arguments.choice(name, key, value, known) end
end

local function any_number(fix)
  return checks.number("a number", function(value) return value == value end, fix)
end

--- Class `name` whose `rate(self, base, group)` gives the learning rate after `self.last_epoch` steps. `own`: as in
--- schedule_checks.of.
local function define(name, entries, rate, prepare, own)
  table.insert(entries, 1, "optimizer")
  entries[#entries + 1] = {"last_epoch", -1}
  local spec = signature(name, entries)
  local class = setmetatable({}, {__index = Schedule})
  local meta = strict.class {name = name, methods = class, fields = table.concat(spec.names, " ") .. kFields,
    word = "Schedule", checks = schedule_checks.of(spec, own)}
  class._rate = rate
  schedulers[name] = function(...)
    local values = read(spec, ...)
    local rates = initial_rates(name, values.optimizer)
    local self = strict.object(meta, values, spec.names)
    self.base_lrs = rates
    if prepare then prepare(self, name) end
    self:step()
    return self
  end
  return class
end

--- scheduler:step(...) -> nothing
---   Counts one step and sets the learning rate of every group. Call it after the optimizer's step.
---   ReduceLROnPlateau:step(metric) takes a number that is the same on all ranks.
---   returns     nothing
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.ExponentialLR(opt, 0.5)
---     scheduler:step()
---     opt.param_groups[1].lr    --> 4.0
function Schedule:step(metric)
  local name, groups = getmetatable(self).__name, #self.optimizer.param_groups
  if metric ~= nil then
    fail(("%s: step takes nothing, got %s\n  fix   optim.ReduceLROnPlateau follows a metric"):format(name,
        mh._describe(metric)))
  end
  if groups ~= #self.base_lrs then
    fail(("%s: the schedule was made for other groups\n  have  %d groups of parameters, %d when it was made\n" ..
      "  fix   make it after the last add_param_group"):format(name, groups, #self.base_lrs))
  end
  self.last_epoch = self.last_epoch + 1
  for i, group in ipairs(self.optimizer.param_groups) do group.lr = self:_rate(self.base_lrs[i], i) end
end

--- scheduler:get_last_lr() -> {number}
---   The learning rates in force.
---   returns     {number}    one for each group of parameters
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     mh.optim.StepLR(opt, 10):get_last_lr()    --> {8.0}
function Schedule:get_last_lr()
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr end
  return rates
end

--- scheduler:state_dict() -> table
---   The state, as mh.checkpoint saves it: give the schedule as an entry of the checkpoint. Functions and the optimizer
---   are not part of it.
---   returns     table       numbers, strings, booleans and lists by name
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     mh.optim.StepLR(opt, 10):state_dict().step_size    --> 10
function Schedule:state_dict()
  local state = {}
  for key, value in pairs(self) do
    local kind = type(value)
    if kind == "number" or kind == "string" or kind == "boolean" then
      state[key] = value
    elseif kind == "table" and key ~= "optimizer" and type(value[1]) == "number" then
      state[key] = {table.unpack(value)}
    end
  end
  return state
end

--- scheduler:load_state_dict(state) -> nothing
---   Continues where another schedule was; settings come from the state too, as in PyTorch.
---   state       table       of state_dict()
---   returns     nothing
---   collective  no
---   errors      ValueError: a value is missing, of another type or out of range, or another number of groups; then
---     nothing changes
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local a, b = mh.optim.ExponentialLR(opt, 0.5), mh.optim.ExponentialLR(opt, 0.5)
---     a:step()
---     b:load_state_dict(a:state_dict())
---     b.last_epoch    --> 1
function Schedule:load_state_dict(state)
  self:_check_state(state)
  self:_take_state(state)
end

--- The errors of load_state_dict, before anything changes.
function Schedule:_check_state(state)
  local function refuse(...) fail("load_state_dict: " .. (...):format(select(2, ...))) end
  if type(state) ~= "table" or mh.nn.is_module(state) then
    refuse("expected the table of state_dict(), got %s", mh._describe(state))
  end
  local own = self:state_dict()
  for _, key in ipairs {"last_epoch", "base_lrs"} do
    if state[key] == nil then refuse("'%s' is missing", key) end
  end
  for key, value in pairs(state) do
    local wanted = own[key]
    if wanted == nil and (not getmetatable(self).may[key] or self[key] ~= nil) then
      refuse("'%s' is not a value of a schedule%s", tostring(key), mh.did_you_mean(tostring(key), sorted(own)))
    end
    if wanted ~= nil and type(value) ~= type(wanted) then
      refuse("'%s' is a %s, expected a %s", key, type(value), type(wanted))
    end
    for _, element in ipairs(type(value) == "table" and value or {}) do
      if type(element) ~= "number" then refuse("'%s' holds a %s, expected numbers", tostring(key), type(element)) end
    end
    local expected = strict.problem(self, key, value)
    if expected then
      refuse("'%s' is %s, expected %s\n  fix   give what state_dict() gave", key, mh._describe(value), expected)
    end
  end
  if #state.base_lrs ~= #own.base_lrs then
    refuse("'base_lrs' is of %d groups, the optimizer has %d", #state.base_lrs, #own.base_lrs)
  end
end

function Schedule:_take_state(state)
  for key, value in pairs(state) do self[key] = type(value) == "table" and {table.unpack(value)} or value end
  for i, group in ipairs(self.optimizer.param_groups) do
    group.lr = self.last_lrs and self.last_lrs[i] or self:_rate(self.base_lrs[i], i)
  end
end

--- mh.optim.StepLR(optimizer, step_size, {gamma = 0.1, last_epoch = -1}) -> Scheduler
---   Multiplies the learning rate by gamma every step_size steps.
---   optimizer   Optimizer   whose rates are set
---   step_size   integer     steps between two changes
---   gamma       number      the factor
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: a number that is out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.StepLR(opt, 2, {gamma = 0.5})
---     for i = 1, 5 do scheduler:step() end
---     scheduler:get_last_lr()    --> {2.0}

define("StepLR", {"step_size", {"gamma", 0.1}}, function(self, base)
  return base * self.gamma ^ (self.last_epoch // self.step_size)
end)

--- mh.optim.MultiStepLR(optimizer, milestones, {gamma = 0.1, last_epoch = -1}) -> Scheduler
---   Multiplies the learning rate by gamma at each milestone.
---   optimizer   Optimizer   whose rates are set
---   milestones   {integer}   steps at which the rate changes
---   gamma       number      the factor
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: milestones that are not a list of numbers
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.MultiStepLR(opt, {1, 3}, {gamma = 0.5})
---     for i = 1, 2 do scheduler:step() end
---     scheduler:get_last_lr()    --> {4.0}

define("MultiStepLR", {"milestones", {"gamma", 0.1}}, function(self, base)
  local passed = 0
  for _, milestone in ipairs(self.milestones) do
    if milestone <= self.last_epoch then passed = passed + 1 end
  end
  return base * self.gamma ^ passed
end)

--- mh.optim.ExponentialLR(optimizer, gamma, last_epoch = -1) -> Scheduler
---   Multiplies the learning rate by gamma at each step.
---   optimizer   Optimizer   whose rates are set
---   gamma       number      the factor
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.ExponentialLR(opt, 0.5)
---     scheduler:step()
---     scheduler:get_last_lr()    --> {4.0}

define("ExponentialLR", {"gamma"}, function(self, base) return base * self.gamma ^ self.last_epoch end)

--- mh.optim.LinearLR(optimizer, {start_factor = 1 / 3, end_factor = 1.0, total_iters = 5,
---     last_epoch = -1}) -> Scheduler
---   Changes the factor of the learning rate linearly, for a warm-up or an end.
---   optimizer   Optimizer   whose rates are set
---   start_factor   number   factor at the first step
---   end_factor   number     factor from step total_iters on
---   total_iters   integer   steps of the change
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: a number that is out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.LinearLR(opt, {start_factor = 0.5, total_iters = 2})
---     scheduler:step()
---     scheduler:get_last_lr()    --> {6.0}

define("LinearLR", {{"start_factor", 1 / 3}, {"end_factor", 1.0}, {"total_iters", 5}}, function(self, base)
  local done = math.min(self.last_epoch, self.total_iters) / self.total_iters
  return base * (self.start_factor + (self.end_factor - self.start_factor) * done)
end)

--- mh.optim.ConstantLR(optimizer, {factor = 1 / 3, total_iters = 5, last_epoch = -1}) -> Scheduler
---   Multiplies the learning rate by factor during the first steps.
---   optimizer   Optimizer   whose rates are set
---   factor      number      the factor
---   total_iters   integer   for how many steps
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: a number that is out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     mh.optim.ConstantLR(opt, {factor = 0.25}):get_last_lr()    --> {2.0}

define("ConstantLR", {{"factor", 1 / 3}, {"total_iters", 5}}, function(self, base)
  return self.last_epoch < self.total_iters and base * self.factor or base
end)

--- mh.optim.PolynomialLR(optimizer, {total_iters = 5, power = 1.0, last_epoch = -1}) -> Scheduler
---   Lowers the learning rate to zero: the factor is (1 - steps / total_iters)^power.
---   optimizer   Optimizer   whose rates are set
---   total_iters   integer   steps until zero
---   power       number      exponent
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: a number that is out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.PolynomialLR(opt, {total_iters = 4})
---     scheduler:step()
---     scheduler:get_last_lr()    --> {6.0}

define("PolynomialLR", {{"total_iters", 5}, {"power", 1.0}}, function(self, base)
  return base * (1 - math.min(self.last_epoch, self.total_iters) / self.total_iters) ^ self.power
end)

--- mh.optim.CosineAnnealingLR(optimizer, T_max, {eta_min = 0.0, last_epoch = -1}) -> Scheduler
---   Lowers the learning rate along half a cosine.
---   optimizer   Optimizer   whose rates are set
---   T_max       integer     steps until the lowest rate
---   eta_min     number      the lowest rate
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: a number that is out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.CosineAnnealingLR(opt, 2)
---     scheduler:step()
---     ("%.3f"):format(scheduler:get_last_lr()[1])    --> 4.000

define("CosineAnnealingLR", {"T_max", {"eta_min", 0.0}}, function(self, base)
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
end)

--- mh.optim.CosineAnnealingWarmRestarts(optimizer, T_0, {T_mult = 1, eta_min = 0.0, last_epoch = -1}) -> Scheduler
---   Lowers the learning rate along half a cosine again and again.
---   optimizer   Optimizer   whose rates are set
---   T_0         integer     steps of the first period
---   T_mult      integer     how many times longer each period is than the one before
---   eta_min     number      the lowest rate
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: a number that is out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.CosineAnnealingWarmRestarts(opt, 2)
---     for i = 1, 2 do scheduler:step() end
---     scheduler:get_last_lr()    --> {8.0}

define("CosineAnnealingWarmRestarts", {"T_0", {"T_mult", 1}, {"eta_min", 0.0}}, function(self, base)
  local since, period = self.last_epoch, self.T_0
  while since >= period do since, period = since - period, period * self.T_mult end
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * since / period)) / 2
end)

--- The number that the function of a group gives for a step.
local function factor_of(self, name, group, step)
  local fn = self.lr_lambda
  if type(fn) == "table" then fn = fn[group] end
  local factor = fn and fn(step)
  if type(factor) ~= "number" then
    fail(("%s: the factor of group %d is %s, expected a number"):format(name, group - 1, mh._describe(factor)))
  end
  return factor
end

--- mh.optim.LambdaLR(optimizer, lr_lambda, last_epoch = -1) -> Scheduler
---   Multiplies the learning rate by lr_lambda(steps).
---   optimizer   Optimizer   whose rates are set
---   lr_lambda   function|{function}   one, or one for each group
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: the function does not return a number
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.LambdaLR(opt, function(step) return 1 / (1 + step) end)
---     scheduler:step()
---     scheduler:get_last_lr()    --> {4.0}

define("LambdaLR", {"lr_lambda"}, function(self, base, group)
  return base * factor_of(self, "LambdaLR", group, self.last_epoch)
end)

-- Hugging Face's: from zero to the optimizer's rate in num_warmup_steps, then by `factor(self, done)`, where `done` of
-- the steps that are left are done.
local function define_warm(name, entries, factor)
  table.insert(entries, 1, "num_warmup_steps")
  define(name, entries, function(self, base)
    local warm, step = self.num_warmup_steps, self.last_epoch
    if step < warm then return base * step / warm end
    return base * factor(self, self.num_training_steps and (step - warm) / math.max(1, self.num_training_steps - warm))
  end)
end

--- mh.optim.get_constant_schedule_with_warmup(optimizer, num_warmup_steps, last_epoch = -1) -> Scheduler
---   Raises the learning rate from zero during the warm-up, then keeps it.
---   optimizer   Optimizer   whose rates are set
---   num_warmup_steps   integer   steps of the warm-up
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.get_constant_schedule_with_warmup(opt, 4)
---     scheduler:step()
---     scheduler:get_last_lr()    --> {2.0}

define_warm("get_constant_schedule_with_warmup", {}, function() return 1.0 end)
--- mh.optim.get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps,
---     last_epoch = -1) -> Scheduler
---   Raises the learning rate from zero during the warm-up, then lowers it linearly to zero.
---   optimizer   Optimizer   whose rates are set
---   num_warmup_steps   integer   steps of the warm-up
---   num_training_steps   integer   all steps
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.get_linear_schedule_with_warmup(opt, 2, 6)
---     for i = 1, 4 do scheduler:step() end
---     scheduler:get_last_lr()    --> {4.0}

define_warm("get_linear_schedule_with_warmup", {"num_training_steps"},
    function(_, done) return math.max(0.0, 1 - done) end)
--- mh.optim.get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, {num_cycles = 0.5,
---     last_epoch = -1}) -> Scheduler
---   Raises the learning rate from zero during the warm-up, then lowers it along a cosine.
---   optimizer   Optimizer   whose rates are set
---   num_warmup_steps   integer   steps of the warm-up
---   num_training_steps   integer   all steps
---   num_cycles   number     periods of the cosine; 0.5 ends at zero
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.get_cosine_schedule_with_warmup(opt, 2, 6)
---     for i = 1, 4 do scheduler:step() end
---     ("%.3f"):format(scheduler:get_last_lr()[1])    --> 4.000

define_warm("get_cosine_schedule_with_warmup", {"num_training_steps", {"num_cycles", 0.5}}, function(self, done)
  return math.max(0.0, (1 + math.cos(math.pi * self.num_cycles * 2 * done)) / 2)
end)

-- One schedule after the other, warm-up first: `schedulers[i + 1]` begins at step `milestones[i]`.
--- mh.optim.SequentialLR(optimizer, schedulers, milestones, last_epoch = -1) -> Scheduler
---   One schedule after the other, such as a warm-up first.
---   optimizer   Optimizer   whose rates are set
---   schedulers   {Scheduler}   of the same optimizer; they follow the step count alone
---   milestones   {integer}   the steps at which each but the first begins
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: another number of milestones, milestones that do not ascend, another optimizer
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local warm = mh.optim.LinearLR(opt, {start_factor = 0.5, total_iters = 2})
---     local rest = mh.optim.ExponentialLR(opt, 0.5)
---     local scheduler = mh.optim.SequentialLR(opt, {warm, rest}, {2})
---     for i = 1, 3 do scheduler:step() end
---     scheduler:get_last_lr()    --> {4.0}
local Sequential = define("SequentialLR", {"schedulers", "milestones"}, function(self, _, group)
  local passed = 0
  for i, milestone in ipairs(self.milestones) do
    if milestone <= self.last_epoch then passed = i end
  end
  local schedule = self.schedulers[passed + 1]
  schedule.last_epoch = self.last_epoch - (self.milestones[passed] or 0)
  return schedule:_rate(schedule.base_lrs[group], group)
end, function(self, name)
  if #self.milestones ~= #self.schedulers - 1 then
    fail(("%s: %d milestones for %d schedules\n  fix   give the step at which each but the first begins"):format(name,
      #self.milestones, #self.schedulers))
  end
  for i, milestone in ipairs(self.milestones) do
    if milestone <= (self.milestones[i - 1] or 0) then
      fail(("%s: milestones must be above 0 and ascend"):format(name))
    end
  end
  for i, schedule in ipairs(self.schedulers) do
    if type(schedule) ~= "table" or not schedule._rate then
      fail(("%s: schedule %d does not follow the step count alone"):format(name, i))
    end
    if not rawequal(schedule.optimizer, self.optimizer) then
      fail(("%s: schedule %d has another optimizer"):format(name, i))
    end
  end
end)

function Sequential:state_dict()
  local state = Schedule.state_dict(self)
  state.schedulers = {}
  for i, schedule in ipairs(self.schedulers) do state.schedulers[i] = schedule:state_dict() end
  return state
end

--- The state without those of the schedules in it.
local function without_schedules(state)
  local own = {}
  for key, value in pairs(state) do
    if key ~= "schedulers" then own[key] = value end
  end
  return own
end

function Sequential:_check_state(state)
  local nested = type(state) == "table" and rawget(state, "schedulers")
  if type(nested) ~= "table" or #nested ~= #self.schedulers then
    fail(("load_state_dict: 'schedulers' is %s, expected %d states"):format(type(nested) == "table" and #nested
      or mh._describe(nested), #self.schedulers))
  end
  for i, schedule in ipairs(self.schedulers) do schedule:_check_state(nested[i]) end
  Schedule._check_state(self, without_schedules(state))
end

function Sequential:_take_state(state)
  for i, schedule in ipairs(self.schedulers) do schedule:_take_state(state.schedulers[i]) end
  Schedule._take_state(self, without_schedules(state))
end

--- Anneals from `from` to `to` over `part` in [0, 1].
local function anneal(strategy, from, to, part)
  if strategy == "cos" then return to + (from - to) / 2 * (1 + math.cos(math.pi * part)) end
  return from + (to - from) * part
end

local function list_of(value, count)
  if type(value) == "table" then return value end
  local list = {}
  for i = 1, count do list[i] = value end
  return list
end

--- total_steps of a OneCycleLR, or what takes its place.
local function steps_of_cycle(self)
  if self.total_steps then return self.total_steps end
  if not (self.epochs and self.steps_per_epoch) then
    fail("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
  end
  return self.epochs * self.steps_per_epoch
end

-- Momentum is not cycled.
--- mh.optim.OneCycleLR(optimizer, max_lr, {total_steps = nil, epochs = nil, steps_per_epoch = nil, pct_start = 0.3,
---     anneal_strategy = "cos", div_factor = 25.0, final_div_factor = 1e4, three_phase = false,
---     last_epoch = -1}) -> Scheduler
---   Raises the learning rate to max_lr and lowers it again, as torch's OneCycleLR; momentum does not change.
---   optimizer   Optimizer   whose rates are set
---   max_lr      number|{number}   the highest rate, one or one for each group
---   total_steps   integer?   all steps; or epochs and steps_per_epoch
---   epochs      integer?    number of epochs
---   steps_per_epoch   integer?   steps of an epoch
---   pct_start   number      part of the steps during which the rate rises
---   anneal_strategy   "cos"|"linear"   how it changes
---   div_factor   number     the first rate is max_lr / div_factor
---   final_div_factor   number   the last rate is the first one / final_div_factor
---   three_phase   boolean   lowers it first to the first rate
---   last_epoch   integer    steps that are done, less 1
---   returns     Scheduler   call its step() after the optimizer's
---   collective  no
---   errors      ValueError: the number of steps is not given, or is exceeded
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     mh.optim.OneCycleLR(opt, 50, {total_steps = 100}):get_last_lr()    --> {2.0}

define("OneCycleLR", {"max_lr", optional "total_steps", optional "epochs", optional "steps_per_epoch",
  {"pct_start", 0.3},
  {"anneal_strategy", "cos"}, {"div_factor", 25.0}, {"final_div_factor", 1e4}, {"three_phase", false}},
  function(self, _, group)
    local steps = steps_of_cycle(self)
    if self.last_epoch > steps then
      fail(("OneCycleLR: step %d of a schedule of %d steps"):format(self.last_epoch, steps))
    end
    local top = self.max_lrs[group]
    local first = top / self.div_factor
    local last = first / self.final_div_factor
    local up = self.pct_start * steps - 1
    local phases
    if self.three_phase then
      phases = {{up, first, top}, {2 * up, top, first}, {steps - 1, first, last}}
    else
      phases = {{up, first, top}, {steps - 1, top, last}}
    end
    local start = 0
    for i, phase in ipairs(phases) do
      if self.last_epoch <= phase[1] or i == #phases then
        return anneal(self.anneal_strategy, phase[2], phase[3], (self.last_epoch - start) / (phase[1] - start))
      end
      start = phase[1]
    end
  end,
  function(self)
    self.total_steps = steps_of_cycle(self)
    self.max_lrs = list_of(self.max_lr, #self.base_lrs)
  end, {anneal_strategy = choice("OneCycleLR", "anneal_strategy", {"cos", "linear"}),
    three_phase = checks.flag "three_phase = false"})

-- ---- Factors of factors -------------------------------------------------------------------------------------------

--- mh.optim.MultiplicativeLR(optimizer, lr_lambda, {last_epoch = -1}) -> Scheduler
---   The first rate times the factors lr_lambda(1), lr_lambda(2), ... of all steps so far.
---   optimizer   Optimizer   whose rates it sets
---   lr_lambda   function|{function}   the factor of a step, for all groups or for each
---   last_epoch   integer    the step before the first
---   returns     Scheduler   the rate is set at once
---   collective  no
---   errors      ValueError: no optimizer, or a value out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.MultiplicativeLR(opt, function() return 0.5 end)
---     scheduler:step()
---     scheduler:get_last_lr()    --> {4.0}
define("MultiplicativeLR", {"lr_lambda"}, function(self, base, group)
  self._product, self._product_at = self._product or {}, self._product_at or {}
  if self._product_at[group] ~= self.last_epoch then
    local from, product = 1, 1.0
    if self._product_at[group] == self.last_epoch - 1 then
      from, product = self.last_epoch, self._product[group]
    end
    for step = from, self.last_epoch do product = product * factor_of(self, "MultiplicativeLR", group, step) end
    self._product[group], self._product_at[group] = product, self.last_epoch
  end
  return base * self._product[group]
end)

--- mh.optim.CyclicLR(optimizer, base_lr, max_lr, {step_size_up = 2000, step_size_down = nil, mode = "triangular",
---     gamma = 1.0, cycle_momentum = true, base_momentum = 0.8, max_momentum = 0.9, last_epoch = -1}) -> Scheduler
---   From base_lr to max_lr in step_size_up steps and back in step_size_down, again and again (Smith 2017).
---   optimizer   Optimizer   whose rates it sets
---   base_lr     number      least rate
---   max_lr      number|{number}   largest rate, for all groups or for each
---   step_size_up   integer   steps up
---   step_size_down   integer?   steps down; as many if left out
---   mode        "triangular"|"triangular2"|"exp_range"   the height stays, is halved by each cycle, or is
---     gamma ^ step
---   gamma       number      of "exp_range"
---   cycle_momentum   boolean   momentum, or the first of betas, goes the other way
---   base_momentum   number   least momentum
---   max_momentum   number    largest momentum
---   last_epoch   integer    the step before the first
---   returns     Scheduler   the rate is set at once
---   collective  no
---   errors      ValueError: no optimizer, or a value out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.CyclicLR(opt, 1, 3, {step_size_up = 2, cycle_momentum = false})
---     scheduler:step()
---     scheduler:get_last_lr()    --> {2.0}
define("CyclicLR", {"base_lr", "max_lr", {"step_size_up", 2000}, optional "step_size_down", {"mode", "triangular"},
  {"gamma", 1.0}, {"cycle_momentum", true}, {"base_momentum", 0.8}, {"max_momentum", 0.9}}, function(self, _, group)
    local down = self.step_size_down or self.step_size_up
    local total, ratio = self.step_size_up + down, self.step_size_up / (self.step_size_up + down)
    local cycle = self.last_epoch // total + 1
    local at = 1 + self.last_epoch / total - cycle
    local height = at <= ratio and at / ratio or (at - 1) / (ratio - 1)
    if self.mode == "triangular2" then height = height / 2.0 ^ (cycle - 1) end
    if self.mode == "exp_range" then height = height * self.gamma ^ self.last_epoch end
    if self.cycle_momentum then
      local momentum, options = self.max_momentum - (self.max_momentum - self.base_momentum) * height,
          self.optimizer.param_groups[group]
      if strict.get(options, "betas") then
        options.betas = {momentum, options.betas[2]}
      else
        options.momentum = momentum
      end
    end
    local base = list_of(self.base_lr, group)[group]
    return base + (self.max_lrs[group] - base) * height
  end,
  function(self, name)
    local first = self.optimizer.param_groups[1]
    if self.cycle_momentum and strict.get(first, "betas") == nil and strict.get(first, "momentum") == nil then
      fail(("%s: %s has no momentum\n  fix   cycle_momentum = false"):format(name, self.optimizer.name))
    end
    self.max_lrs = list_of(self.max_lr, #self.base_lrs)
  end, {mode = choice("CyclicLR", "mode", {"triangular", "triangular2", "exp_range"}),
    cycle_momentum = checks.flag "cycle_momentum = false",
    base_momentum = any_number("base_momentum = 0.8"), max_momentum = any_number("max_momentum = 0.9")})

-- Schedules that PyTorch can chain, which are a rate times a factor of the step.
local kFactors = {StepLR = true, MultiStepLR = true, ExponentialLR = true, LinearLR = true, ConstantLR = true,
  PolynomialLR = true, MultiplicativeLR = true, CosineAnnealingLR = true}

--- mh.optim.ChainedScheduler(optimizer, schedulers, {last_epoch = -1}) -> Scheduler
---   All factors of several schedules at once. Step this one alone.
---   optimizer   Optimizer   whose rates it sets
---   schedulers   {Scheduler}   StepLR, MultiStepLR, ExponentialLR, LinearLR, ConstantLR, PolynomialLR,
---     MultiplicativeLR or CosineAnnealingLR with eta_min = 0, of the same optimizer
---   last_epoch   integer    the step before the first
---   returns     Scheduler   the rate is set at once
---   collective  no
---   errors      ValueError: no optimizer, or a value out of range
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local parts = {mh.optim.ExponentialLR(opt, 0.5), mh.optim.StepLR(opt, 1, {gamma = 0.5})}
---     local scheduler = mh.optim.ChainedScheduler(opt, parts)
---     scheduler:step()
---     scheduler:get_last_lr()    --> {2.0}
local Chained = define("ChainedScheduler", {"schedulers"}, function(self, base, group)
  local rate = base
  for _, schedule in ipairs(self.schedulers) do
    schedule.last_epoch = self.last_epoch
    rate = rate * schedule:_rate(1.0, group)
  end
  return rate
end, function(self, name)
  for i, schedule in ipairs(self.schedulers) do
    local kind = type(schedule) == "table" and getmetatable(schedule) and getmetatable(schedule).__name
    if not kFactors[kind] or (kind == "CosineAnnealingLR" and schedule.eta_min ~= 0) then
      fail(("%s: schedule %d is %s, whose rate is not a factor of the step alone\n  have  %s"):format(name, i, kind
          or mh._describe(schedule), table.concat(sorted(kFactors), ", ") .. " (with eta_min = 0)"))
    end
    if not rawequal(schedule.optimizer, self.optimizer) then
      fail(("%s: schedule %d has another optimizer"):format(name, i))
    end
  end
end)
Chained.state_dict = Sequential.state_dict
Chained._check_state, Chained._take_state = Sequential._check_state, Sequential._take_state

-- ---- ReduceLROnPlateau: driven by a metric instead of the step count ----------------------------------------------

--- mh.optim.ReduceLROnPlateau(optimizer, {mode = "min", factor = 0.1, patience = 10, threshold = 1e-4,
---     threshold_mode = "rel", cooldown = 0, min_lr = 0.0, eps = 1e-8}) -> Scheduler
---   Lowers the learning rate when a metric no longer improves: scheduler:step(metric).
---   optimizer   Optimizer   whose rates are set
---   mode        "min"|"max"   whether a smaller or a larger metric is better
---   factor      number      the factor of the rate, below 1
---   patience    integer     steps without improvement that are accepted
---   threshold   number      the least improvement
---   threshold_mode   "rel"|"abs"   relative to the best metric, or absolute
---   cooldown    integer     steps after a change that do not count
---   min_lr      number|{number}   the lowest rate
---   eps         number      the least change of the rate
---   returns     Scheduler   its step takes a number that is the same on all ranks
---   collective  no
---   errors      ValueError: factor is not below 1, or the metric is not a number
---   example
---     local opt = mh.optim.SGD({nn.Parameter(mh.ones{1})}, {lr = 8})
---     local scheduler = mh.optim.ReduceLROnPlateau(opt, {patience = 0, factor = 0.5})
---     for i = 1, 2 do scheduler:step(1.0) end
---     opt.param_groups[1].lr    --> 4.0

local kPlateau = signature("ReduceLROnPlateau", {"optimizer", {"mode", "min"}, {"factor", 0.1}, {"patience", 10},
  {"threshold", 1e-4}, {"threshold_mode", "rel"}, {"cooldown", 0}, {"min_lr", 0.0}, {"eps", 1e-8}})

local Plateau = setmetatable({}, {__index = Schedule})
local plateau_meta = strict.class {name = "ReduceLROnPlateau", methods = Plateau, word = "Schedule",
  fields = table.concat(kPlateau.names, " ") .. kFields .. " best num_bad_epochs cooldown_counter",
  checks = schedule_checks.of(kPlateau, {mode = choice("ReduceLROnPlateau", "mode", {"min", "max"}),
    threshold_mode = choice("ReduceLROnPlateau", "threshold_mode", {"rel", "abs"}),
    factor = checks.number("a number below 1", function(value) return value < 1 end, "factor = 0.1"),
    patience = any_number("patience = 10"), threshold = any_number("threshold = 1e-4"),
    cooldown = any_number("cooldown = 0"), eps = any_number("eps = 1e-8"),
    min_lr = function(value)
      if not schedule_checks.is_number_or_list(value) then return "a number, or one for each group", "min_lr = 0.0" end
    end})}

function schedulers.ReduceLROnPlateau(...)
  local values = read(kPlateau, ...)
  check_optimizer("ReduceLROnPlateau", values.optimizer)
  local self = strict.object(plateau_meta, values, kPlateau.names)
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr end
  self.base_lrs = rates
  self.last_lrs = {table.unpack(self.base_lrs)}
  self.best = self.mode == "min" and math.huge or -math.huge
  self.num_bad_epochs, self.cooldown_counter, self.last_epoch = 0, 0, 0
  return self
end

function Plateau:_is_better(metric)
  local sign = self.mode == "min" and -1 or 1
  if self.threshold_mode == "abs" then return sign * (metric - self.best) > self.threshold end
  return sign * (metric - self.best * (1 + sign * self.threshold)) > 0
end

--- `metric` is a number that every rank holds identically.
function Plateau:step(metric)
  if type(metric) ~= "number" then fail("ReduceLROnPlateau: step takes the metric, a number") end
  self.last_epoch = self.last_epoch + 1
  if self:_is_better(metric) then
    self.best, self.num_bad_epochs = metric, 0
  else
    self.num_bad_epochs = self.num_bad_epochs + 1
  end
  if self.cooldown_counter > 0 then self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0 end
  if self.num_bad_epochs > self.patience then
    for i, group in ipairs(self.optimizer.param_groups) do
      local lowest = type(self.min_lr) == "table" and self.min_lr[i] or self.min_lr
      local lr = math.max(group.lr * self.factor, lowest)
      if group.lr - lr > self.eps then group.lr = lr end
    end
    self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
  end
  self.last_lrs = self:get_last_lr()
end

return strict.table("optim.lr_scheduler", schedulers)
