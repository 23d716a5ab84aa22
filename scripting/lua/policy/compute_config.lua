-- SPDX-License-Identifier: Apache-2.0
-- mh.ComputeConfig: on how many ranks a plan is made and run, and how. A value: it never changes.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local byte_sizes = require "moonhalo.internal.byte_sizes"

local fail = mh.fail
local compute_config = {}

-- Every field with what it may be; `pas_config` and `user_config` are tables of numbers, strings and booleans.
local kKinds = {
  plan_ngpus = "count", runtime_ngpus = "count", use_zero = "boolean", use_end2end = "boolean", pas_config = "table",
  user_config = "table", use_async_reducer = "boolean", reducer_bucket_cap_mb = "megabytes", macs_per_byte = "ratio",
}
local kMacsPerByte = 10  -- of autodist, for ranks that are threads or processes of one machine (docs/parallelism.md)
local kNames = {"macs_per_byte", "pas_config", "plan_ngpus", "reducer_bucket_cap_mb", "runtime_ngpus",
                "use_async_reducer", "use_end2end", "use_zero", "user_config"}

local function wrong(name, value, wanted)
  fail(("ComputeConfig: %s = %s, expected %s"):format(name, mh._describe(value), wanted))
end

--- A copy, so that the caller's table may change.
local function plain_copy(name, value)
  local copy = {}
  for key, one in pairs(value) do
    local kind = type(one)
    if kind == "table" and not getmetatable(one) then
      one = plain_copy(name .. "." .. tostring(key), one)
    elseif kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
      wrong(name .. "." .. tostring(key), one, "a number, a string, a boolean or a table of those")
    end
    copy[key] = one
  end
  return copy
end

--- ComputeConfig{memory_limit = ...}: options of policies are in a table of their own.
local function check_is_no_option(name)
  local policies, search = require "moonhalo.policy.policies", require "moonhalo.policy.search"
  for _, known in ipairs {policies.pipeline_options, search.options} do
    for _, option in ipairs(known) do
      if option == name and not kKinds[name] then
        fail(("ComputeConfig: unknown field '%s'\n  have  %s\n" ..
            "  fix   it is an option of policies: pas_config = {%s = ...}"):format(name, table.concat(kNames, ", "),
            name))
      end
    end
  end
end

local function checked(name, value)
  check_is_no_option(name)
  local kind = kKinds[arguments.choice("ComputeConfig", "field", name, kNames)]
  if kind == "count" then
    if math.type(value) ~= "integer" or value < 1 then wrong(name, value, "a number of ranks") end
    return value
  end
  if kind == "megabytes" then
    if type(value) ~= "number" or not (value > 0) or value == math.huge then
      wrong(name, value, "a number of megabytes above 0")
    end
    return value
  end
  if kind == "ratio" then
    if type(value) ~= "number" or not (value > 0) then wrong(name, value, "a number of multiplications above 0") end
    return value
  end
  if type(value) ~= kind or (kind == "table" and getmetatable(value)) then wrong(name, value, "a " .. kind) end
  return kind == "table" and plain_copy(name, value) or value
end

local fields_of_config = require("moonhalo.internal.registries").fields_of_config
local meta = {__name = "ComputeConfig"}

function meta.__index(config, name)
  local value = fields_of_config[config][name]
  if value == nil and not kKinds[name] then
    fail("ComputeConfig: no field '" .. tostring(name) .. "'" .. mh.did_you_mean(tostring(name), kNames))
  end
  return value
end

function meta.__newindex(_, name)
  fail("ComputeConfig: '" .. tostring(name) .. "' cannot be changed\n  fix   make another one")
end

--- mh.ComputeConfig(given) -> ComputeConfig
---   How a run uses its ranks, for mh.parallelize.
---   given       table       {plan_ngpus: ranks of a unit, over which a policy divides the model; runtime_ngpus: ranks
---     of the run, a multiple, as many if left out; use_zero = false: parameters, gradients and optimizer states in
---     blocks over the units; use_async_reducer = false: gradients are summed during backward; reducer_bucket_cap_mb =
---     32: of one message; macs_per_byte: multiplications that a rank makes while it sends a byte; use_end2end = false:
---     forward takes a sample and gives the loss; pas_config = {}: options of the policy (of "autodist" with a machine
---     also recompute = false, which leaves recomputation out, and pipeline_nmicros, the micro-batches of a step, or
---     micro_batches, a list of numbers of them that are tried: pipelines need one of these; memory_limit, what a rank
---     may hold, "6GB" or a number of bytes); user_config = {}}
---   returns     ComputeConfig   its fields, and units; it cannot be changed
---   collective  no
---   errors      ValueError: plan_ngpus is missing, an unknown field, or runtime_ngpus is not a multiple
---   example
---     mh.ComputeConfig{plan_ngpus = 2, runtime_ngpus = 4}.units    --> 2
function compute_config.ComputeConfig(given)
  if type(given) ~= "table" or getmetatable(given) then
    fail("ComputeConfig: expected a table, as {plan_ngpus = 2}, got " .. mh._describe(given))
  end
  local fields = {use_zero = false, use_end2end = false, use_async_reducer = false, reducer_bucket_cap_mb = 32,
      pas_config = {}, user_config = {}}
  for name, value in pairs(given) do fields[name] = checked(name, value) end
  local limit = fields.pas_config.memory_limit
  if type(limit) == "string" then
    fields.pas_config.memory_limit = byte_sizes.read("ComputeConfig: pas_config.memory_limit", limit)
  end
  if not fields.plan_ngpus then fail("ComputeConfig: plan_ngpus is missing\n  fix   ComputeConfig{plan_ngpus = 2}") end
  fields.runtime_ngpus = fields.runtime_ngpus or fields.plan_ngpus
  if fields.runtime_ngpus % fields.plan_ngpus ~= 0 then
    fail(("ComputeConfig: runtime_ngpus = %d is not a multiple of plan_ngpus = %d\n  fix   run whole units of %d ranks")
      :format(fields.runtime_ngpus, fields.plan_ngpus, fields.plan_ngpus))
  end
  fields.units = fields.runtime_ngpus // fields.plan_ngpus
  local config = setmetatable({}, meta)
  fields_of_config[config] = fields
  return config
end

function compute_config.is_config(value) return fields_of_config[value] ~= nil end

--- The table that mh.ComputeConfig makes the same configuration of.
function compute_config.fields(config)
  local fields = {}
  for name in pairs(kKinds) do fields[name] = fields_of_config[config][name] end
  return fields
end

--- The fields that a plan of `policy` depends on, as plain data.
function compute_config.facts(config, policy)
  local per_byte = config.macs_per_byte
  if per_byte == math.huge then per_byte = policy == "autodist" and "bytes alone" or nil end
  return {
    plan_ngpus = config.plan_ngpus, runtime_ngpus = config.runtime_ngpus, use_end2end = config.use_end2end,
    use_zero = config.use_zero, use_async_reducer = config.use_async_reducer,
    reducer_bucket_cap_mb = config.reducer_bucket_cap_mb, pas_config = config.pas_config,
    user_config = config.user_config,
    macs_per_byte = per_byte,  -- nothing by default: plans from before it was there still fit
  }
end

--- The multiplications for a byte that products on the mesh of a run go by.
function compute_config.macs_per_byte(config, policy)
  local given, of_policy = config.macs_per_byte, policy == "autodist" and config.pas_config.macs_per_byte or nil
  if given and of_policy and given ~= of_policy then
    fail(("ComputeConfig: two numbers of multiplications for a byte\n" ..
        "  have  macs_per_byte = %s, pas_config.macs_per_byte = %s\n  fix   give one")
      :format(given, of_policy))
  end
  return given or of_policy or (policy == "autodist" and kMacsPerByte or math.huge)
end

return compute_config
