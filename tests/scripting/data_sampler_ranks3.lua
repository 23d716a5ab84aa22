-- SPDX-License-Identifier: Apache-2.0
-- Orders of samples: whole, identically on all ranks, continued from any place (X12); samples by unit (N44). The
-- same file runs on 4 ranks, and alone.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"

local Sampler, DistributedSampler = mh.data.Sampler, mh.data.DistributedSampler
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"all"})
local tests = {}

--- The batches of the rest of an epoch, as lists.
local function rest(sampler)
  local batches = {}
  for index in sampler:batches() do batches[#batches + 1] = index:tolist() end
  return batches
end

local function flat(batches)
  local list = {}
  for _, batch in ipairs(batches) do table.move(batch, 1, #batch, #list + 1, list) end
  return list
end

local function sorted(list)
  local copy = {table.unpack(list)}
  table.sort(copy)
  return copy
end

local function count_up(count)
  local list = {}
  for i = 1, count do list[i] = i - 1 end
  return list
end

--- Collects what every rank holds, rank by rank; the lists must be equally long.
local function of_all_ranks(list)
  return mh.from_local(mh.tensor({list}, {dtype = "int64"}), mesh, {mh.Shard(0)}):full_tensor():tolist()
end

function tests.test_every_sample_comes_once_an_epoch_in_an_order_of_its_own()
  local sampler = Sampler{size = 103, batch = 10, seed = 3}

  local first, second = rest(sampler), rest(sampler)

  testing.assert_equal(#first, 11)
  testing.assert_equal(#sampler, 11)
  testing.assert_equal(#first[11], 3)
  testing.assert_equal(sorted(flat(first)), count_up(103))
  testing.assert_equal(sorted(flat(second)), count_up(103))
  assert(not mh.equal(mh.tensor(flat(first)), mh.tensor(flat(second))), "both epochs have one order")
  assert(not mh.equal(mh.tensor(flat(first)), mh.tensor(count_up(103))), "nothing was shuffled")
  testing.assert_equal(flat(rest(Sampler{size = 103, batch = 7, seed = 3})), flat(first))
  assert(not mh.equal(mh.tensor(flat(rest(Sampler{size = 103, seed = 4}))), mh.tensor(flat(first))),
      "seeds do not count")
end

-- These numbers are part of what a saved state means: another order would repeat and miss samples after an update.
function tests.test_X12_the_order_is_this_one_on_any_number_of_ranks()
  local sampler = Sampler{size = 12, batch = 12, seed = 1}

  testing.assert_equal(flat(rest(sampler)), {0, 4, 9, 6, 11, 7, 8, 10, 5, 2, 3, 1})
  testing.assert_equal(flat(rest(sampler)), {2, 3, 10, 5, 6, 0, 1, 11, 7, 8, 4, 9})
end

function tests.test_all_ranks_have_one_order()
  for _, list in ipairs(of_all_ranks(flat(rest(Sampler{size = 57, batch = 8, seed = 2})))) do
    testing.assert_equal(list, flat(rest(Sampler{size = 57, batch = 8, seed = 2})))
  end
end

function tests.test_without_shuffle_and_the_smaller_batch()
  testing.assert_equal(rest(Sampler{size = 5, batch = 2, shuffle = false}), {{0, 1}, {2, 3}, {4}})
  local whole = Sampler{size = 5, batch = 2, shuffle = false, drop_last = true}
  testing.assert_equal(rest(whole), {{0, 1}, {2, 3}})
  testing.assert_equal(#whole, 2)
  testing.assert_equal(whole.epoch, 1)
  testing.assert_equal(rest(Sampler{size = 4, batch = 2, shuffle = false, drop_last = true}), {{0, 1}, {2, 3}})
  testing.assert_equal(Sampler(4, 3):batches()().dtype, "int64")
end

-- A step's batch is cut like any tensor.
function tests.test_an_index_selects_from_blocks()
  mh.manual_seed(1)
  local x = mh.randn({23, 4}, {dtype = "float64"})
  local cut = mh.distribute_tensor(x, mesh, {mh.Shard(1)})
  for index in Sampler{size = 23, batch = 9}:batches() do
    testing.assert_close(cut:index_select(0, index):full_tensor(), x:index_select(0, index))
  end
end

-- ---- Going on -------------------------------------------------------------------------------------------------------

--- `count` batches from here on, epochs one after the other.
local function take(sampler, count)
  local batches = {}
  while #batches < count do
    for index in sampler:batches() do
      batches[#batches + 1] = index:tolist()
      if #batches == count then break end
    end
  end
  return batches
end

function tests.test_X12_goes_on_after_any_batch()
  for _, drop_last in ipairs{false, true} do
    local options = {size = 23, batch = 5, seed = 9, drop_last = drop_last}
    local expected = take(Sampler(options), 14)
    for stop = 0, 12 do
      local before = Sampler(options)
      take(before, stop)
      local after = Sampler{size = 23, batch = 5, drop_last = drop_last}

      after:load_state_dict(mh.json.decode(mh.json.encode(before:state_dict())))

      testing.assert_equal(take(after, 14 - stop), {table.unpack(expected, stop + 1)})
    end
  end
end

function tests.test_X12_a_checkpoint_keeps_the_place()
  local path = own_path("sampler")
  local before = Sampler{size = 40, batch = 6, seed = 5}
  take(before, 3)
  mh.checkpoint.save(path, {data = before})

  local after = Sampler{size = 40, batch = 4}
  mh.checkpoint.load(path, {data = after})

  testing.assert_equal(after.seed, 5)
  testing.assert_equal(flat(rest(after)), flat(rest(before)))
  testing.assert_equal({after.epoch, after.next}, {1, 0})
end

function tests.test_states_that_do_not_fit()
  local function refused(change, text)
    local sampler = Sampler{size = 1200, batch = 8}
    local state = Sampler{size = 1200, batch = 8}:state_dict()
    for name, value in pairs(change) do state[name] = value end
    testing.assert_error(function() sampler:load_state_dict(state) end, "Sampler: load_state_dict: " .. text)
    testing.assert_equal({sampler.epoch, sampler.next, sampler.seed}, {0, 0, 0})
  end
  refused({size = 1000}, "has 1000 samples, the data set 1200\n  fix   load it with the data set")
  refused({shuffle = false}, "was saved with shuffle = false, this one has true")
  refused({epoch = "two"}, "'epoch' is 'two', expected an integer")
  refused({next = 1201}, "sample 1201 of epoch 0 is outside of 1200 samples")
  testing.assert_error(function() Sampler(3):load_state_dict("x") end, "expected the table of state_dict(), got 'x'")
end

function tests.test_arguments_that_do_not_fit()
  testing.assert_error(function() Sampler{batch = 3} end, "Sampler: 'size' is missing")
  testing.assert_error(function() Sampler{size = 0} end, "Sampler: size is 0, expected an integer of at least 1")
  testing.assert_error(function() Sampler{size = 4, batch = 2.5} end, "Sampler: batch is 2.5, expected an integer")
  testing.assert_error(function() Sampler{size = 4, bach = 2} end, "unknown option 'bach'; did you mean 'batch'?")
  testing.assert_error(function() Sampler{size = 4, batch = 5, drop_last = true} end,
      "drop_last leaves nothing of 4 samples")
  testing.assert_error(function() return mh.data.Samples end, "data: no 'Samples'; did you mean 'Sampler'?")
end

-- ---- Samples by unit ------------------------------------------------------------------------------------------------

-- PyTorch 2.11: DistributedSampler(range(size), replicas, rank, shuffle=False, drop_last=drop_last)
function tests.test_N44_unshuffled_samples_are_those_of_pytorch()
  local function of(size, replicas, rank, drop_last)
    return DistributedSampler(size, {num_replicas = replicas, rank = rank, shuffle = false,
        drop_last = drop_last}):indices():tolist()
  end
  testing.assert_equal({of(7, 3, 0), of(7, 3, 1), of(7, 3, 2)}, {{0, 3, 6}, {1, 4, 0}, {2, 5, 1}})
  testing.assert_equal({of(7, 3, 0, true), of(7, 3, 2, true)}, {{0, 3}, {2, 5}})
  testing.assert_equal({of(2, 5, 3), of(2, 5, 4)}, {{1}, {0}})
end

function tests.test_N44_ranks_of_a_unit_have_one_input_and_units_have_others()
  local plan = mh.world_size() % 2 == 0 and 2 or 1
  local units = mh.world_size() // plan
  local sampler = DistributedSampler{dataset = 31, num_replicas = units, rank = mh.rank() // plan, seed = 4}

  local all = of_all_ranks(sampler:indices():tolist())

  local seen = {}
  for rank, list in ipairs(all) do
    local unit = (rank - 1) // plan
    testing.assert_equal(list, all[unit * plan + 1])
    testing.assert_equal(#list, #sampler)
    if (rank - 1) % plan == 0 then table.move(list, 1, #list, #seen + 1, seen) end
  end
  local padding = #seen - 31
  testing.assert_equal(padding < units, true)
  local distinct = {}
  for _, sample in ipairs(seen) do distinct[sample] = true end
  for sample = 0, 30 do testing.assert_equal(distinct[sample], true) end
end

function tests.test_N44_a_checkpoint_continues_with_seed_and_epoch()
  local path = own_path("distributed_sampler")
  local saved = DistributedSampler(11, {num_replicas = 3, rank = 1, seed = 4})
  saved:set_epoch(2)
  mh.checkpoint.save(path, {sampler = saved})
  local loaded = DistributedSampler(11, {num_replicas = 3, rank = 1})

  mh.checkpoint.load(path, {sampler = loaded})

  testing.assert_equal({loaded.seed, loaded.epoch}, {4, 2})
  testing.assert_equal(loaded:indices():tolist(), saved:indices():tolist())
  testing.assert_error(function() DistributedSampler(12):load_state_dict(saved:state_dict()) end,
    "DistributedSampler: load_state_dict: has 11 samples, the data set 12")
  testing.assert_error(function() DistributedSampler(11, {shuffle = false}):load_state_dict(saved:state_dict()) end,
    "was saved with shuffle = true, this one has false")
end

function tests.test_N44_epochs_and_defaults()
  local sampler = DistributedSampler(mh.zeros{50, 2})
  testing.assert_equal({sampler.num_replicas, sampler.rank, sampler.size}, {mh.world_size(), mh.rank(), 50})
  local first = sampler:indices()

  sampler:set_epoch(1)

  assert(not mh.equal(sampler:indices(), first), "epochs do not count")
  sampler:set_epoch(0)
  testing.assert_equal(sampler:indices(), first)
  testing.assert_error(function() DistributedSampler(50, 3, 3) end,
      "DistributedSampler: rank is 3, expected an integer of 0 to 2\n  fix   ranks count from 0")
  testing.assert_error(function() DistributedSampler(2, 3, 0, {drop_last = true}) end,
      "drop_last leaves nothing of 2 samples for 3")
  testing.assert_error(function() sampler:set_epoch(-1) end, "epoch is -1, expected an integer of at least 0")
end

return tests
