-- SPDX-License-Identifier: Apache-2.0
-- Orders of samples that keep compressed chunks together.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"

local tests = {}

--- Eight chunks of one step are a buffer, so the order within it can be seen.
function tests.test_X21_buffers_of_chunks_have_orders_of_their_own()
  local path = files.cf("d_buffers.nc", 0, 64, {compression = 1, chunks = {1, 7, 5}, without_z = true})
  local set = mh.data.open(path):windows{inputs = {fields = {"t2m"}, steps = {0}}}
  local function orders(seed)
    local seen = {}
    for batch in set:loader{batch = 16, shuffle = "chunks", seed = seed}:batches() do
      for _, sample in ipairs(batch.index:tolist()) do seen[#seen + 1] = sample end
    end
    local before, found, different = mh._permuted(mh.arange(64, {dtype = "int64"}), 64, seed, 0):tolist(), {}, 0
    for buffer = 0, 7 do
      local place, order = {}, {}
      for i = 1, 8 do place[before[8 * buffer + i]] = i end
      for i = 1, 8 do order[i] = assert(place[seen[8 * buffer + i]], "a sample of another buffer") end
      local text = table.concat(order, " ")
      different = different + (found[text] and 0 or 1)
      found[text] = true
    end
    return different
  end
  assert(orders(1) >= 7 and orders(2) >= 7)  -- of 8 drawn from 40320
  files.remove{path}
end

--- Batches of the next epoch have been read ahead by then; the one that is asked for has another order.
function tests.test_X21_an_epoch_that_was_left_at_its_last_batch_begins_anew()
  local path = files.cf("d_last.nc", 0, 12, {without_z = true})
  local set = mh.data.open(path):windows{inputs = {fields = {"t2m"}, steps = {0}}}
  local function taken(loader, count, options)
    local seen = {}
    for batch in loader:batches(options) do
      for _, sample in ipairs(batch.index:tolist()) do seen[#seen + 1] = sample end
      if #seen == count then break end
    end
    return seen
  end
  local loader = set:loader{batch = 4, shuffle = true, seed = 8, prefetch = 2}
  local first = taken(loader, 12)
  testing.assert_equal(loader.epoch, 0)
  testing.assert_equal(taken(loader, 12, {resume = false}), first)
  testing.assert_equal(taken(loader, 13, {resume = false}), first)
  assert(mh.json.encode(taken(loader, 12)) ~= mh.json.encode(first))  -- the next epoch
  files.remove{path}
end

return tests
