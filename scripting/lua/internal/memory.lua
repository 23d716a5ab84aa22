-- SPDX-License-Identifier: Apache-2.0
-- mh.memory: memory of this rank's tensors, and what holds it.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"

local fail = mh.fail
local kMemory = arguments.signature("memory",
    {arguments.optional "model", arguments.optional "optimizer", {"reset", false}})

local function add_tensors(value, found)
  if mh.is_tensor(value) then
    found[#found + 1] = value
  elseif type(value) == "table" then
    for _, inner in pairs(value) do add_tensors(inner, found) end
  end
end

local function kinds_of(model, optimizer, total)
  local kinds = {}
  if model then
    local parameters, gradients, buffers = {}, {}, {}
    for _, parameter in model:named_parameters() do
      parameters[#parameters + 1] = parameter
      if parameter.grad then gradients[#gradients + 1] = parameter.grad end
    end
    for _, buffer in model:named_buffers() do buffers[#buffers + 1] = buffer end
    kinds.parameters, kinds.gradients = mh._storage_bytes(parameters), mh._storage_bytes(gradients)
    kinds.buffers = mh._storage_bytes(buffers)
  end
  if optimizer then
    local states = {}
    add_tensors(optimizer:state_dict().state, states)
    kinds.states = mh._storage_bytes(states)
  end
  kinds.rest = total
  for _, name in ipairs {"parameters", "gradients", "buffers", "states"} do
    kinds.rest = kinds.rest - (kinds[name] or 0)
  end
  return kinds
end

local memory = {}

--- mh.memory({model = nil, optimizer = nil, reset = false}) -> table
---   Memory of this rank's tensors in bytes. Ranks that are threads count their own blocks each, but share `resident`.
---   model       Module?     says how much of it parameters, their gradients and buffers hold
---   optimizer   Optimizer?  says how much of it the optimizer's states hold
---   reset       boolean     the next peak is that from here on
---   returns     table       {live, peak, resident}: memory of tensors in the host's memory now, the most since the run
---     began or since reset, and the memory of the process with libraries. With --device cuda also device = {live,
---     peak}. With a model or an optimizer also by_kind = {parameters, gradients, buffers, states, rest}: blocks that
---     are shared count once, rest is all other live memory of host and device: activations, data, halos
---   collective  no
---   errors      ValueError: not a Module, not an Optimizer, or the program that runs the script counts no memory
---   example
---     local before = mh.memory().live
---     local x = mh.zeros{1000}
---     mh.memory().live - before    --> 4000
---     local net = nn.Linear(3, 4)
---     mh.memory{model = net}.by_kind.parameters    --> 64
function memory.memory(...)
  local given = arguments.read(kMemory, ...)
  local model, optimizer = given.model, given.optimizer
  if model ~= nil and not base.is_module(model) then
    fail("memory: model is " .. mh._describe(model) .. ", expected an nn.Module")
  end
  if optimizer ~= nil and not mh._is_optimizer(optimizer) then
    fail("memory: optimizer is " .. mh._describe(optimizer) .. ", expected an optimizer")
  end
  arguments.flag("memory", "reset", given.reset)
  local use = mh._memory_use()
  if model or optimizer then
    use.by_kind = kinds_of(model, optimizer, use.live + (use.device and use.device.live or 0))
  end
  if given.reset then mh._reset_memory_peak() end
  return use
end

return memory
