-- SPDX-License-Identifier: Apache-2.0
-- mh.EMA: the average of a module's parameters over training, which forgets exponentially.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local base = require "moonhalo.nn.module"
local checks = require "moonhalo.internal.field_checks"
require "moonhalo.internal.module_tree"
local ordered_map = require "moonhalo.internal.ordered_map"
local state = require "moonhalo.nn.state"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local EMA = {}
local kSignature = arguments.signature("EMA", {"module", {"decay", 0.999}, {"warmup", false}})
local kAnother = "make another one: mh.EMA(net, {decay = 0.99})"
local meta = strict.class {name = "EMA", methods = EMA, fields = "module decay warmup engine averages updates swapped",
  checks = {module = checks.fixed("module", kAnother), decay = checks.fixed("decay", kAnother),
    warmup = checks.fixed("warmup", kAnother)}}

--- mh.EMA(module, {decay = 0.999, warmup = false}) -> EMA
---   The exponential moving average of a module's parameters; buffers are copied. Averages are placed as the parameters
---   are, so make it after the module is distributed. Averages of float16 and bfloat16 are float32.
---   module      Module      whose parameters are averaged
---   decay       number      0 to 1: part of the average that an update keeps
---   warmup      boolean     the n-th update keeps at most (1 + n) / (10 + n), so that the first values are soon
---     forgotten
---   returns     EMA         call its update() after the optimizer's step
---   collective  no
---   errors      ValueError: not a module, or decay is out of range
---   example
---     local net = nn.Linear(1, 1)
---     local ema = mh.EMA(net, {decay = 0.5})
---     mh.no_grad(function() nn.init.constant_(net.weight, 1) end)
---     ema:update()
---     ema.updates    --> 1
local function make(...)
  local given = arguments.read(kSignature, ...)
  arguments.module("EMA", given.module)
  if type(given.decay) ~= "number" or not (given.decay >= 0 and given.decay <= 1) then
    fail("EMA: decay is " .. mh._describe(given.decay) .. ", expected a number within 0 and 1")
  end
  local self = strict.object(meta, given, kSignature.names)
  self.engine, self.averages = mh._moving_average(self.module, self.decay, self.warmup), ordered_map()
  self.updates, self.swapped = 0, false
  local names, tensors = self.engine:averages()
  for i, name in ipairs(names) do self.averages[name] = tensors[i] end
  return self
end

--- ema:update() -> nothing
---   Moves the averages towards the parameters.
---   returns     nothing
---   collective  no
---   errors      ValueError: the averages are in the module (swap)
---   example
---     local net = nn.init.constant_(nn.Parameter(mh.zeros{1}), 0)
---     local module = nn.Identity()
---     module:register_parameter("w", net)
---     local ema = mh.EMA(module, {decay = 0.5})
---     nn.init.constant_(module.w, 2)
---     ema:update()
---     ema:state_dict().averages.w:item()    --> 1.0
function EMA:update()
  self.engine:update(self.module)
  self.updates = self.engine:updates()
end

--- ema:apply_to(module) -> nothing
---   Copies the averages into a module that has the names and shapes of the averaged one.
---   module      Module      such as a copy for evaluation
---   returns     nothing
---   collective  no
---   errors      ValueError: a name is missing, or a tensor is placed otherwise
---   example
---     local net, copy = nn.Linear(2, 2), nn.Linear(2, 2)
---     mh.EMA(net):apply_to(copy)
---     copy.weight:equal(net.weight)    --> true
function EMA:apply_to(module)
  arguments.module("EMA: apply_to", module)
  self.engine:apply_to(module)
end

--- ema:swap() -> nothing
---   Puts the averages into the module, for an evaluation or a file; the next call puts the trained values back.
---   returns     nothing
---   collective  no
---   example
---     local net = nn.Linear(2, 2)
---     local ema = mh.EMA(net)
---     ema:swap()
---     ema:swap()
---     ema.updates    --> 0
function EMA:swap()
  self.engine:swap(self.module)
  self.swapped = not self.swapped
end

--- ema:with_averages(fn, ...) -> any
---   Runs fn(...) with the averages in the module and puts the trained values back, also after an error.
---   fn          function    such as an evaluation
---   returns     any         the results of fn
---   collective  as fn
---   errors      TypeError: fn is not a function; the averages are in the module already
---   example
---     local net = nn.Linear(1, 1, {bias = false})
---     nn.init.constant_(net.weight, 1)
---     local ema = mh.EMA(net)
---     nn.init.constant_(net.weight, 5)
---     ema:with_averages(function() return net.weight:item() end), net.weight:item()    --> 1.0  5.0
function EMA:with_averages(fn, ...)
  arguments.callable("EMA: with_averages", "the first argument", fn)
  if self.swapped then fail("EMA: with_averages: the averages are in the module already\n  fix   call swap() first") end
  self:swap()
  local _ <close> = at_end(function() self:swap() end)
  return fn(...)
end

--- ema:state_dict() -> table
---   The state, as mh.checkpoint saves it: give the EMA as an entry of the checkpoint.
---   returns     table       {averages, updates}: tensors by name, the number of updates
---   collective  no
---   example
---     mh.EMA(nn.Linear(2, 3)):state_dict().averages.weight.shape    --> {3, 2}
function EMA:state_dict()
  local averages = {}
  for name, average in self.averages do averages[name] = average end
  return {averages = averages, updates = self.updates}
end

--- ema:load_state_dict(given) -> nothing
---   Continues with saved averages; they may be placed otherwise.
---   given       table       of state_dict()
---   returns     nothing
---   collective  over the meshes of tensors that are placed otherwise
---   errors      ValueError: names or shapes differ
---   example
---     local a, b = mh.EMA(nn.Linear(2, 2)), mh.EMA(nn.Linear(2, 2))
---     b:load_state_dict(a:state_dict())
---     b.averages.weight:equal(a.averages.weight)    --> true
function EMA:load_state_dict(given)
  if type(given) ~= "table" or base.is_module(given) or type(given.averages) ~= "table"
      or math.type(given.updates) ~= "integer" then
    fail("EMA: load_state_dict: expected the table of state_dict(), with averages and updates")
  end
  state.load_state_dict({
    class_name = function() return "EMA" end,
    state_dict = function() return self.averages end,
  }, given.averages)
  self.updates = self.engine:updates(given.updates)
end

return {EMA = make}
