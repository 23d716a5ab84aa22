-- SPDX-License-Identifier: Apache-2.0
-- S21: mesh, device and groups in one place, where modules find them.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local tests = {}

-- It is handed no mesh: what it adds is as the run divides the domain.
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

-- parallelize_module(net, plan) and parallelize_module(net, nil, plan): the mesh is the registered one.
function tests.test_S21_parallelize_module_takes_the_registered_mesh()
  local mesh = mh.init_device_mesh(mh.device(), {3}, {"tp"})
  local plan = {parameter = {weight = {mh.Shard(0)}}, forward = {output = {{mh.Replicate()}}}}
  local x = mh.arange(8):double():reshape{2, 4}
  local function linear() mh.manual_seed(1); return mh.nn.Linear(4, 7):double() end
  local function sizes(net) return net.weight:shard_sizes(0) end
  local expected = linear()(x)
  testing.assert_error(function() mh.parallelize_module(linear(), plan) end,
    "parallelize_module: expected a mesh\n  have  none, and none is registered\n" ..
        "  fix   mh.parallelize_module(net, mesh, plan), or mh.set_mesh(mesh)")
  mh.set_mesh(mesh)

  for _, arguments in ipairs {{plan, n = 1}, {nil, plan, n = 2}, {mh.plan.new(plan), {src_data_rank = 1}, n = 2},
    {mh.ColwiseParallel{output_layouts = mh.Replicate()}, n = 1}} do
    local net = mh.parallelize_module(linear(), table.unpack(arguments, 1, arguments.n))
    testing.assert_equal(net.weight.mesh == mesh, true)
    testing.assert_equal(sizes(net), {3, 2, 2})
  end
  local y = mh.parallelize_module(linear(), plan)(x)
  testing.assert_close(y:full_tensor(), expected)
  local other = mh.init_device_mesh(mh.device(), {3}, {"other"})
  testing.assert_equal(mh.parallelize_module(linear(), other, plan).weight.mesh == other, true)
  testing.assert_error(function() mh.parallelize_module(linear(), 3, plan) end,
      "parallelize_module: expected a mesh\n  have  3")
  mh.set_mesh(nil)
end

function tests.test_ranks_know_their_number_on_their_host()
  local seen = mh.rank() == 0 and mh.local_rank()  -- no collective
  testing.assert_equal(seen, mh.rank() == 0 and 0)
  testing.assert_equal(mh.local_rank(), mh.rank())  -- all are on this host
end

function tests.test_S21_mistakes_are_named()
  testing.assert_error(mh.get_mesh, "no mesh is registered")
  testing.assert_error(function() mh.set_mesh({3}) end, "expected a mesh, got {3}")
  mh.set_mesh(mh.init_device_mesh(mh.device(), {3}, {"domain"}))
  testing.assert_error(function() mh.set_mesh(mh.init_device_mesh(mh.device(), {3}, {"dp"})) end,
      "(3: domain) is registered already")
  testing.assert_error(function() mh.get_mesh("domian") end,
      "no mesh dimension named \"domian\"; did you mean 'domain'?")
  mh.set_mesh(nil)
end

return tests
