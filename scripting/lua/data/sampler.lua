-- SPDX-License-Identifier: Apache-2.0
-- Orders of samples, which the engine computes (engine/random/sampler.h): the fields of an object are its state.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local checks = require "moonhalo.internal.field_checks"
local strict = require "moonhalo.internal.strict"

local optional, signature, fail = arguments.optional, arguments.signature, mh.fail
local samplers = {}

-- ---- Sampler --------------------------------------------------------------------------------------------------------

--- Checks of what both samplers have.
local kSeed = checks.integer(nil, "seed = 1")
local kEpoch = checks.integer(0, "epoch = 0, the first one")
local kShuffle = checks.flag("shuffle = false keeps the order of the samples")

--- A number of samples; `least`: of what was given, or of the smallest part that drop_last leaves.
local function check_size(value, least, why, fix)
  local expected, example = checks.integer(1, "size = 1000")(value)
  if expected then return expected, example end
  if value < least then return ("at least %d, as %s"):format(least, why), fix end
end

local function check_sampler_size(value, self)
  local expected, fix = check_size(value, self.next or 0, "these were given", "next = 0 first")
  if expected then return expected, fix end
  return check_size(value, self.drop_last and self.batch or 0, "drop_last leaves out a smaller batch",
    "drop_last = false first")
end

local function check_batch(value, self)
  local expected, fix = checks.integer(1, "batch = 8")(value)
  if expected then return expected, fix end
  if self.drop_last and value > self.size then
    return ("at most %d, as drop_last leaves out a smaller batch"):format(self.size), "drop_last = false first"
  end
end

local function check_drop_last(value, self)
  if type(value) ~= "boolean" then return "true or false", "drop_last = true leaves out a smaller last batch" end
  if value and self.batch > self.size then
    return ("false: drop_last leaves nothing of %d samples in batches of %d"):format(self.size, self.batch),
      ("batch = %d first"):format(self.size)
  end
end

local kChecks = {size = check_sampler_size, batch = check_batch, seed = kSeed, epoch = kEpoch, shuffle = kShuffle,
  drop_last = check_drop_last}
kChecks.next = checks.integer_within(0, function(self) return self.size end, "next = 0 begins the epoch again")

local Sampler = {}
local sampler_meta = strict.class {name = "Sampler", methods = Sampler,
  fields = "batch drop_last epoch next seed shuffle size",
  elements = "for index in sampler:batches() do",
  checks = kChecks}
local kSampler = signature("Sampler", {"size", {"batch", 1}, {"shuffle", true}, {"seed", 0}, {"drop_last", false}})

--- mh.data.Sampler(size, {batch = 1, shuffle = true, seed = 0, drop_last = false}) -> Sampler
---   An order of samples: batches of global indices, the same on all ranks, in another order each epoch.
---   size        integer     number of samples
---   batch       integer     samples of a batch
---   shuffle     boolean     false keeps the order of the samples
---   seed        integer     of the orders
---   drop_last   boolean     leaves out a smaller last batch
---   returns     Sampler     #sampler is the number of batches of an epoch, sampler.epoch counts from 0
---   collective  no
---   errors      ValueError: numbers that are out of range
---   example
---     local sampler = mh.data.Sampler(5, {batch = 2, shuffle = false})
---     for index in sampler:batches() do print(index:tolist()) end    --> {0, 1} | {2, 3} | {4}
function samplers.Sampler(...)
  local self = strict.object(sampler_meta, arguments.read(kSampler, ...), kSampler.names)
  self.epoch, self.next = 0, 0
  return self
end

function sampler_meta.__len(self) return mh._sampler_batches(self) end

--- sampler:batches() -> function
---   Goes through the rest of the epoch; then a new one begins. The rest may be empty: that of a sampler that was saved
---   after its last batch. Only of mh.data.Sampler.
---   returns     function    an iterator of int64 tensors of indices from 0
---   collective  no
---   example
---     local sampler = mh.data.Sampler(4, {batch = 2, shuffle = false})
---     for index in sampler:batches() do break end
---     for index in sampler:batches() do print(index:tolist()) end    --> {2, 3}
function Sampler:batches()
  local done
  return function()
    if done then return nil end
    local index = mh._sampler_next(self)
    done = index == nil
    return index
  end
end

local function state_of(self, names)
  local state = {}
  for _, name in ipairs(names) do state[name] = self[name] end
  return state
end

local function refuse(class, ...) fail(class .. ": load_state_dict: " .. (...):format(select(2, ...))) end

--- Errors unless `state` is a table with these integers and `shuffle`.
local function check_state(class, state, integers)
  if type(state) ~= "table" or mh.nn.is_module(state) then
    refuse(class, "expected the table of state_dict(), got %s", mh._describe(state))
  end
  for _, name in ipairs(integers) do
    if math.type(state[name]) ~= "integer" then
      refuse(class, "'%s' is %s, expected an integer", name, mh._describe(state[name]))
    end
  end
  if type(state.shuffle) ~= "boolean" then
    refuse(class, "'shuffle' is %s, expected true or false", mh._describe(state.shuffle))
  end
end

--- sampler:state_dict() -> table
---   Where the order is, as mh.checkpoint saves it: give the sampler as an entry of the checkpoint. That of a
---   DistributedSampler is the seed and the epoch.
---   returns     table       numbers, without ranks
---   collective  no
---   example
---     mh.data.Sampler(4, {seed = 3}):state_dict().seed    --> 3
function Sampler:state_dict()
  return state_of(self, {"size", "batch", "seed", "epoch", "next", "shuffle", "drop_last"})
end

--- sampler:load_state_dict(state) -> nothing
---   Continues with seed, epoch and place of another sampler. The batch size, or the number of replicas, may be
---   another.
---   state       table       of state_dict()
---   returns     nothing
---   collective  no
---   errors      ValueError: another number of samples, or shuffled otherwise
---   example
---     local one, other = mh.data.Sampler(4, {seed = 3}), mh.data.Sampler(4)
---     other:load_state_dict(one:state_dict())
---     other.seed    --> 3
function Sampler:load_state_dict(state)
  check_state("Sampler", state, {"size", "seed", "epoch", "next"})
  mh._sampler_load(self, state)
end

-- ---- DistributedSampler ---------------------------------------------------------------------------------------------

local function check_set_size(value, self)
  return check_size(value, self.drop_last and self.num_replicas or 0, "drop_last leaves out the tail",
    "drop_last = false first")
end

local function check_replicas(value, self)
  local expected, fix = checks.integer(1, "num_replicas = mh.world_size()")(value)
  if expected then return expected, fix end
  if self.rank and self.rank >= value then
    return ("more than rank, which is %d"):format(self.rank), "rank = 0 first"
  end
  if self.drop_last and value > self.size then
    return ("at most %d, as drop_last leaves out the tail"):format(self.size), "drop_last = false first"
  end
end

local check_rank = checks.integer_within(0, function(self) return self.num_replicas - 1 end, "ranks count from 0")

local function check_tail(value, self)
  if type(value) ~= "boolean" then return "true or false", "drop_last = true leaves out the tail" end
  if value and self.size < self.num_replicas then
    return ("false: drop_last leaves nothing of %d samples for %d replicas"):format(self.size, self.num_replicas),
      ("num_replicas = %d first"):format(self.size)
  end
end

local Distributed = {}
local distributed_meta = strict.class {name = "DistributedSampler", methods = Distributed, word = "Sampler",
  fields = "dataset drop_last epoch num_replicas rank seed shuffle size",
  elements = "sampler:indices() gives the samples of this replica",
  checks = {dataset = checks.fixed("dataset", "make another sampler of the data set"),
    size = check_set_size, num_replicas = check_replicas, rank = check_rank,
    seed = kSeed, epoch = kEpoch, shuffle = kShuffle, drop_last = check_tail}}
local kDistributed = signature("DistributedSampler", {"dataset", optional "num_replicas", optional "rank",
  {"shuffle", true}, {"seed", 0}, {"drop_last", false}})

--- mh.data.DistributedSampler(dataset, {num_replicas = nil, rank = nil, shuffle = true, seed = 0,
---     drop_last = false}) -> Sampler
---   The samples of one of several replicas, as PyTorch's. Ranks that need the same samples give the number of groups
---   and that of their group: num_replicas = mh.world_size() // 4, rank = mh.rank() // 4.
---   dataset     integer|table   a number of samples, or a value with a length
---   num_replicas   integer?   nil for the ranks of the run
---   rank        integer?    nil for this rank
---   shuffle     boolean     false keeps the order of the samples
---   seed        integer     of the orders
---   drop_last   boolean     leaves out the tail; else the first samples come again, so that all replicas have as many
---   returns     Sampler     #sampler is the number of samples of a replica
---   collective  no
---   errors      ValueError: numbers that are out of range
---   example
---     local sampler = mh.data.DistributedSampler(6, {num_replicas = 2, rank = 1, shuffle = false})
---     sampler:indices():tolist()    --> {1, 3, 5}
function samplers.DistributedSampler(...)
  local name, given = "DistributedSampler", arguments.read(kDistributed, ...)
  local dataset = given.dataset
  local meta = type(dataset) ~= "table" and getmetatable(dataset)
  if type(dataset) ~= "number" and type(dataset) ~= "table" and (type(meta) ~= "table" or meta.__len == nil) then
    fail(("%s: dataset is a number of samples, or what has a length\n  have  %s\n" ..
      "  fix   %s(1000), or %s(files)"):format(name, mh._describe(dataset), name, name))
  end
  given.size = arguments.count(name, "size of the data set", type(dataset) == "number" and dataset or #dataset, 1)
  given.num_replicas, given.rank, given.epoch = given.num_replicas or mh.world_size(), given.rank or mh.rank(), 0
  return strict.object(distributed_meta, given,
    {"dataset", "size", "num_replicas", "rank", "shuffle", "seed", "drop_last", "epoch"})
end

function distributed_meta.__len(self) return mh._replica_samples(self) end

--- sampler:set_epoch(epoch) -> nothing
---   Another epoch has another order. Only of mh.data.DistributedSampler.
---   epoch       integer     from 0
---   returns     nothing
---   collective  no
---   errors      ValueError: not an integer of at least 0
---   example
---     local sampler = mh.data.DistributedSampler(6)
---     sampler:set_epoch(2)
---     sampler.epoch    --> 2
function Distributed:set_epoch(epoch)
  self.epoch = epoch
end

function Distributed:state_dict() return state_of(self, {"size", "seed", "epoch", "shuffle"}) end

function Distributed:load_state_dict(state)
  local class = "DistributedSampler"
  check_state(class, state, {"size", "seed", "epoch"})
  if state.size ~= self.size then
    refuse(class, "has %d samples, the data set %d\n" ..
      "  fix   load it with the data set that it was saved with, or begin a new order", state.size, self.size)
  end
  if state.shuffle ~= self.shuffle then
    refuse(class, "was saved with shuffle = %s, this one has %s", tostring(state.shuffle), tostring(self.shuffle))
  end
  self:set_epoch(state.epoch)
  self.seed = state.seed
end

--- sampler:indices() -> Tensor
---   The samples of this replica. Only of mh.data.DistributedSampler.
---   returns     Tensor      int64 [#sampler], indices from 0
---   collective  no
---   example
---     mh.data.DistributedSampler(6, {num_replicas = 3, rank = 0, shuffle = false}):indices():tolist()    --> {0, 3}
function Distributed:indices() return mh._replica_indices(self) end

return samplers
