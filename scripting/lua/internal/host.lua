-- SPDX-License-Identifier: Apache-2.0
-- mh.host: what a simulation code that opened this script (moonhalo_c.h) shares with it. `fields` are its fields by
-- name, ShardTensors over its memory; `masks` says where these have values: all but the holes between boxes; `state` is
-- the script's: what mh_save saves and mh_load restores; `trainers` lets other ranks train; `verify` compares a
-- function with what one rank gives.

local mh = require "moonhalo"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail

local function refuse_unknown(fields, name)
  local names = {}
  for known in pairs(fields) do names[#names + 1] = known end
  table.sort(names)
  fail(("host: no field '%s' was registered%s\n  have  %s\n  fix   register it with mh_field before this line runs")
    :format(tostring(name), mh.did_you_mean(tostring(name), names), #names > 0 and table.concat(names, ", ")
        or "no fields"))
end

local kFields = {
  __index = refuse_unknown,
  __newindex = function(_, name)
    fail(("host: the field '%s' cannot be assigned; write into its memory: mh.host.fields.%s:copy_(x)"):format(
        tostring(name), tostring(name)))
  end,
}

local kHost = {
  __index = function(_, name)
    if name == "state" then return nil end
    fail(("host: no entry '%s'%s"):format(tostring(name), mh.did_you_mean(tostring(name),
        {"fields", "masks", "state", "trainers", "verify"})))
  end,
  __newindex = function(host, name, value)
    if name ~= "state" then fail(("host: only mh.host.state may be assigned, not '%s'"):format(tostring(name))) end
    if type(value) ~= "table" then
      fail("host: mh.host.state is a table of what to save, as {net = net, optimizer = optimizer}")
    end
    rawset(host, name, value)
  end,
}

local host = {}

local function has_state(value)
  return (type(value) == "table" or type(value) == "userdata") and not mh.is_tensor(value)
      and strict.get(value, "load_state_dict") ~= nil
end

--- `native`: what a session gives (embed/host_trainers.cpp); nil without one.
function host.new(native)
  local made, trains = {fields = setmetatable({}, kFields)}, false
  made.masks = setmetatable({}, {
    __index = function(masks, name)
      local field = rawget(made.fields, name) or refuse_unknown(made.fields, name)
      if trains then
        fail(("host: the mask of '%s' is not known to ranks that train\n  have  a snapshot of the field alone\n"
          .. "  fix   use masks where the field is solved, or let its boxes leave no holes"):format(tostring(name)))
      end
      local mask = mh.ones_like(field:detach(), {dtype = "bool"})
      rawset(masks, name, mask)
      return mask
    end,
    __newindex = function(_, name) fail(("host: the mask '%s' cannot be assigned"):format(tostring(name))) end,
  })
  function made.trainers(options)
    local link = require("moonhalo.internal.trainers").new(native, options)
    trains = link.trains
    return link
  end
  function made.verify(...) return require("moonhalo.internal.verify").run(made, has_state, ...) end
  return setmetatable(made, kHost)
end

local function state_of(call)
  return mh.host.state or fail(("%s: the script does not say what its state is\n  have  no mh.host.state\n"
    .. "  fix   mh.host.state = {net = net, optimizer = optimizer} in the script"):format(call))
end

function host.save(path) mh.checkpoint.save(path, state_of("mh_save")) end

--- Optimizers hold the tensor itself, so its values are written into it.
local function restore_tensor(key, tensor, value)
  if not mh.is_tensor(value) or table.concat(tensor.shape, "x") ~= table.concat(value.shape, "x") then
    fail(("mh_load: mh.host.state.%s is a tensor of [%s], and what was saved is not"):format(key,
        table.concat(tensor.shape, ", ")))
  end
  mh.no_grad(function() tensor:copy_(value) end)
end

--- Values with load_state_dict, and tensors, are restored in place; other entries are replaced. An entry that the
--- checkpoint lacks is an error, before anything changes.
function host.load(path)
  local state, into, wanted = state_of("mh_load"), {}, {}
  for key, value in pairs(state) do
    if has_state(value) then into[key] = value else wanted[#wanted + 1] = key end
  end
  for key, value in pairs(mh.checkpoint.load(path, into, {entries = wanted})) do
    if mh.is_tensor(state[key]) then
      restore_tensor(key, state[key], value)
    else
      state[key] = value
    end
  end
end

return host
