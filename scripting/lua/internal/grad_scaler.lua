-- SPDX-License-Identifier: Apache-2.0
-- mh.GradScaler: losses are scaled up for float16, and steps with gradients that are not finite are left out.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local checks = require "moonhalo.internal.field_checks"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local GradScaler = {}
local kSignature = arguments.signature("GradScaler", {{"init_scale", 65536.0}, {"growth_factor", 2.0},
  {"backoff_factor", 0.5}, {"growth_interval", 2000}, {"enabled", true}})
local function above(least) return function(value) return value > least end end
local meta = strict.class {name = "GradScaler", methods = GradScaler, word = "Scaler",
  fields = table.concat(kSignature.names, " ") .. " current growth_tracker per_optimizer",
  checks = {init_scale = checks.number("a number above 0", above(0), "init_scale = 65536.0"),
    growth_factor = checks.number("a number above 1", above(1), "growth_factor = 2.0"),
    backoff_factor = checks.number("a number between 0 and 1", function(value) return value > 0 and value < 1 end,
      "backoff_factor = 0.5"),
    growth_interval = checks.integer(1, "growth_interval = 2000"), enabled = checks.flag "enabled = false",
    current = checks.number("a number of at least 0", function(value) return value >= 0 end, "current = 65536.0"),
    growth_tracker = checks.integer(0, "growth_tracker = 0")}}

--- The nearest number of type float32, which PyTorch's scale is.
local function float32(x) return (string.unpack("f", string.pack("f", x))) end

--- mh.GradScaler({init_scale = 65536.0, growth_factor = 2.0, backoff_factor = 0.5, growth_interval = 2000,
---     enabled = true}) -> GradScaler
---   Scales losses so that gradients of float16 do not vanish. The scale falls when gradients are not finite, and grows
---   after growth_interval steps in which all are.
---   init_scale   number     the first scale
---   growth_factor   number   above 1
---   backoff_factor   number   between 0 and 1
---   growth_interval   integer   steps between growths
---   enabled     boolean     false: nothing is scaled, and all steps are made
---   returns     GradScaler   scaler:scale(loss):backward(); scaler:step(opt); scaler:update()
---   collective  no; unscale_ and step are, over all ranks
---   errors      ValueError: a factor out of range
---   example
---     local w = nn.Parameter(mh.ones{2})
---     local opt, scaler = mh.optim.SGD({w}, {lr = 0.5}), mh.GradScaler()
---     scaler:scale(w:sum()):backward()
---     scaler:step(opt)
---     scaler:update()
---     w:sum():item()    --> 1.0
local function make(...)
  local self = strict.object(meta, arguments.read(kSignature, ...), kSignature.names)
  self.current, self.growth_tracker = float32(self.init_scale), 0
  self.per_optimizer = setmetatable({}, {__mode = "k"})
  return self
end

--- The loss, or the tensors of a list, times the scale.
function GradScaler:scale(value)
  if type(value) == "table" and not getmetatable(value) then
    local list = {}
    for i, one in ipairs(value) do list[i] = self:scale(one) end
    return list
  end
  arguments.tensor("GradScaler: scale", "the loss", value)
  return self.enabled and value * self.current or value
end

local function check_optimizer(op, optimizer)
  if not mh._is_optimizer(optimizer) then
    fail(("GradScaler: %s: expected an optimizer, got %s"):format(op, mh._describe(optimizer)))
  end
end

local all_ranks  -- a mesh, made with the first number

--- Largest of the ranks' numbers.
local function largest_of_ranks(number)
  if mh.world_size() == 1 then return number end
  all_ranks = all_ranks or mh.init_device_mesh(mh.device(), {mh.world_size()}, {"all"})
  local own = mh.full({}, number, {dtype = "float32"})
  return mh.from_local(own, all_ranks, {mh.Partial("max")}):full_tensor():item()
end

--- Divides the gradients by the scale, for clipping; step does it otherwise. Sums them over the ranks first.
--- Collective.
function GradScaler:unscale_(optimizer)
  check_optimizer("unscale_", optimizer)
  if not self.enabled then return end
  local state = self.per_optimizer[optimizer]
  if state then
    fail(("GradScaler: unscale_: it was called since the last update() for this optimizer\n  fix   %s"):format(
        state.stepped and "call update() after step()" or "call it once"))
  end
  optimizer:sync_shard_grad()
  local found = 0.0
  mh.no_grad(function()
    local factor, lists = mh.full({}, float32(1 / self.current), {dtype = "float32"}), {}
    for _, group in ipairs(optimizer.param_groups) do
      for _, parameter in ipairs(group.params) do
        local gradient = parameter.grad
        if gradient then
          if gradient:is_complex() then gradient = mh.view_as_real(gradient) end
          local key = gradient:is_shard_tensor() and tostring(gradient.mesh) or "plain"
          if not lists[key] then
            lists[key] = {}
            table.insert(lists, key)
          end
          table.insert(lists[key], gradient)
        end
      end
    end
    for _, key in ipairs(lists) do
      local first = lists[key][1]
      local device = first:is_shard_tensor() and first:to_local().device or first.device
      local flag = mh.zeros({}, {dtype = "float32", device = device})
      mh._amp_foreach_non_finite_check_and_unscale_(lists[key], flag, factor:to(device))
      found = math.max(found, flag:item())
    end
  end)
  found = largest_of_ranks(found)
  if mh.backend() == "fake" then found = 0.0 end  -- a dry run does not know, and steps
  self.per_optimizer[optimizer] = {found = found, stepped = false}
end

--- The step of the optimizer, if all gradients are finite on all ranks. Returns whether it was made. Collective.
function GradScaler:step(optimizer)
  check_optimizer("step", optimizer)
  if not self.enabled then
    optimizer:step()
    return true
  end
  if not self.per_optimizer[optimizer] then self:unscale_(optimizer) end
  local state = self.per_optimizer[optimizer]
  if state.stepped then
    fail("GradScaler: step: it was called since the last update() for this optimizer\n" ..
        "  fix   call update() after step()")
  end
  state.stepped = true
  if state.found == 0 then optimizer:step() end
  return state.found == 0
end

--- The scale of the next step, after the steps of all optimizers: less if a gradient was not finite.
function GradScaler:update()
  if not self.enabled then return end
  if next(self.per_optimizer) == nil then
    fail("GradScaler: update: no gradients were looked at\n  fix   call scaler:step(opt) first")
  end
  local found = false
  for _, state in pairs(self.per_optimizer) do found = found or state.found ~= 0 end
  if found then
    self.current, self.growth_tracker = float32(self.current * self.backoff_factor), 0
  else
    self.growth_tracker = self.growth_tracker + 1
    if self.growth_tracker == self.growth_interval then
      local grown = float32(self.current * self.growth_factor)
      if grown < math.huge then self.current = grown end
      self.growth_tracker = 0
    end
  end
  self.per_optimizer = setmetatable({}, {__mode = "k"})
end

function GradScaler:get_scale() return self.enabled and self.current or 1.0 end
function GradScaler:is_enabled() return self.enabled end

--- The scale and the settings, for checkpoints, by PyTorch's names.
function GradScaler:state_dict()
  return {scale = self.current, growth_factor = self.growth_factor, backoff_factor = self.backoff_factor,
    growth_interval = self.growth_interval, _growth_tracker = self.growth_tracker}
end

-- The names of a state, and the fields of those whose name is another.
local kState = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
local kFields = {scale = "current", _growth_tracker = "growth_tracker"}

--- The whole part of a number, if an integer can hold it.
local function whole(number) return math.tointeger(number // 1) or number end

--- Continues from a state of state_dict(). A value that is refused changes nothing.
function GradScaler:load_state_dict(state)
  if type(state) ~= "table" or getmetatable(state) then
    fail("GradScaler: load_state_dict: expected the table of state_dict(), got " .. mh._describe(state))
  end
  for _, key in ipairs(kState) do
    if type(state[key]) ~= "number" then
      fail(("GradScaler: load_state_dict: '%s' is %s, expected a number"):format(key, mh._describe(state[key])))
    end
  end
  local values = {scale = float32(state.scale), growth_factor = state.growth_factor,
    backoff_factor = state.backoff_factor, growth_interval = whole(state.growth_interval),
    _growth_tracker = whole(state._growth_tracker)}
  for _, key in ipairs(kState) do
    local expected = strict.problem(self, kFields[key] or key, values[key])
    if expected then
      fail(("GradScaler: load_state_dict: '%s' is %s, expected %s\n  fix   give what state_dict() gave"):format(key,
          mh._describe(state[key]), expected))
    end
  end
  for _, key in ipairs(kState) do self[kFields[key] or key] = values[key] end
end

return {GradScaler = make}
