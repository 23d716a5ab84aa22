-- SPDX-License-Identifier: Apache-2.0
-- Learning-rate schedules: `local schedule = optim.StepLR(opt, 30, {gamma = 0.1})`, then `schedule:step()` after the
-- optimizer's. Formulas, closed in the step count, from torch.optim.lr_scheduler.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local sorted = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"

local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local fail = mh.fail
local schedulers = {}

local Schedule = {}

-- Fields that every schedule may have beside its arguments; `_rate` is that of schedules that follow the step count.
local kFields = " base_lrs last_epoch last_lrs max_lrs num_training_steps _rate"

local kInitial = setmetatable({}, {__mode = "k"})

--- The learning rates that the optimizer had when its first schedule was made: the first of several schedules has
--- changed them when the next is made (PyTorch's `initial_lr`).
local function initial_rates(op, optimizer)
  if not mh._is_optimizer(optimizer) then
    fail(("%s: the first argument is %s, wanted an optimizer\n" ..
        "  fix   make one first: local opt = optim.AdamW(net:parameters(), {lr = 1e-3})"):format(op,
            mh._describe(optimizer)))
  end
  local rates = kInitial[optimizer] or {}
  kInitial[optimizer] = rates
  local copy = {}
  for i, group in ipairs(optimizer.param_groups) do
    rates[i] = rates[i] or group.lr
    copy[i] = rates[i]
  end
  return copy
end

--- The least value of a number of steps; other numbers may be any.
local kLeast = {step_size = 1, T_max = 1, T_0 = 1, T_mult = 1, total_iters = 1, total_steps = 1, epochs = 1,
  steps_per_epoch = 1,
  num_warmup_steps = 0, num_training_steps = 0, last_epoch = -1, gamma = false, start_factor = false,
  end_factor = false, factor = false,
  power = false, eta_min = false, num_cycles = false, pct_start = false, div_factor = false, final_div_factor = false}

local function is_list_of(value, kind)
  if type(value) ~= "table" or getmetatable(value) then return false end
  for _, one in ipairs(value) do
    if type(one) ~= kind then return false end
  end
  return #value > 0
end

--- A number that is none, or below its least, would stop the schedule in the middle of a run, or never.
local function check_values(name, values)
  for key, least in pairs(kLeast) do
    local value = rawget(values, key)
    if value ~= nil and (type(value) ~= "number" or not (value >= (least or -math.huge))) then
      fail(("%s: %s is %s, wanted a number%s"):format(name, key, mh._describe(value), least and " of at least " .. least
          or ""))
    end
  end
  local rules = {milestones = {"number", "a list of steps"}, schedulers = {"table", "a list of schedules"},
    lr_lambda = {"function", "a function, or one for each group"},
      max_lr = {"number", "a number, or one for each group"}}
  for key, rule in pairs(rules) do
    local value, alone = rawget(values, key), key == "lr_lambda" or key == "max_lr"
    if value ~= nil and not is_list_of(value, rule[1]) and not (alone and type(value) == rule[1]) then
      fail(("%s: %s is %s, wanted %s"):format(name, key, mh._describe(value), rule[2]))
    end
  end
end

--- Class `name` whose `rate(self, base, group)` gives the learning rate after `self.last_epoch` steps.
local function define(name, entries, rate, prepare)
  table.insert(entries, 1, "optimizer")
  entries[#entries + 1] = {"last_epoch", -1}
  local spec = signature(name, entries)
  local class = setmetatable({}, {__index = Schedule})
  local meta = strict.class {name = name, methods = class, fields = table.concat(spec.names, " ") .. kFields}
  class._rate = rate
  schedulers[name] = function(...)
    local self = setmetatable(read(spec, ...), meta)
    self.base_lrs = initial_rates(name, self.optimizer)
    check_values(name, self)
    if prepare then prepare(self, name) end
    self:step()
    return self
  end
  return class
end

--- Counts one step and sets every group's learning rate.
function Schedule:step()
  self.last_epoch = self.last_epoch + 1
  for i, group in ipairs(self.optimizer.param_groups) do group.lr = self:_rate(self.base_lrs[i], i) end
end

--- The learning rates in force, one per parameter group.
function Schedule:get_last_lr()
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr end
  return rates
end

--- Plain values only: functions and the optimizer are not part of it.
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

--- Settings too come from the state, as in PyTorch.
function Schedule:load_state_dict(state)
  local function refuse(...) fail("load_state_dict: " .. (...):format(select(2, ...))) end
  if type(state) ~= "table" or mh.nn.is_module(state) then
    refuse("wanted the table of state_dict(), got %s", mh._describe(state))
  end
  local own = self:state_dict()
  for _, key in ipairs {"last_epoch", "base_lrs"} do
    if state[key] == nil then refuse("'%s' is missing", key) end
  end
  for key, value in pairs(state) do
    local wanted = own[key]
    if wanted == nil and (rawget(self, key) ~= nil or not getmetatable(self).may[key]) then
      refuse("'%s' is no value of a schedule%s", tostring(key), mh.did_you_mean(tostring(key), sorted(own)))
    end
    if wanted ~= nil and type(value) ~= type(wanted) then
      refuse("'%s' is a %s, wanted a %s", key, type(value), type(wanted))
    end
    for _, element in ipairs(type(value) == "table" and value or {}) do
      if type(element) ~= "number" then refuse("'%s' holds a %s, wanted numbers", tostring(key), type(element)) end
    end
  end
  if #state.base_lrs ~= #own.base_lrs then
    refuse("'base_lrs' is of %d groups, the optimizer has %d", #state.base_lrs, #own.base_lrs)
  end
  for key, value in pairs(state) do self[key] = type(value) == "table" and {table.unpack(value)} or value end
  for i, group in ipairs(self.optimizer.param_groups) do
    group.lr = self.last_lrs and self.last_lrs[i] or self:_rate(self.base_lrs[i], i)
  end
end

define("StepLR", {"step_size", {"gamma", 0.1}}, function(self, base)
  return base * self.gamma ^ (self.last_epoch // self.step_size)
end)

define("MultiStepLR", {"milestones", {"gamma", 0.1}}, function(self, base)
  local passed = 0
  for _, milestone in ipairs(self.milestones) do
    if milestone <= self.last_epoch then passed = passed + 1 end
  end
  return base * self.gamma ^ passed
end)

define("ExponentialLR", {"gamma"}, function(self, base) return base * self.gamma ^ self.last_epoch end)

define("LinearLR", {{"start_factor", 1 / 3}, {"end_factor", 1.0}, {"total_iters", 5}}, function(self, base)
  local done = math.min(self.last_epoch, self.total_iters) / self.total_iters
  return base * (self.start_factor + (self.end_factor - self.start_factor) * done)
end)

define("ConstantLR", {{"factor", 1 / 3}, {"total_iters", 5}}, function(self, base)
  return self.last_epoch < self.total_iters and base * self.factor or base
end)

define("PolynomialLR", {{"total_iters", 5}, {"power", 1.0}}, function(self, base)
  return base * (1 - math.min(self.last_epoch, self.total_iters) / self.total_iters) ^ self.power
end)

define("CosineAnnealingLR", {"T_max", {"eta_min", 0.0}}, function(self, base)
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
end)

define("CosineAnnealingWarmRestarts", {"T_0", {"T_mult", 1}, {"eta_min", 0.0}}, function(self, base)
  local since, period = self.last_epoch, self.T_0
  while since >= period do since, period = since - period, period * self.T_mult end
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * since / period)) / 2
end)

define("LambdaLR", {"lr_lambda"}, function(self, base, group)
  local fn = self.lr_lambda
  if type(fn) == "table" then fn = fn[group] end
  local factor = fn and fn(self.last_epoch)
  if type(factor) ~= "number" then
    fail(("LambdaLR: the factor of group %d is %s, wanted a number"):format(group - 1, mh._describe(factor)))
  end
  return base * factor
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

define_warm("get_constant_schedule_with_warmup", {}, function() return 1.0 end)
define_warm("get_linear_schedule_with_warmup", {"num_training_steps"},
    function(_, done) return math.max(0.0, 1 - done) end)
define_warm("get_cosine_schedule_with_warmup", {"num_training_steps", {"num_cycles", 0.5}}, function(self, done)
  return math.max(0.0, (1 + math.cos(math.pi * self.num_cycles * 2 * done)) / 2)
end)

-- One schedule after the other, warm-up first: `schedulers[i + 1]` begins at step `milestones[i]`.
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

function Sequential:load_state_dict(state)
  local own, nested = {}, type(state) == "table" and rawget(state, "schedulers")
  if type(nested) ~= "table" or #nested ~= #self.schedulers then
    fail(("load_state_dict: 'schedulers' is %s, wanted %d states"):format(type(nested) == "table" and #nested
      or mh._describe(nested), #self.schedulers))
  end
  for key, value in pairs(state) do
    if key ~= "schedulers" then own[key] = value end
  end
  for i, schedule in ipairs(self.schedulers) do schedule:load_state_dict(nested[i]) end
  Schedule.load_state_dict(self, own)
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

-- Momentum is not cycled.
define("OneCycleLR", {"max_lr", optional "total_steps", optional "epochs", optional "steps_per_epoch",
  {"pct_start", 0.3},
  {"anneal_strategy", "cos"}, {"div_factor", 25.0}, {"final_div_factor", 1e4}, {"three_phase", false}},
  function(self, _, group)
    if self.last_epoch > self.total_steps then
      fail(("OneCycleLR: step %d of a schedule of %d steps"):format(self.last_epoch, self.total_steps))
    end
    local top = self.max_lrs[group]
    local first = top / self.div_factor
    local last = first / self.final_div_factor
    local up = self.pct_start * self.total_steps - 1
    local phases
    if self.three_phase then
      phases = {{up, first, top}, {2 * up, top, first}, {self.total_steps - 1, first, last}}
    else
      phases = {{up, first, top}, {self.total_steps - 1, top, last}}
    end
    local start = 0
    for i, phase in ipairs(phases) do
      if self.last_epoch <= phase[1] or i == #phases then
        return anneal(self.anneal_strategy, phase[2], phase[3], (self.last_epoch - start) / (phase[1] - start))
      end
      start = phase[1]
    end
  end,
  function(self, name)
    arguments.choice(name, "anneal_strategy", self.anneal_strategy, {"cos", "linear"})
    if not self.total_steps then
      if not (self.epochs and self.steps_per_epoch) then
        fail(name .. ": give total_steps, or epochs and steps_per_epoch")
      end
      self.total_steps = self.epochs * self.steps_per_epoch
    end
    self.max_lrs = list_of(self.max_lr, #self.base_lrs)
  end)

-- ---- ReduceLROnPlateau: driven by a metric instead of the step count ----------------------------------------------

local kPlateau = signature("ReduceLROnPlateau", {"optimizer", {"mode", "min"}, {"factor", 0.1}, {"patience", 10},
  {"threshold", 1e-4}, {"threshold_mode", "rel"}, {"cooldown", 0}, {"min_lr", 0.0}, {"eps", 1e-8}})

local Plateau = setmetatable({}, {__index = Schedule})
local plateau_meta = strict.class {name = "ReduceLROnPlateau", methods = Plateau,
  fields = table.concat(kPlateau.names, " ") .. kFields .. " best num_bad_epochs cooldown_counter"}

function schedulers.ReduceLROnPlateau(...)
  local self = setmetatable(read(kPlateau, ...), plateau_meta)
  arguments.choice("ReduceLROnPlateau", "mode", self.mode, {"min", "max"})
  arguments.choice("ReduceLROnPlateau", "threshold_mode", self.threshold_mode, {"rel", "abs"})
  for _, key in ipairs {"factor", "patience", "threshold", "cooldown", "eps"} do
    if type(self[key]) ~= "number" then
      fail(("ReduceLROnPlateau: %s is %s, wanted a number"):format(key, mh._describe(self[key])))
    end
  end
  if self.factor >= 1 then fail("ReduceLROnPlateau: factor is " .. self.factor .. ", it must be below 1") end
  if not mh._is_optimizer(self.optimizer) then
    fail("ReduceLROnPlateau: the first argument is " .. mh._describe(self.optimizer)
      .. ", wanted an optimizer\n  fix   make one first: local opt = optim.AdamW(net:parameters(), {lr = 1e-3})")
  end
  self.base_lrs = {}
  for i, group in ipairs(self.optimizer.param_groups) do self.base_lrs[i] = group.lr end
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

--- `metric` is a number that every rank holds alike.
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
