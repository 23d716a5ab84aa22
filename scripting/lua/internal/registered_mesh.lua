-- SPDX-License-Identifier: Apache-2.0
-- The mesh of a run, where modules find it. Its slices are the groups of ranks; mh.device() is the device of the run.

local mh = require "moonhalo"

local fail = mh.fail
local registered = {}

local current

local function is_mesh(value)
  local own = type(value) == "userdata" and getmetatable(value)
  return own and tostring(own.__name):find("DeviceMesh", 1, true) ~= nil
end

registered.is_mesh = is_mesh

--- Registers the mesh of the run, for mh.get_mesh; nil takes it off. An error where another one is registered, since
--- modules may have taken theirs. Returns the mesh.
function registered.set_mesh(mesh)
  if mesh ~= nil and not is_mesh(mesh) then
    fail("set_mesh: wanted a mesh, got " .. mh._describe(mesh)
      .. "\n  fix   mh.set_mesh(mh.init_device_mesh(\"cpu\", {2, 2}, {\"dp\", \"domain\"}))")
  end
  if mesh ~= nil and current ~= nil and mesh ~= current then
    fail(("set_mesh: %s is registered already\n  fix   mh.set_mesh(nil) first, or pass %s on as an argument"):format(
      current, mesh))
  end
  current = mesh
  return mesh
end

--- The registered mesh, or its slice: mh.get_mesh("domain"), mh.get_mesh("dp", "domain"). An error where there is none.
function registered.get_mesh(...)
  if current == nil then
    fail("get_mesh: no mesh is registered\n  fix   mh.set_mesh(mesh) at the beginning of the run")
  end
  if select("#", ...) == 0 then return current end
  return current[{...}]
end

--- True if a mesh is registered, for modules that also run on one rank.
function registered.has_mesh() return current ~= nil end

return registered
