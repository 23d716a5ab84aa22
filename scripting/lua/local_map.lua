-- SPDX-License-Identifier: Apache-2.0
-- mh.local_map: a function of plain tensors, run on every rank's block.

local mh = require "moonhalo"

local fail, is_tensor = mh.fail, mh.is_tensor

local kOptions = {"in_placements", "out_placements", "in_grad_placements", "mesh", "redistribute_inputs"}

local function is_placement(value) return type(value) == "userdata" and not is_tensor(value) end

--- The placements of argument or result `i`: a list, one placement, or nil for what is left alone.
local function entry(given, i)
  if given == nil then return nil end
  local value = is_placement(given) and (i == 1 and given or nil) or not is_placement(given) and given[i] or nil
  if value == nil or value == mh.none or value == false then return nil end
  return is_placement(value) and {value} or value
end

local function last_of(given)
  if given == nil then return 0 end
  if is_placement(given) then return 1 end
  local last = 0
  for key in pairs(given) do last = math.max(last, key) end
  return last
end

--- Where the gradient of a block comes from: of a replicated one, every rank has a part when the results are cut or are
--- sums, and all have the same when the results are replicated.
local function gradient_placements(placements, outs, tensor, position)
  local gradient = {}
  for m, placement in ipairs(placements) do
    gradient[m] = placement:is_shard() and placement or mh.Replicate()
    if placement:is_replicate() then
      local parts, wholes = false, false
      for _, out in pairs(outs) do
        if out[m]:is_replicate() then wholes = true else parts = true end
      end
      if parts and wholes and tensor.requires_grad then
        fail(("local_map: argument %d is replicated and needs a gradient; of the results some are cut and some replicated")
          :format(position) .. "\n  fix   say what its gradient is with in_grad_placements")
      end
      if parts then gradient[m] = mh.Partial("sum") end
    end
  end
  return gradient
end

local function placements_text(placements)
  local texts = {}
  for i, placement in ipairs(placements) do texts[i] = tostring(placement) end
  return "{" .. table.concat(texts, ", ") .. "}"
end

local function fits(tensor, placements)
  for m, have in ipairs(tensor.placements) do
    local want = placements[m]
    local dim = want.dim and want.dim % tensor.ndim
    if have.dim ~= dim or have.op ~= want.op then return false end
    if want.sizes and table.concat(have.sizes, ",") ~= table.concat(want.sizes, ",") then return false end
  end
  return true
end

--- A function that calls `fn` with blocks. `in_placements`: per argument a list of placements (one placement for a mesh of
--- one dimension), nil for what is passed as it is; a plain tensor with placements counts as replicated. `out_placements`:
--- per result, nil for what stays as it is. `in_grad_placements`: per argument, where the default (see above) does not
--- do. `redistribute_inputs`: bring arguments to in_placements, which are refused otherwise. Collective over the mesh.
return function(fn, options)
  options = options or {}
  for key in pairs(options) do
    local known = false
    for _, name in ipairs(kOptions) do known = known or name == key end
    if not known then
      fail("local_map: unknown option '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), kOptions)
        .. "\n  have  " .. table.concat(kOptions, ", "))
    end
  end
  if options.out_placements == nil then fail("local_map: out_placements is missing") end
  local outs = {}
  for i = 1, last_of(options.out_placements) do outs[i] = entry(options.out_placements, i) end

  return function(...)
    local args, mesh = table.pack(...), options.mesh
    for i = 1, args.n do
      if is_tensor(args[i]) and args[i]:is_shard_tensor() then mesh = mesh or args[i].mesh end
    end
    if not mesh then return fn(...) end
    for i = 1, args.n do
      local value, wanted = args[i], entry(options.in_placements, i)
      if is_tensor(value) and (wanted or value:is_shard_tensor()) then
        if not value:is_shard_tensor() then
          local whole = {}
          for m = 1, mesh.ndim do whole[m] = mh.Replicate() end
          value = mh.from_local(value, mesh, whole)
        end
        if wanted and #wanted ~= mesh.ndim then
          fail(("local_map: argument %d has %d placements for %s"):format(i, #wanted, mesh))
        end
        if wanted and not fits(value, wanted) then
          if not options.redistribute_inputs and args[i]:is_shard_tensor() then
            fail(("local_map: argument %d has placements %s, in_placements says %s\n  fix   redistribute it, or give redistribute_inputs = true")
              :format(i, placements_text(value.placements), placements_text(wanted)))
          end
          value = value:redistribute(wanted)
        end
        local gradient = entry(options.in_grad_placements, i) or gradient_placements(value.placements, outs, value, i)
        args[i] = mh._plans.local_block(value, gradient)
      end
    end
    local results = table.pack(fn(table.unpack(args, 1, args.n)))
    for i, placements in pairs(outs) do
      if i > results.n then fail(("local_map: out_placements is for %d results, there are %d"):format(i, results.n)) end
      if results[i] ~= nil then results[i] = mh.from_local(results[i], mesh, placements) end
    end
    return table.unpack(results, 1, results.n)
  end
end
