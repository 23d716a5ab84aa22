-- SPDX-License-Identifier: Apache-2.0
-- The trace shows what was chosen for an operator, and its cost: S25, S13.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local S, R = mh.Shard, mh.Replicate
local tests = {}

function tests.test_op_trace_tells_what_was_chosen()
  local x = mh.distribute_tensor(mh.ones({6, 4}), mesh, {S(0, {1, 3, 2})})
  local w = mh.distribute_tensor(mh.ones({6, 4}), mesh, {R()})

  local names, records = mh.op_trace(function()
    local y = x * w
    local _ = y:sum():item()
  end)

  testing.assert_equal(names[1], "aten::mul.Tensor")
  testing.assert_equal(records[1].op, names[1])
  testing.assert_equal(records[1].inputs[1], "Shard(0, {1, 3, 2})")
  testing.assert_equal(records[1].inputs[2], "Replicate() -> Shard(0, {1, 3, 2})")
  testing.assert_equal(records[1].outputs[1], "Shard(0, {1, 3, 2})")
  testing.assert_equal(records[1].bytes, 0)
  testing.assert_equal(records[2].outputs[1], "Partial(sum)")
  testing.assert_equal(#records, #names)
  testing.assert_equal(records[#records].bytes > 0, true) -- item sums up
end

function tests.test_S29_op_trace_tells_why_data_moved()
  local x = mh.distribute_tensor(mh.ones({9, 4}), mesh, {S(0)})
  local y = mh.distribute_tensor(mh.ones({9, 4}), mesh, {S(1)})

  local _, records = mh.op_trace(function() local _ = x:roll(1, 0), x:cumsum(0), x:sort(0), x + y, x + x end)

  local why = {}
  for i, record in ipairs(records) do why[i] = record.traffic end
  testing.assert_equal(table.concat(why, "; "), "halo; all_reduce; redistribute; inputs; none")
end

function tests.test_comm_stats_by_operator()
  local x = mh.distribute_tensor(mh.ones({9, 4}), mesh, {S(0)})
  mh.comm_stats{reset = true}

  local _ = x:cumsum(0), x:cumsum(1), x + x
  local by = mh.comm_stats().by_operator

  testing.assert_equal(by["aten::cumsum"].calls, 2)
  testing.assert_equal(by["aten::cumsum"].bytes > 0, true)
  testing.assert_equal(by["aten::add.Tensor"].bytes, 0)
  testing.assert_equal(by["aten::add.Tensor"].gathered, 0)
  testing.assert_equal(mh.comm_stats{reset = true}.by_operator["aten::mul.Tensor"], nil)
end

-- Every rank gives one row of four float32 to the next.
function tests.test_bytes_are_those_that_left_this_rank()
  local x = mh.distribute_tensor(mh.ones({9, 4}), mesh, {S(0)})
  mh.comm_stats{reset = true}

  local _, records = mh.op_trace(function() local _ = x:roll(1, 0), x:roll(2, 0) end)

  local stats = mh.comm_stats{reset = true}
  testing.assert_equal(records[1].bytes, 16)
  testing.assert_equal(records[2].bytes, 32)
  testing.assert_equal(stats.by_operator["aten::roll"].bytes, 48)
  testing.assert_equal(stats.by_operator["aten::roll"].calls, 2)
end

return tests
