-- SPDX-License-Identifier: Apache-2.0
-- Checks of the fields of learning-rate schedules, which scripts may assign and states may have.

local mh = require "moonhalo"
local checks = require "moonhalo.internal.field_checks"

local schedule_checks = {}

--- The least value of a number of steps; other numbers may be any.
local kLeast = {step_size = 1, T_max = 1, T_0 = 1, T_mult = 1, total_iters = 1, total_steps = 1, epochs = 1,
  steps_per_epoch = 1,
  num_warmup_steps = 0, num_training_steps = 0, last_epoch = -1, gamma = false, start_factor = false,
  end_factor = false, factor = false,
  base_lr = 0, step_size_up = 1, step_size_down = 1,
  power = false, eta_min = false, num_cycles = false, pct_start = false, div_factor = false, final_div_factor = false}

local function is_list_of(value, kind)
  if type(value) ~= "table" or getmetatable(value) then return false end
  for _, one in ipairs(value) do
    if type(one) ~= kind then return false end
  end
  return #value > 0
end

--- Values of other types: what `is_right`, what is expected, and a remedy.
local function each_or_one(kind)
  return function(value) return type(value) == kind or is_list_of(value, kind) end
end
local function list_of_kind(kind)
  return function(value) return is_list_of(value, kind) end
end
schedule_checks.is_number_or_list = each_or_one "number"

local kRules = {
  milestones = {list_of_kind "number", "a list of steps", "milestones = {30, 60}"},
  base_lrs = {list_of_kind "number", "a list of numbers", "base_lrs = {0.1}, one for each group"},
  schedulers = {list_of_kind "table", "a list of schedules", "schedulers = {warm, rest}"},
  lr_lambda = {each_or_one "function", "a function, or one for each group",
    "lr_lambda = function(step) return 0.95 ^ step end"},
  max_lr = {each_or_one "number", "a number, or one for each group", "max_lr = 0.1"},
}

--- The checks of a schedule's fields. A number that is none, or below its least, would stop the schedule in the middle
--- of a run, or never. `own`: checks of this schedule alone.
function schedule_checks.of(spec, own)
  local all = {}
  for key, least in pairs(kLeast) do
    local expected = "a number" .. (least and " of at least " .. least or "")
    local default = spec.default[key] or least or 1
    all[key] = checks.number(expected, function(value) return value >= (least or -math.huge) end,
      ("%s = %s"):format(key, mh._describe(default)))
  end
  for key, rule in pairs(kRules) do
    all[key] = function(value)
      if not rule[1](value) then return rule[2], rule[3] end
    end
  end
  all.optimizer = checks.fixed("optimizer", "make another schedule for it")
  for key, check in pairs(own or {}) do all[key] = check end
  local required = {}
  for _, key in ipairs(spec.required) do required[key] = true end
  for _, key in ipairs(spec.names) do
    if all[key] and spec.default[key] == nil and not required[key] then all[key] = checks.optional(all[key]) end
  end
  return all
end

return schedule_checks
