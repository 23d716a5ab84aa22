-- SPDX-License-Identifier: Apache-2.0
-- Checkpoints of several ranks: what fails on the one that writes fails on all in the same way, and they go on.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()})
-- Threads and processes run this at once.
local path = own_path("checkpoint")

local tests = {}

function tests.test_X16_what_cannot_be_written_is_an_error_on_every_rank()
  local x = mh.distribute_tensor(mh.arange(7.0), mesh, {mh.Shard(0)})
  mh.checkpoint.save(path, {x = x})
  -- A folder has the name of a file that is to be written.
  local blocked = path .. "/checkpoint.json/inside"
  local done, problem = pcall(mh.checkpoint.save, blocked, {x = x})

  testing.assert_equal(done, false)
  testing.assert_error(function() error(problem, 0) end, "checkpoint.save: cannot make '" .. blocked
      .. ".partial': Not a directory")
  testing.assert_equal(mh.checkpoint.load(path).x:tolist(), {0, 1, 2, 3, 4, 5, 6})
end

function tests.test_X16_what_is_not_there_is_an_error_on_every_rank()
  local done, problem = pcall(mh.checkpoint.load, "/nowhere/run")

  testing.assert_equal(done, false)
  testing.assert_error(function() error(problem, 0) end, "checkpoint.load: '/nowhere/run' is not a checkpoint")
  mh.barrier()
end

return tests
