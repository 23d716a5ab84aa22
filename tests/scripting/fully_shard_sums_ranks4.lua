-- SPDX-License-Identifier: Apache-2.0
-- The tests of fully_shard_sums_ranks3.lua on four ranks, and sums over copies of blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local tests = require "fully_shard_sums_ranks3"

function tests.test_N35_sums_over_copies_of_blocks_are_made_in_the_type_asked_for()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"copies", "blocks"})
  local policy = {param_dtype = "bfloat16", reduce_dtype = "bfloat16"}
  local net = mh.fully_shard(mh.nn.Linear(6, 8), {mesh = mesh, min_numel = 1, mp_policy = policy})
  local opt, seen = mh.optim.SGD(net:parameters(), {lr = 0.1}), {}
  opt:register_reducer_pre_hook(function(flat) seen[#seen + 1] = flat.dtype end)
  net(mh.local_batch(mh.ones{2, 6})):float():square():mean():backward()
  opt:step()
  testing.assert_equal(seen, {"bfloat16", "bfloat16"})
end

return tests
