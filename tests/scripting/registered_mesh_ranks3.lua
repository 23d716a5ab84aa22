-- SPDX-License-Identifier: Apache-2.0
-- S21: mesh, device and groups in one place, where modules find them.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local tests = {}

-- It is handed no mesh: what it adds lies as the run divides the domain.
local Placed = nn.Module:extend("Placed")
function Placed:init(rows)
  local own = mh.arange(rows):double()
  self.offset = mh.has_mesh() and mh.distribute_tensor(own, mh.get_mesh("domain"), {mh.Shard(0)}) or own
end
function Placed:forward(x) return x + self.offset end

function tests.test_S21_modules_find_the_mesh_of_the_run()
  local x = mh.arange(7):double() * 2
  testing.assert_equal(mh.has_mesh(), false)
  local expected = Placed(7)(x)
  local mesh = mh.init_device_mesh(mh.device(), {1, 3}, {"dp", "domain"})

  testing.assert_equal(mh.set_mesh(mesh) == mesh and mh.set_mesh(mesh) == mh.get_mesh(), true)
  local net = Placed(7)

  testing.assert_equal(net.offset.mesh == mesh["domain"], true)
  testing.assert_equal(mh.get_mesh("dp", "domain") == mesh[{"dp", "domain"}], true)
  testing.assert_close(net(x):full_tensor(), expected)
  testing.assert_equal({mh.device(), mh.get_mesh("domain"):size(), mh.get_mesh("domain").rank}, {"cpu", 3, mh.rank()})
  mh.set_mesh(nil)
  testing.assert_equal(mh.has_mesh(), false)
end

function tests.test_S21_mistakes_are_named()
  testing.assert_error(mh.get_mesh, "no mesh is registered")
  testing.assert_error(function() mh.set_mesh({3}) end, "wanted a mesh, got {3}")
  mh.set_mesh(mh.init_device_mesh(mh.device(), {3}, {"domain"}))
  testing.assert_error(function() mh.set_mesh(mh.init_device_mesh(mh.device(), {3}, {"dp"})) end, "(3: domain) is registered already")
  testing.assert_error(function() mh.get_mesh("domian") end, "domian")
  mh.set_mesh(nil)
end

return tests
