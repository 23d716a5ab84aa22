-- SPDX-License-Identifier: Apache-2.0
-- Orders of samples that keep compressed chunks together.
local mh = require "moonhalo"
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

return tests
