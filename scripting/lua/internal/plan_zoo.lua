-- SPDX-License-Identifier: Apache-2.0
-- Plans for models of known structure. They read what a module consists of, so names and sizes are the user's own.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local parallelize = require "moonhalo.internal.parallelize"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail

-- `needs`: classes of layers without which a module has another structure. `field`: the first argument of forward is a
-- field [batch, channels, first spatial dim, ...], which is cut along the first spatial dim. `wide`: pairs of Linears
-- that widen and narrow again keep their weights in blocks.
local kStructures = {
  unet2d = {needs = {"Conv2d"}, field = true},
  unet3d = {needs = {"Conv3d"}, field = true},
  convnext = {needs = {"Conv2d", "Linear"}, field = true, wide = true},
  fno = {needs = {}, field = true},
  vit = {needs = {"Conv2d", "Linear"}, field = true, wide = true},
  dit = {needs = {"Conv2d", "Linear"}, field = true, wide = true},
  mlp = {needs = {"Linear"}, tensor_parallel = true},
}

local function is_a(module, kind)
  for _, one in ipairs(parallelize.kinds_of(module)) do
    if one == kind then return true end
  end
  return false
end

local function path(prefix, name) return prefix == "" and name or prefix .. "." .. name end

--- Names of two Linears that follow each other in one module, the second taking what the first gives.
local function pairs_of_linears(net, fits)
  local found = {}
  for prefix, module in net:named_modules() do
    local before
    for name, child in module._modules do
      local shape = is_a(child, "Linear") and child.weight.shape
      if before and shape and before.shape[1] == shape[2] and fits(before.shape, shape) then
        found[#found + 1] = {before.name, path(prefix, name)}
        before = nil
      elseif shape then
        before = {name = path(prefix, name), shape = shape}
      end
    end
  end
  return found
end

local function widens(first, second) return first[1] > first[2] and second[1] < second[2] end

local function check(name, net)
  arguments.module("plan.zoo", net)
  arguments.choice("plan.zoo", "structure", name, sorted_keys(kStructures))
  local have = {}
  for _, module in net:named_modules() do
    for _, kind in ipairs(parallelize.kinds_of(module)) do have[kind] = true end
  end
  for _, kind in ipairs(kStructures[name].needs) do
    if not have[kind] then
      fail(("plan.zoo: '%s' needs a %s, which this %s lacks\n  have  %s\n" ..
          "  fix   choose the structure that it has, or write a plan")
        :format(name, kind, net:class_name(), table.concat(sorted_keys(have), ", ")))
    end
  end
end

--- mh.plan.zoo(name, net) -> table
---   A plan for a model of known structure: fields are cut along their first dim of space, wide pairs of Linears keep
---   their weights in blocks. Every plan gives the numbers of the whole module.
---   name        "unet2d"|"unet3d"|"convnext"|"fno"|"vit"|"dit"|"mlp"   the structure
---   net         Module      the model; it is read, not changed
---   returns     table       for mh.parallelize_module
---   collective  no
---   errors      ValueError: an unknown name, or a module of another structure
---   example
---     local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
---     mh.parallelize_module(net, mesh, mh.plan.zoo("mlp", net))
---     net(mh.ones{2, 4}).shape    --> {2, 4}
local function zoo(name, net)
  check(name, net)
  local structure, plan = kStructures[name], {}
  if structure.field then plan.forward = {input = {{mh.Shard(2)}}} end
  if structure.wide then
    for _, pair in ipairs(pairs_of_linears(net, widens)) do
      plan.parameter = plan.parameter or {}
      plan.parameter[pair[1] .. ".*"], plan.parameter[pair[2] .. ".weight"] = {mh.Shard(0)}, {mh.Shard(1)}
    end
  end
  if structure.tensor_parallel then
    for _, pair in ipairs(pairs_of_linears(net, function() return true end)) do
      plan[pair[1]], plan[pair[2]] = mh.ColwiseParallel(), mh.RowwiseParallel()
    end
    if next(plan) == nil then
      fail(("plan.zoo: '%s' needs two Linears in a row in one module, the second taking what the first gives"):format(
          name))
    end
  end
  return plan
end

return zoo
