-- SPDX-License-Identifier: Apache-2.0
-- Y11: what mh.log costs on other ranks, and mh.log_all: numbers of each rank as one record.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local run_files = require "moonhalo.internal.run_files"
local testing = mh.testing

local tests = {}
local rank, equal = mh.rank(), testing.assert_equal

function tests.test_Y11_log_all_has_least_mean_and_greatest_of_the_ranks()
  local run = mh.run{folder = own_path("all")}
  local given = {step = 3, wait = ({0.5, 4.5, 1.0})[rank + 1], rows = mh.tensor(2 * rank), down = -rank}
  local record = mh.log_all(given)
  run:finish()

  equal(record["wait/min"], 0.5)
  equal(record["wait/mean"], 2.0)
  equal(record["wait/max"], 4.5)
  equal(record["wait/max_rank"], 1)
  equal(record["rows/max_rank"], 2)
  equal(record["down/max_rank"], 0)
  equal(record["down/min"], -2.0)
  if rank ~= 0 then return end
  local records = run_files.read_metrics(run.folder)
  equal(#records, 1)
  equal(records[1].step, 3)
  equal(records[1]["wait/max"], 4.5)
  equal(records[1]["rows/mean"], 2.0)
end

function tests.test_Y11_log_all_names_the_rank_of_a_nan()
  local record = mh.log_all{loss = rank == 1 and 0 / 0 or rank}
  equal(record["loss/max_rank"], 1)
  assert(record["loss/max"] ~= record["loss/max"] and record["loss/min"] ~= record["loss/min"])
  equal(mh.log_all{gain = rank == 2 and math.huge or 1}["gain/max_rank"], 2)
end

function tests.test_Y11_log_all_refuses_what_is_not_of_each_rank()
  local mesh = mh.init_device_mesh(mh.device(), {3}, {"x"})
  local x = mh.distribute_tensor(mh.ones({6}), mesh, {mh.Shard(0)})
  testing.assert_error(function() mh.log_all{x = x:sum()} end, "log_all: 'x' is a ShardTensor")
  testing.assert_error(function() mh.log_all{x = "a"} end, "log_all: 'x' is 'a', expected a number")
  testing.assert_error(function() mh.log_all{rank == 2 and 1 or 2} end, "log_all: names are strings, got 1")
  testing.assert_error(function() mh.log_all{a = 1, [rank == 2 and "b" or "c"] = 2} end,
    "log_all: ranks give different names\n  have  a, c on rank 0, a, b on rank 2")
end

--- Memory in kilobytes that a call leaves to the garbage collector.
local function garbage(call)
  collectgarbage("stop")
  local before = collectgarbage("count")
  call()
  local after = collectgarbage("count")
  collectgarbage("restart")
  return after - before
end

function tests.test_Y11_log_costs_nothing_on_other_ranks()
  local run, record = mh.run{folder = own_path("cost")}, {step = 1}
  for i = 1, 20 do record["metric" .. i] = i / 7 end
  mh.log(record)
  local before = mh.comm_stats().calls
  local left = garbage(function() mh.log(record) end)
  equal(mh.comm_stats().calls, before)
  assert((left == 0) == (rank ~= 0), left)
  run:finish()
end

return tests
