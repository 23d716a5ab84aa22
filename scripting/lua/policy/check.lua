-- SPDX-License-Identifier: Apache-2.0
-- Whether what a policy returned are placements (policies.lua) for this graph and configuration.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local plural = require "moonhalo.internal.plural"
local recompute = require "moonhalo.policy.recompute"

local fail = mh.fail

local kFields = {"forward", "inputs", "mesh", "micro_batches", "parameter", "recompute", "stages", "stored"}

local function as_text(value)
  if type(value) == "userdata" then return tostring(value) end
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, one in pairs(value) do copy[key] = as_text(one) end
  return copy
end

local function check_mesh(who, mesh, ranks)
  local sizes, names = type(mesh) == "table" and mesh[1], type(mesh) == "table" and mesh[2]
  if type(sizes) ~= "table" or type(names) ~= "table" or #sizes ~= #names or #sizes == 0 then
    fail(who .. " needs a mesh as {{2, 2}, {\"dp\", \"tp\"}}")
  end
  local product = 1
  for i, size in ipairs(sizes) do
    if math.type(size) ~= "integer" or size < 1 then
      fail(("%s: mesh dim '%s' has the size %s"):format(who, names[i], tostring(size)))
    end
    if names[i] == "ep" then mh.expert_parallel() end
    if names[i] == "unit" then
      fail(who .. ": the mesh dim \"unit\" is that of the units\n  fix   call it \"dp\"")
    end
    product = product * size
  end
  if product ~= ranks then
    fail(("%s has a mesh of %s = %s, plan_ngpus is %d"):format(who, table.concat(sizes, " x "),
      plural(product, "rank"), ranks))
  end
  return names
end

--- A mesh dim that may cut tensors.
local function check_dim(who, what, name, names)
  for _, one in ipairs(names) do
    if one == name and name ~= "pp" then return end
  end
  fail(("%s: %s names the mesh dim '%s'%s\n  have  %s"):format(who, what, tostring(name),
    mh.did_you_mean(tostring(name), names), table.concat(names, ", ")))
end

--- The dim of forward's tensors that a mesh dim cuts; tensors of fewer dims stay whole.
local function check_input_dim(who, name, dim, graph)
  local most = 0
  for _, text in pairs(graph.arguments) do
    local _, numbers = text:match("%[(.*)%]"):gsub("%d+", "")
    most = math.max(most, numbers)
  end
  if math.type(dim) ~= "integer" or dim < 0 or dim >= most then
    fail(("%s: inputs cuts a dim that no argument of forward has\n  have  %s = %s, tensors of at most %d dims\n" ..
      "  fix   dims count from 0"):format(who, name, tostring(dim), most))
  end
end

local function check_stages(who, stages, graph)
  local total = 0
  for i, size in ipairs(stages) do
    if math.type(size) ~= "integer" or size < 1 then fail(("%s: stage %d has no module"):format(who, i - 1)) end
    total = total + size
  end
  local have = #(graph.stage_macs or {})
  if total ~= have then
    fail(("%s: the stages hold %s, %s:stages() gives %d"):format(who, plural(total, "module"), graph.class, have))
  end
end

--- Checks the number of micro-batches that a step of the plan has.
local function check_micro_batches(who, count, config)
  if count == nil then return end
  if math.type(count) ~= "integer" or count < 1 then
    fail(("%s: micro_batches = %s, expected a number of micro-batches"):format(who, mh._describe(count)))
  end
  if not config.use_end2end then
    fail(("%s: micro_batches = %d is for modules whose forward takes a sample and gives the loss\n" ..
      "  fix   ComputeConfig{use_end2end = true}, or leave it out"):format(who, count))
  end
end

--- Checks that what is kept in blocks over a mesh dim is not cut over it already.
local function check_stored(who, placed, names)
  if placed.stored == nil then return end
  check_dim(who, "stored", placed.stored, names)
  for parameter, list in pairs(placed.parameter or {}) do
    for i, name in ipairs(names) do
      if name == placed.stored and tostring(list[i]):find("^S") then
        fail(("%s: '%s' is cut over the mesh dim '%s' over which all is stored"):format(who, parameter, name))
      end
    end
  end
end

--- Returns what a policy returned, as plain data; errors name what is wrong with it.
local function checked(name, placed, graph, config, module)
  local who = ("parallelize: policy '%s'"):format(name)
  if type(placed) ~= "table" or getmetatable(placed) then
    fail(who .. " returned no table of placements but " .. mh._describe(placed))
  end
  for key in pairs(placed) do arguments.choice(who, "field", key, kFields) end
  local names = check_mesh(who, placed.mesh, config.plan_ngpus)
  local pipelined = false
  for _, one in ipairs(names) do pipelined = pipelined or one == "pp" end
  for name, dim in pairs(placed.inputs or {}) do
    check_dim(who, "inputs", name, names)
    check_input_dim(who, name, dim, graph)
  end
  for parameter, list in pairs(placed.parameter or {}) do
    local wanted = #names - (pipelined and 1 or 0)
    if type(list) ~= "table" or #list ~= wanted then
      fail(("%s: '%s' needs a list of %s, one for each mesh dim%s"):format(who, tostring(parameter),
        plural(wanted, "placement"), pipelined and " but \"pp\"" or ""))
    end
  end
  check_stored(who, placed, names)
  check_micro_batches(who, placed.micro_batches, config)
  if placed.recompute ~= nil then recompute.check(who, placed.recompute, module) end
  if pipelined and placed.forward then fail(who .. " has stages, and placements in forward, which go to one module") end
  if (placed.stages ~= nil) ~= pipelined then
    fail(who .. (pipelined and " has a mesh dim \"pp\" and no stages" or " has stages and no mesh dim \"pp\""))
  end
  if pipelined then
    if not config.use_end2end then
      fail(("%s makes a pipeline of stages, which only modules whose forward gives the loss can be\n  fix   "
        .. "ComputeConfig{use_end2end = true}, with %s:stages() and %s:loss(output, sample)")
        :format(who, graph.class, graph.class))
    end
    if config.use_async_reducer or config.reducer_bucket_cap_mb ~= 32 then
      fail(("%s makes a pipeline, whose gradients have no reducer\n  have  %s\n  fix   leave it out"):format(who,
        config.use_async_reducer and "use_async_reducer = true" or "reducer_bucket_cap_mb = "
          .. config.reducer_bucket_cap_mb))
    end
    check_stages(who, placed.stages, graph)
  end
  return as_text(placed)
end

return checked
