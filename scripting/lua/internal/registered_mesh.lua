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

--- mh.set_mesh(mesh) -> DeviceMesh?
---   Registers the mesh of the run, which mh.get_mesh and modules find; nil removes it.
---   mesh        DeviceMesh?   the mesh
---   returns     DeviceMesh?   the mesh itself
---   collective  no, but all ranks must register the same
---   errors      ValueError: another mesh is registered
---   example
---     mh.set_mesh(mesh)
---     local found = mh.get_mesh("domain") == mesh["domain"]
---     mh.set_mesh(nil)
---     found    --> true
function registered.set_mesh(mesh)
  if mesh ~= nil and not is_mesh(mesh) then
    fail("set_mesh: expected a mesh, got " .. mh._describe(mesh)
      .. "\n  fix   mh.set_mesh(mh.init_device_mesh(\"cpu\", {2, 2}, {\"dp\", \"domain\"}))")
  end
  if mesh ~= nil and current ~= nil and mesh ~= current then
    fail(("set_mesh: %s is registered already\n  fix   mh.set_mesh(nil) first, or pass %s on as an argument"):format(
      current, mesh))
  end
  current = mesh
  return mesh
end

--- mh.get_mesh(...) -> DeviceMesh
---   The registered mesh, or its slice along named dims: mh.get_mesh("domain").
---   returns     DeviceMesh  the mesh or a slice
---   collective  over the mesh at the first call with several names, else no
---   errors      ValueError: no mesh is registered
---   example
---     mh.set_mesh(mesh)
---     local names = mh.get_mesh().names
---     mh.set_mesh(nil)
---     names    --> {"domain"}
function registered.get_mesh(...)
  if current == nil then
    fail("get_mesh: no mesh is registered\n  fix   mh.set_mesh(mesh) at the beginning of the run")
  end
  if select("#", ...) == 0 then return current end
  return current[{...}]
end

--- mh.has_mesh() -> boolean
---   Whether a mesh is registered, for modules that also run on one rank.
---   returns     boolean     the same on all ranks
---   collective  no
---   example
---     mh.has_mesh()    --> false
function registered.has_mesh() return current ~= nil end

return registered
