-- SPDX-License-Identifier: Apache-2.0
-- moonhalo check: the script of a simulation code without the code. mh.host is as there, its fields are made up.

local mh = require "moonhalo"

local check = {}
local known = {}  -- globals that are not the script's
local verify      -- whether each call is compared with one on whole fields

function check.prepare(compares)
  verify = compares
  rawset(mh, "host", require("moonhalo.internal.host").new())
  for name in pairs(_G) do known[name] = true end
end

--- The ranks as a grid of two dims, as square as it can be.
local function grid_of(ranks)
  local rows = 1
  for divisor = 1, ranks do
    if divisor * divisor <= ranks and ranks % divisor == 0 then rows = divisor end
  end
  return {ranks // rows, rows}
end

--- Waves along all dims, of which no two elements near each other are the same.
local function made_up(shape, dtype)
  local values = mh.zeros(shape, {dtype = "float64"})
  for dim = 1, #shape do
    local along = {}
    for d = 1, #shape do along[d] = d == dim and shape[d] or 1 end
    values = values + (mh.arange(shape[dim], {dtype = "float64"}) * (0.3 / dim) + dim):sin():reshape(along)
  end
  if dtype:find("int") then values = (values * 10):round() end
  return values:to(dtype)
end

local meshes = {}

--- Fields that are divided in the same way share a mesh, as those of a session do.
local function mesh_of(shape)
  local key = table.concat(shape, "x")
  meshes[key] = meshes[key] or mh.init_device_mesh("cpu", shape)
  return meshes[key]
end

function check.field(name, shape, dtype)
  local ranks = mh.world_size()
  local mesh_shape, placements = {ranks}, {mh.Shard(0)}
  if #shape > 1 and ranks > 1 then
    mesh_shape = grid_of(ranks)
    placements = {mh.Shard(0), mh.Shard(1)}
  end
  rawset(mh.host.fields, name, mh.distribute_tensor(made_up(shape, dtype), mesh_of(mesh_shape), placements))
end

local function describe(value)
  if mh.is_tensor(value) then
    if value:numel() == 1 then return ("%.6g"):format(value:item()) end
    return ("a tensor of [%s], which mh_call cannot take"):format(table.concat(value.shape, ", "))
  end
  if type(value) == "number" then return ("%.6g"):format(value) end
  return ("a %s, which mh_call cannot take"):format(type(value))
end

local function functions()
  local names = {}
  for name, value in pairs(_G) do
    if not known[name] and type(name) == "string" and type(value) == "function" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

function check.call(name, numbers)
  local fn = rawget(_G, name)
  if type(fn) ~= "function" or known[name] then
    local names = functions()
    mh.fail(("check: the script has no function '%s'%s\n  have  %s\n" ..
      "  fix   define it in the script, without `local`"):format(
      name, mh.did_you_mean(name, names), #names > 0 and table.concat(names, ", ") or "no global functions"))
  end
  if verify then
    local apart, where = mh.host.verify(name, numbers)
    if mh.rank() == 0 then
      print(("same  %s(%s), to %.2g (%s)"):format(name, table.concat(numbers, ", "), apart, where))
    end
  end
  local results = table.pack(fn(table.unpack(numbers)))
  local texts = {}
  for i = 1, results.n do texts[i] = describe(results[i]) end
  if mh.rank() == 0 then
    print(("ok     %s(%s)%s"):format(name, table.concat(numbers, ", "), results.n > 0 and " -> "
        .. table.concat(texts, ", ") or ""))
  end
end

function check.call_all()
  local names = functions()
  if #names == 0 then
    mh.fail("check: the script has no global functions, so mh_call can call none\n  have  a script without them\n"
      .. "  fix   define them without `local`")
  end
  for _, name in ipairs(names) do
    local numbers = {}
    for i = 1, debug.getinfo(rawget(_G, name), "u").nparams do numbers[i] = 1 end
    check.call(name, numbers)
  end
end

return check
