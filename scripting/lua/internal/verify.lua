-- SPDX-License-Identifier: Apache-2.0
-- mh.host.verify("train", {0.1}): calls a function of the script twice from one state, with the fields as they are cut
-- and with whole plain tensors in their place, and compares what it returns and what it leaves in fields and
-- mh.host.state.

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local verify = {}

-- In parts of the largest element, by dtype; sums of blocks have other roundings.
local kTolerance = {float64 = 1e-9, complex128 = 1e-9, float16 = 1e-2, bfloat16 = 3e-2}
local kElse = 1e-4

local function copy(value)
  if mh.is_tensor(value) then return value:detach():clone() end
  if type(value) ~= "table" then return value end
  local made = {}
  for key, element in pairs(value) do made[key] = copy(element) end
  return made
end

-- ---- What a call may change -----------------------------------------------------------------------------------------

--- Parameters in the state, for the sake of their gradients.
local function parameters_of(state, has_state)
  local found = {}
  for _, key in ipairs(sorted_keys(state)) do
    local value = state[key]
    if mh.is_tensor(value) then
      found[#found + 1] = value
    elseif mh._is_optimizer(value) then
      for _, group in ipairs(value.param_groups) do
        for _, tensor in ipairs(group.params) do found[#found + 1] = tensor end
      end
    elseif has_state(value) and type(value) == "table" and type(value.parameters) == "function" then
      for _, tensor in ipairs(value:parameters()) do found[#found + 1] = tensor end
    end
  end
  return found
end

local function dict_of(value, has_state) return has_state(value) and value:state_dict() or value end

--- All that is restored: call it again and again.
local function restorer(host, has_state)
  local state, random = host.state or {}, mh.get_rng_state()
  local fields, masks, objects, values, gradients = {}, {}, {}, {}, {}
  for name, mask in pairs(host.masks) do masks[name] = mask end
  for _, name in ipairs(sorted_keys(host.fields)) do fields[name] = {host.fields[name], copy(host.fields[name])} end
  for key, value in pairs(state) do objects[key], values[key] = value, copy(dict_of(value, has_state)) end
  local parameters = parameters_of(state, has_state)
  for i, tensor in ipairs(parameters) do gradients[i] = tensor.grad and copy(tensor.grad) end
  return function()
    mh.no_grad(function()
      for _, name in ipairs(sorted_keys(host.masks)) do rawset(host.masks, name, masks[name]) end
      for name, mask in pairs(masks) do rawset(host.masks, name, mask) end
      for name, field in pairs(fields) do
        rawset(host.fields, name, field[1])
        field[1]:copy_(field[2])
      end
      for _, key in ipairs(sorted_keys(state)) do state[key] = objects[key] end
      for key, value in pairs(values) do
        local object = objects[key]
        if has_state(object) then
          object:load_state_dict(copy(value))
        elseif mh.is_tensor(object) then
          object:copy_(value)
        else
          state[key] = copy(value)
        end
      end
      for i, tensor in ipairs(parameters) do tensor.grad = gradients[i] and copy(gradients[i]) end
    end)
    mh.set_rng_state(random)
  end
end

-- ---- What it has done -----------------------------------------------------------------------------------------------

--- Appends {path, whole plain tensor} for all numbers and tensors of a tree.
local function flatten(value, path, into)
  if mh.is_tensor(value) then
    value = value:detach()
    if value:is_shard_tensor() then value = value:full_tensor() end
    into[#into + 1] = {path, value:clone()}  -- on one rank that is the block itself
  elseif type(value) == "number" then
    into[#into + 1] = {path, mh.tensor({value}, {dtype = "float64"})}
  elseif type(value) == "table" then
    for key, element in pairs(value) do flatten(element, path .. "." .. tostring(key), into) end
  end
end

local function outcome_of(host, has_state, fn, numbers)
  local results, found = table.pack(fn(table.unpack(numbers))), {}
  mh.no_grad(function()
    for i = 1, results.n do flatten(results[i], "result " .. i, found) end
    for _, name in ipairs(sorted_keys(host.fields)) do flatten(host.fields[name], "field " .. name, found) end
    for key, value in pairs(host.state or {}) do flatten(dict_of(value, has_state), "state." .. key, found) end
  end)
  return found
end

-- ---- How it differs -------------------------------------------------------------------------------------------------

local function index_text(position, shape)
  if #shape == 0 or #shape == 1 and shape[1] == 1 then return "" end
  local index = {}
  for d = #shape, 1, -1 do
    index[d], position = position % shape[d], position // shape[d]
  end
  return "[" .. table.concat(index, ", ") .. "]"
end

--- Compares two tensors: {largest, apart, name with the element, the two values there}.
local function difference(name, cut, whole)
  if table.concat(cut.shape, ",") ~= table.concat(whole.shape, ",") then
    return {largest = 0, apart = math.huge, name = name, cut = ("has the shape [%s]"):format(
            table.concat(cut.shape, ", ")), whole = ("[%s]"):format(table.concat(whole.shape, ", "))}
  end
  if cut:numel() == 0 then return {largest = 0, apart = 0, name = name} end
  local wide = (cut:is_complex() or whole:is_complex()) and "complex128" or "float64"
  local a, b = cut:to(wide):reshape{-1}, whole:to(wide):reshape{-1}
  local alike = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  local apart = (a - b):abs():masked_fill(alike, 0):nan_to_num(math.huge, math.huge, math.huge)
  local at = apart:argmax():item()
  local function largest(x) return x:abs():nan_to_num(0, 0, 0):max():item() end
  local function show(x)
    return x:is_complex() and ("%.17g%+.17gi"):format(x.real:item(), x.imag:item()) or ("%.17g"):format(x:item())
  end
  return {largest = math.max(largest(a), largest(b)), apart = apart[at]:item(), name = name
          .. index_text(at, cut.shape), cut = "is " .. show(a[at]), whole = show(b[at])}
end

--- Differences of all entries, each in parts of the largest element. Where a gradient is but rounding, so is what comes
--- of
--- it: in the state "the largest" is that of all tensors of the same name in an entry, as of all biases of a network.
local function differences(cut, whole)
  local found, largest = {}, {}
  for i, one in ipairs(cut) do
    local group = one[1]:match("^state%.") and one[1]:match("^state%.[^.]*") .. one[1]:match("[^.]*$") or one[1]
    local differs = difference(one[1], one[2], whole[i][2])
    differs.group, differs.dtype, found[i] = group, one[2].dtype, differs
    largest[group] = math.max(largest[group] or 0, differs.largest)
  end
  for _, differs in ipairs(found) do
    differs.part = differs.apart == 0 and 0 or differs.apart / largest[differs.group]
  end
  return found
end

local function check_arguments(fn, numbers, options)
  local name = type(fn) == "string" and ("'%s'"):format(fn) or "the function"
  if type(fn) == "string" then fn = rawget(_G, fn) end
  if type(fn) ~= "function" then
    fail(("host.verify: there is no function %s\n  have  a %s\n" ..
      "  fix   give the name of a global function of the script, or a function"):format(name, type(fn)))
  end
  if numbers ~= nil and type(numbers) ~= "table" then
    fail(("host.verify: the function's arguments are not a list\n  have  a %s\n" ..
        "  fix   mh.host.verify(\"train\", {0.1})"):format(type(numbers)))
  end
  for key in pairs(options or {}) do
    if key ~= "tolerance" then
      fail(("host.verify: no option '%s'%s"):format(tostring(key), mh.did_you_mean(tostring(key), {"tolerance"})))
    end
  end
  return fn, name
end

--- Returns the largest difference and where it was found; an error if one is larger than the tolerance. Everything is
--- as it was before, but the script's own variables. Each rank holds every field whole meanwhile. Collective.
function verify.run(host, has_state, given, numbers, options)
  local fn, name = check_arguments(given, numbers, options)
  local tolerance = options and options.tolerance
  local restore = restorer(host, has_state)
  local function outcome(how)
    local fine, found = pcall(outcome_of, host, has_state, fn, numbers or {})
    restore()
    if not fine then fail(("host.verify: %s fails %s\n  have  %s"):format(name, how, tostring(found))) end
    return found
  end
  local cut = outcome("with the fields as they are cut")
  for _, field in ipairs(sorted_keys(host.fields)) do
    rawset(host.fields, field, host.fields[field]:detach():full_tensor():clone())
  end
  for _, field in ipairs(sorted_keys(host.masks)) do rawset(host.masks, field, host.masks[field]:full_tensor()) end
  local whole = outcome("with whole fields")
  if #cut ~= #whole then
    fail(("host.verify: %s leaves %d numbers and tensors on %d ranks, and %d on one\n" ..
      "  have  results, fields and mh.host.state"):format(name, #cut, mh.world_size(), #whole))
  end
  local most, where = 0, "everywhere"
  for _, differs in ipairs(differences(cut, whole)) do
    local allowed = tolerance or kTolerance[differs.dtype] or kElse
    if not (differs.part <= allowed) then
      fail(("host.verify: %s gives other numbers on %d ranks than on one\n" ..
          "  have  %s %s; one rank: %s (they differ by %.3g of "
        .. "the largest, %.3g is allowed)\n" ..
            "  fix   look for what a rank makes of its own block or number; what the function changes "
        .. "must be in mh.host.state"):format(name, mh.world_size(), differs.name, differs.cut, differs.whole,
            differs.part, allowed))
    end
    if differs.part > most then most, where = differs.part, differs.name end
  end
  return most, where
end

return verify
