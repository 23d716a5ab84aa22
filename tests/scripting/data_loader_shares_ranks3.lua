-- SPDX-License-Identifier: Apache-2.0
-- What each rank of a group reads and decodes for the others, of chunks that several of them need.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local BatchCut = require "moonhalo.data.batch_cut"

local ranks = mh.world_size()
local tests = {}

-- A rank keeps the chunks that it has decoded, and yet holds little more than its share of a batch: three chunks.
function tests.test_X21_no_rank_reads_most_of_a_batch()
  local path = files.cf("d_shares.nc", 0, 48)
  local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"domain"})
  local set = mh.data.open(path):windows{inputs = {fields = {"z"}, steps = {0}}}
  local loader = set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 12, shuffle = true, seed = 1,
      prefetch = 0}
  local begin, most = loader.plan.begin, 0
  rawset(loader.plan, "begin", function(...)
    local batch = begin(...)
    most = math.max(most, table.unpack(batch.counts.z))
    return batch
  end)
  for _ = 1, 12 do
    for _ in loader:batches() do end
  end
  testing.assert_equal(most <= 12 // ranks + 3, true)
  testing.assert_equal(most > 12 // ranks, true)  -- what was decoded is kept by its rank
  files.remove{path}
end

-- Each copy would decode what it needs, also where every chunk is one block's.
function tests.test_X21_copies_count_among_those_who_decode()
  if ranks < 2 then return end
  local function cost(shape, names, cut, chunk)
    return BatchCut.new(mh.init_device_mesh(mh.device(), shape, names), {"y", "x"}, {8, 6},
        cut):cost{chunk_space = chunk}
  end
  local half = 8 // 2
  testing.assert_equal(cost({ranks}, {"copies"}, {}, {8, 6}), ranks * 1.0)
  testing.assert_equal(cost({1, ranks}, {"y", "copies"}, {y = "y"}, {half, 6}), ranks * 1.0)
  testing.assert_equal(cost({ranks, 1}, {"y", "copies"}, {y = {"y", ranks == 4 and {4, 4, 0, 0} or {4, 4, 0}}},
      {half, 6}), 1.0)
end

return tests
