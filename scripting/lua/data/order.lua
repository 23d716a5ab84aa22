-- SPDX-License-Identifier: Apache-2.0
-- The order of samples in an epoch, as a function of seed and epoch alone: nothing in it depends on ranks, cuts or
-- batches. "chunks" keeps samples together that read the same compressed chunks:
--
--     samples   | 0 1 2 3 | 4 5 6 7 | 8 9 10 11 |        blocks that share a chunk of four steps
--     blocks are permuted, then the samples of every 8 chunks that follow each other then: each chunk is soon done with
--
-- Windows that reach over their anchor's chunk need the next one too, so their blocks are of four chunks.

local mh = require "moonhalo"
local strict = require "moonhalo.internal.strict"

local Order = {}
local meta = strict.class {name = "Order", methods = Order,
  fields = "all blocks epoch seed set shuffle"}

local kBuffer = 8  -- chunks
local kReaching = 4  -- chunks of a block, for windows of several steps
local kGolden = 0x9E3779B97F4A7C15  -- keys of buffers are apart

--- `shuffle`: false, true or "chunks".
function Order.new(set, shuffle, seed) return setmetatable({set = set, shuffle = shuffle, seed = seed}, meta) end

--- Steps that one chunk holds, of the field that has most.
local function chunk_steps(set)
  local most = 1
  for _, name in ipairs(set:fields()) do most = math.max(most, set.data.fields[name].chunk_steps) end
  return most
end

local function chunks_of_block(set) return set.high > set.low and kReaching or 1 end

--- {first sample, count} of consecutive samples whose anchors are in one block of one file.
local function blocks_of(set)
  local blocks, steps, last = {}, chunk_steps(set) * chunks_of_block(set), nil
  for i = 0, set.count - 1 do
    local run, anchor = set:at(i)
    local file, sample, at = set.data:_locate(run, anchor)
    local key = ("%d:%d:%d:%d"):format(run, file, sample, at // steps)
    if key == last then
      blocks[#blocks][2] = blocks[#blocks][2] + 1
    else
      blocks[#blocks + 1], last = {i, 1}, key
    end
  end
  return blocks
end

local on_host = {dtype = "int64", device = "cpu"}

--- The whole order of an epoch, int64 [samples].
local function by_chunks(self, epoch)
  self.blocks = self.blocks or blocks_of(self.set)
  local blocks, parts, buffer = self.blocks, {}, kBuffer // chunks_of_block(self.set)
  local permuted = mh._permuted(mh.arange(#blocks, on_host), #blocks, self.seed, epoch):tolist()
  for first = 1, #permuted, buffer do
    local samples = {}
    for i = first, math.min(first + buffer - 1, #permuted) do
      local block = blocks[permuted[i] + 1]
      for k = 0, block[2] - 1 do samples[#samples + 1] = block[1] + k end
    end
    local places = mh._permuted(mh.arange(#samples, on_host), #samples, self.seed + first * kGolden, epoch)
    parts[#parts + 1] = mh.tensor(samples, on_host):index_select(0, places)
  end
  return mh.cat(parts, 0)
end

--- The samples at places [first, last) of an epoch, a list.
function Order:samples(epoch, first, last)
  if self.shuffle == "chunks" then
    if self.epoch ~= epoch then self.epoch, self.all = epoch, by_chunks(self, epoch) end
    return self.all:narrow(0, first, last - first):tolist()
  end
  local places = mh.arange(first, last, on_host)
  return (self.shuffle and mh._permuted(places, self.set.count, self.seed, epoch) or places):tolist()
end

return Order
