-- SPDX-License-Identifier: Apache-2.0
-- mh.EMA: the average of a module's parameters over training, which forgets exponentially.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local ordered_map = require "moonhalo.internal.ordered_map"
local state = require "moonhalo.nn.state"

local fail = mh.fail
local EMA = {}
local meta = {__index = EMA, __name = "EMA"}
local kSignature = arguments.signature("EMA", {"module", {"decay", 0.999}, {"warmup", false}})

--- Parameters, then buffers, by name; each once.
local function tensors_of(module)
  local found = ordered_map()
  for name, tensor in module:named_parameters() do found[name] = tensor end
  for name, tensor in module:named_buffers() do found[name] = tensor end
  return found
end

--- A step of 1 - decay would be lost in types of two bytes.
local function start(tensor)
  local two_bytes = tensor.dtype == "float16" or tensor.dtype == "bfloat16"
  return two_bytes and tensor:detach():to("float32") or tensor:detach():clone()
end

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
  local self = setmetatable(arguments.read(kSignature, ...), meta)
  if not base.is_module(self.module) then fail("EMA: wanted an nn.Module, got " .. mh._describe(self.module)) end
  if type(self.decay) ~= "number" or not (self.decay >= 0 and self.decay <= 1) then
    fail("EMA: decay is " .. mh._describe(self.decay) .. ", wanted a number within 0 and 1")
  end
  self.updates, self.trained, self.averages, self.is_buffer = 0, nil, ordered_map(), {}
  for name, tensor in tensors_of(self.module) do self.averages[name] = start(tensor) end
  for name in self.module:named_buffers() do self.is_buffer[name] = true end
  return self
end

local function place_text(tensor)
  return tensor:is_shard_tensor() and tostring(tensor:detach().mesh) or "a plain tensor"
end

--- `visit(name, average, tensor)` for every average, the tensors being those of `module` under the same names.
local function each(self, op, module, visit)
  if not base.is_module(module) then fail(("EMA: %s: wanted an nn.Module, got %s"):format(op, mh._describe(module))) end
  local tensors = tensors_of(module)
  for name, average in self.averages do
    local tensor = tensors[name]
    if tensor == nil then fail(("EMA: %s: the module has no '%s'"):format(op, name)) end
    if average:is_shard_tensor() ~= tensor:is_shard_tensor() then
      fail(("EMA: %s: '%s' was placed since\n  have  an average on %s, the module's on %s\n"
        .. "  fix   make the EMA after parallelize_module"):format(op, name, place_text(average), place_text(tensor)))
    end
    visit(name, average, tensor:detach())
  end
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
  if self.trained then fail("EMA: update: the averages are in the module\n  fix   call swap() again first") end
  local decay = self.decay
  if self.warmup then decay = math.min(decay, (1 + self.updates) / (10 + self.updates)) end
  mh.no_grad(function()
    each(self, "update", self.module, function(name, average, tensor)
      if self.is_buffer[name] then
        average:copy_(tensor)
      else
        average:lerp_(tensor:to(average.dtype), 1 - decay)
      end
    end)
  end)
  self.updates = self.updates + 1
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
  mh.no_grad(function()
    each(self, "apply_to", module, function(_, average, tensor) tensor:copy_(average) end)
  end)
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
  if self.trained then
    mh.no_grad(function()
      each(self, "swap", self.module, function(name, _, tensor) tensor:copy_(self.trained[name]) end)
    end)
    self.trained = nil
    return
  end
  local trained = {}
  each(self, "swap", self.module, function(name, _, tensor) trained[name] = tensor:clone() end)
  self:apply_to(self.module)
  self.trained = trained
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
    fail("EMA: load_state_dict: wanted the table of state_dict(), with averages and updates")
  end
  state.load_state_dict({
    class_name = function() return "EMA" end,
    state_dict = function() return self.averages end,
  }, given.averages)
  self.updates = given.updates
end

return {EMA = make}
