-- SPDX-License-Identifier: Apache-2.0
-- Batches of mh.data: bit by bit those of plain reading, on meshes of data and domain dims with uneven blocks; orders,
-- places, missing values, memory, damage. The same file runs on 1, 4 and 8 ranks, and with processes.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"

local tests = {}

local kWindows = {inputs = {fields = {"t2m", "z"}, steps = {-1, 0}}, targets = {fields = {"z"}, steps = {2}},
    static = {"orography"}}

--- Two files, packed each in its own way; t2m and z in compressed chunks. `missing`: t2m of step 2 lacks a value.
local function with_cf(run, missing)
  local paths = {files.cf("d_a.nc", 0, 11, {missing = missing, compression = 1, chunks = {4, 7, 5}}),
      files.cf("d_b.nc", 11, 9, {scale = 0.02})}
  run(mh.data.open(paths), paths)
  files.remove(paths)
end

--- All steps, plain, as h5 reads them whole.
local function plain(missing)
  local first = files.t2m(0, 11)
  if missing then first["2, 3, 4"] = 0 / 0 end
  return {t2m = mh.cat({first, files.t2m(11, 9, 0.02)}, 0):unsqueeze(1),
    z = mh.cat({files.z(0, 11), files.z(11, 9)}, 0), orography = files.values(0, 1, 7, 5, 5):float()}
end

local function expected(all, set, index)
  local inputs, targets, static = {}, {}, {}
  for i, sample in ipairs(index) do
    local _, anchor = set:at(sample)
    local at = function(name, step) return all[name][tostring(anchor + step)] end
    inputs[i] = mh.cat({at("t2m", -1), at("z", -1), at("t2m", 0), at("z", 0)}, 0)
    targets[i], static[i] = at("z", 2), all.orography
  end
  return mh.stack(inputs, 0), mh.stack(targets, 0), mh.stack(static, 0)
end

--- {mesh, cut, name} of this number of ranks; nil: plain.
local function cuts()
  local n = mh.world_size()
  local list = {{name = "plain"}}
  local function add(name, shape, names, cut)
    list[#list + 1] = {name = name, mesh = mh.init_device_mesh(mh.device(), shape, names), cut = cut}
  end
  add("data", {n}, {"data"}, {batch = "data"})
  add("rows", {n}, {"domain"}, {latitude = "domain"})
  add("copies", {n}, {"domain"}, {})
  if n == 3 then
    add("uneven columns", {n}, {"domain"}, {longitude = {"domain", {1, 0, 4}}})
    add("uneven rows", {n}, {"domain"}, {latitude = {"domain", {5, 1, 1}}})
  elseif n == 4 then
    add("data x rows", {2, 2}, {"data", "domain"}, {batch = "data", latitude = {"domain", {2, 5}}})
    add("rows x data", {2, 2}, {"domain", "data"}, {batch = "data", latitude = "domain"})
    add("rows x columns", {2, 2}, {"y", "x"}, {latitude = {"y", {6, 1}}, longitude = {"x", {2, 3}}})
    add("copies x columns", {2, 2}, {"copies", "x"}, {longitude = "x"})
  elseif n == 8 then
    add("data x rows x columns", {2, 2, 2}, {"data", "y", "x"},
        {batch = "data", latitude = {"y", {6, 1}}, longitude = "x"})
    add("rows x data x columns", {2, 2, 2}, {"y", "data", "x"},
        {batch = "data", latitude = {"y", {6, 1}}, longitude = "x"})
    add("data x copies x rows", {2, 2, 2}, {"data", "copies", "y"}, {batch = "data", latitude = "y"})
  end
  return list
end

local function full(x) return x:is_shard_tensor() and x:full_tensor() or x end

local function order_of(loader, options)
  local list = {}
  for batch in loader:batches(options) do
    local index = batch.index:tolist()
    table.move(index, 1, #index, #list + 1, list)
  end
  return list
end

function tests.test_X21_batches_are_those_of_plain_reading_for_any_cut()
  with_cf(function(data)
    local set, all = data:windows(kWindows), plain()
    for _, case in ipairs(cuts()) do
      for _, shuffle in ipairs{false, true, "chunks"} do
        local loader = set:loader{mesh = case.mesh, cut = case.cut, batch = 5, shuffle = shuffle, seed = 3}
        local seen = {}
        for batch in loader:batches() do
          local index = batch.index:tolist()
          local inputs, targets, static = expected(all, set, index)
          testing.assert_equal(full(batch.inputs), inputs)
          testing.assert_equal(full(batch.targets), targets)
          testing.assert_equal(full(batch.static), static)
          testing.assert_equal({#batch.times, batch.times[1]}, {#index, set:time(index[1])})
          table.move(index, 1, #index, #seen + 1, seen)
        end
        table.sort(seen)
        testing.assert_equal({#seen, seen[1], seen[#set], loader.epoch, #loader}, {#set, 0, #set - 1, 1, 4})
      end
    end
  end)
end

function tests.test_X21_blocks_lie_as_the_cut_says()
  if mh.world_size() ~= 4 then return end
  with_cf(function(data)
    local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"data", "domain"})
    local loader = data:windows(kWindows):loader{mesh = mesh, cut = {batch = "data", latitude = {"domain", {2, 5}}},
        batch = 3}
    for batch in loader:batches() do
      local count = #batch.times
      testing.assert_equal(batch.inputs.shape, {count, 6, 7, 5})
      testing.assert_equal({batch.inputs:shard_sizes(0), batch.inputs:shard_sizes(2)},
          {{(count + 1) // 2, count // 2}, {2, 5}})
      testing.assert_equal(batch.inputs:to_local().shape, {mesh:coordinate("data") == 0 and (count + 1) // 2
        or count // 2, 6, mesh:coordinate("domain") == 0 and 2 or 5, 5})
    end
  end)
end

-- Chunks of whole frames are decoded by one rank each; windows that overlap read a frame once.
function tests.test_X21_chunks_are_decoded_once_over_all_ranks()
  with_cf(function(data)
    local set = data:windows(kWindows)
    local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
    mh.io_stats{reset = true}
    order_of(set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 4})
    local decoded = mh.from_local(mh.tensor({mh.io_stats().chunks}, {dtype = "int64"}), mesh,
        {mh.Shard(0)}):full_tensor():sum():item()
    -- In the first file t2m has three chunks of four steps, in the second it is not compressed; each of 20 steps of z
    -- has one.
    testing.assert_equal(decoded, 3 + 20)
  end)
end

--- Every n-th step is an anchor, for n ranks: a rule that counts steps gave all chunks to one of them.
function tests.test_X21_ranks_decode_equally_many_chunks()
  local n = mh.world_size()
  local path = files.cf("d_even.nc", 0, 64 * n, {compression = 1, chunks = {1, 7, 5}, without_z = true})
  local mesh = mh.init_device_mesh(mh.device(), {n}, {"domain"})
  local set = mh.data.open(path):windows{inputs = {fields = {"t2m"}, steps = {0}}, every = n}
  for _, shuffle in ipairs{false, true, "chunks"} do
    mh.io_stats{reset = true}
    local loader = set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 16, shuffle = shuffle, prefetch = 0}
    for batch in loader:batches() do
      testing.assert_equal(batch.inputs.shape, {16, 1, 7, 5})
      if loader.next == 64 then break end
    end
    local decoded = mh.from_local(mh.tensor({mh.io_stats().chunks}, {dtype = "int64"}), mesh,
        {mh.Shard(0)}):full_tensor():tolist()
    local least, most, sum = math.huge, 0, 0
    for _, count in ipairs(decoded) do least, most, sum = math.min(least, count), math.max(most, count), sum + count end
    assert(sum == 64 and most - least <= 1, mh.json.encode(decoded))
  end
  files.remove{path}
end

--- Places of the batches under way.
local function ahead(loader)
  local list = {}
  for i, batch in ipairs(loader.under_way) do list[i] = {batch.epoch, batch.first, batch.last} end
  return list
end

function tests.test_X21_the_next_epoch_is_read_ahead()
  with_cf(function(data)
    local set, all = data:windows(kWindows), plain()
    local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
    local function loader(options)
      return set:loader{mesh = mesh, cut = {latitude = "domain"}, seed = 3, batch = options.batch,
        shuffle = options.shuffle, drop_last = options.drop_last, prefetch = options.prefetch}
    end
    for _, shuffle in ipairs{false, true, "chunks"} do
      local from = loader{batch = 6, shuffle = shuffle, prefetch = 2}
      for epoch = 0, 2 do
        local seen, alone = {}, loader{batch = 6, shuffle = shuffle}
        alone.epoch = epoch
        mh.io_stats{reset = true}
        for batch in from:batches() do
          local index = batch.index:tolist()
          local inputs, targets = expected(all, set, index)
          testing.assert_equal(full(batch.inputs), inputs)
          testing.assert_equal(full(batch.targets), targets)
          table.move(index, 1, #index, #seen + 1, seen)
          -- The place that is saved is that of the batches that were given, not of those that are read.
          local state = from:state_dict()
          testing.assert_equal({state.epoch, state.next}, {epoch, #seen})
        end
        -- Each chunk once, in the first epoch: there is space to keep it.
        local decoded = mh.from_local(mh.tensor({mh.io_stats().chunks}, {dtype = "int64"}), mesh,
            {mh.Shard(0)}):full_tensor():sum():item()
        testing.assert_equal(decoded, epoch == 0 and 3 + 20 or 0)
        testing.assert_equal(seen, order_of(alone))
        testing.assert_equal(ahead(from), {{epoch + 1, 0, 6}, {epoch + 1, 6, 12}, {epoch + 1, 12, 17}})
      end
    end
    local whole = loader{batch = 17, shuffle = true, prefetch = 2}
    whole:batches()()
    testing.assert_equal(ahead(whole), {{1, 0, 17}, {2, 0, 17}, {3, 0, 17}})
    local dropping = loader{batch = 7, drop_last = true, prefetch = 1}
    order_of(dropping)
    testing.assert_equal(ahead(dropping), {{1, 0, 7}, {1, 7, 14}})
    dropping:load_state_dict(loader{batch = 7, drop_last = true}:state_dict())
    testing.assert_equal({ahead(dropping), #order_of(dropping)}, {{}, 14})
  end)
end

function tests.test_X21_random_windows_decode_few_chunks_twice()
  local path = files.cf("d_chunks.nc", 0, 160, {compression = 1, chunks = {8, 7, 5}, without_z = true})
  local set = mh.data.open(path):windows{inputs = {fields = {"t2m"}, steps = {0}},
      targets = {fields = {"t2m"}, steps = {1}}}
  local function chunks(shuffle)
    mh.io_stats{reset = true}
    -- Memory for ten chunks of the twenty, beside the batches.
    local seen = order_of(set:loader{batch = 8, shuffle = shuffle, seed = 1,
        memory = 5 * 8 * 2 * 35 * 4 + 2 * 10 * 8 * 35 * 4})
    table.sort(seen)
    testing.assert_equal({#seen, seen[1], seen[159]}, {159, 0, 158})
    return mh.io_stats().chunks
  end
  testing.assert_equal(chunks(false), 20)
  local near, far = chunks("chunks"), chunks(true)
  assert(near <= 30 and far > 60, ("decoded %d and %d chunks of 20"):format(near, far))
  files.remove{path}
end

function tests.test_X21_normalized_by_channel()
  with_cf(function(data)
    local set, all = data:windows(kWindows), plain()
    local stats = set:statistics()
    for _, name in ipairs{"t2m", "z", "orography"} do
      local function of(column)
        return mh.tensor(stats.fields[name][column], {dtype = "float32"}):reshape{#stats.fields[name].mean, 1, 1}
      end
      all[name] = (all[name] - of "mean") / of "std"
    end
    local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
    for batch in set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 7, normalize = stats}:batches() do
      local inputs, targets, static = expected(all, set, batch.index:tolist())
      testing.assert_equal(full(batch.inputs), inputs)
      testing.assert_equal(full(batch.targets), targets)
      testing.assert_equal(full(batch.static), static)
    end
  end)
end

function tests.test_X21_missing_values_are_filled_and_masked()
  with_cf(function(data, paths)
    local set, all = data:windows(kWindows), plain(true)
    local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
    for _, mask in ipairs{true, false} do
      local loader = set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 4, missing = {fill = -5, mask = mask}}
      for batch in loader:batches() do
        local inputs, targets = expected(all, set, batch.index:tolist())
        testing.assert_equal(full(batch.inputs), inputs:masked_fill(inputs:isnan(), -5))
        testing.assert_equal(mask and full(batch.input_mask), mask and inputs:isnan():logical_not())
        testing.assert_equal(mask and full(batch.mask), mask and mh.ones_like(targets, {dtype = "bool"}))
        testing.assert_equal(rawget(batch, "mask") ~= nil, mask)
      end
    end
    local kept = set:loader{batch = 1, missing = "keep"}:batches()()
    testing.assert_equal(kept.inputs["0, 3"]:isnan():sum():item(), 0)
    refused(function() order_of(set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 4}) end,
      "loader: 't2m' has a missing value (NaN) at [3, 4], channel 0\n  have  step 2 of '" .. paths[1]
        .. "'\n  fix   say what missing values become")
  end, true)
end

-- ---- Going on -------------------------------------------------------------------------------------------------------

function tests.test_X21_the_order_does_not_depend_on_ranks_or_batches()
  with_cf(function(data)
    local set = data:windows{inputs = {"t2m"}}
    -- The order of the Sampler, whose numbers its own test states.
    local expected_order = {}
    for index in mh.data.Sampler{size = 20, batch = 20, seed = 4}:batches() do expected_order = index:tolist() end
    for _, case in ipairs(cuts()) do
      for _, batch in ipairs{1, 3, 20} do
        testing.assert_equal(order_of(set:loader{mesh = case.mesh, cut = case.cut, batch = batch, shuffle = true,
            seed = 4}), expected_order)
      end
    end
    local first = order_of(set:loader{batch = 3, shuffle = "chunks", seed = 4})
    testing.assert_equal(order_of(set:loader{batch = 7, shuffle = "chunks", seed = 4}), first)
    assert(not mh.equal(mh.tensor(order_of(set:loader{batch = 7, shuffle = "chunks", seed = 5})), mh.tensor(first)),
        "seeds do not count")
    testing.assert_equal(#order_of(set:loader{batch = 3, drop_last = true}), 18)
  end)
end

function tests.test_X12_X21_goes_on_at_any_place_with_other_batches_and_cuts()
  with_cf(function(data)
    local set, all_cuts = data:windows(kWindows), cuts()
    for _, shuffle in ipairs{false, true, "chunks"} do
      local whole = set:loader{batch = 4, shuffle = shuffle, seed = 8}
      local first, second = order_of(whole), order_of(whole)
      for stop = 0, 4 do
        local case = all_cuts[stop % #all_cuts + 1]
        local before = set:loader{mesh = case.mesh, cut = case.cut, batch = 4, shuffle = shuffle, seed = 8}
        local batches = before:batches()
        for _ = 1, stop do batches() end
        local other = all_cuts[(stop + 1) % #all_cuts + 1]
        local after = set:loader{mesh = other.mesh, cut = other.cut, batch = 3, shuffle = shuffle}

        after:load_state_dict(mh.json.decode(mh.json.encode(before:state_dict())))

        local done = math.min(4 * stop, #set)
        testing.assert_equal(order_of(after), {table.unpack(first, done + 1)})
        testing.assert_equal(order_of(after), second)
      end
    end
  end)
end

function tests.test_X21_a_loop_that_was_left_goes_on_or_begins_anew()
  with_cf(function(data)
    local set = data:windows(kWindows)
    local function loader() return set:loader{batch = 4, shuffle = true, seed = 8, prefetch = 1} end
    local first = order_of(loader())
    local function left(options)
      local one = loader()
      for batch in one:batches(options) do
        if one.next == 8 then break end
      end
      return one
    end
    testing.assert_equal(order_of(left()), {table.unpack(first, 9)})
    local anew = left{resume = false}
    testing.assert_equal(order_of(anew, {resume = false}), first)
    testing.assert_equal({anew.epoch, anew.next}, {1, 0})
    testing.assert_error(function() anew:batches{resum = false} end, "unknown option 'resum'; did you mean 'resume'")
    testing.assert_error(function() anew:batches{resume = 0} end, "loader: batches: resume is 0")
    testing.assert_error(function() anew:batches(false) end,
        "fix   call loader:batches(), or loader:batches{resume = false}")
  end)
end

function tests.test_X12_X21_a_checkpoint_keeps_the_place()
  with_cf(function(data)
    local set, path = data:windows(kWindows), files.path("loader_checkpoint")
    local before = set:loader{batch = 2, shuffle = true, seed = 6}
    local count = 0
    for _ in before:batches() do
      count = count + 1
      if count == 3 then break end
    end
    mh.checkpoint.save(path, {data = before})
    local after = set:loader{batch = 5, shuffle = true}
    mh.checkpoint.load(path, {data = after})
    testing.assert_equal({after.seed, after.epoch, after.next}, {6, 0, 6})
    testing.assert_equal(order_of(after), order_of(before))
  end)
end

function tests.test_X21_places_that_do_not_fit()
  with_cf(function(data, paths)
    local set = data:windows(kWindows)
    local loader = set:loader{batch = 2, shuffle = true}
    local function bad(state, text)
      refused(function() loader:load_state_dict(state) end, "loader: load_state_dict: " .. text)
      testing.assert_equal({loader.epoch, loader.next, loader.seed}, {0, 0, 0})
    end
    bad(data:windows{inputs = {"t2m"}}:loader{shuffle = true}:state_dict(),
        "saved with another set: its inputs differ\n  have  't2m@+0', now 't2m@-1 z.0@-1")
    bad(mh.data.open(paths[1]):windows(kWindows):loader{shuffle = true}:state_dict(),
        "saved with another set: its files differ")
    bad(set:split{train = 0.5}:loader{shuffle = true}:state_dict(), "saved with another set: its samples differ")
    bad(set:loader{}:state_dict(), "saved with shuffle = 'false'")
    local state = loader:state_dict()
    state.next = 99
    bad(state, "sample 99 of epoch 0 does not exist")
    bad("x", "expected the table of state_dict()")
  end)
end

function tests.test_X13_X21_blocks_change_between_batches()
  if mh.world_size() == 1 then return end
  with_cf(function(data)
    local set, all, n = data:windows(kWindows), plain(), mh.world_size()
    local mesh = mh.init_device_mesh(mh.device(), {n}, {"domain"})
    local loader = set:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 4, shuffle = true, seed = 2}
    local sizes = mh.cut_sizes({9, 1, 1, 1, 1, 1, 1}, n)
    local seen, blocks = {}, {}
    for batch in loader:batches() do
      local index = batch.index:tolist()
      local inputs = expected(all, set, index)
      testing.assert_equal(full(batch.inputs), inputs)
      blocks[#blocks + 1] = batch.inputs:shard_sizes(2)
      table.move(index, 1, #index, #seen + 1, seen)
      if #blocks == 2 then loader:recut{latitude = {"domain", sizes}} end
    end
    testing.assert_equal({blocks[2], blocks[3]}, {({[2] = {4, 3}, [3] = {3, 3, 1}, [4] = {2, 2, 2, 1},
        [8] = {1, 1, 1, 1, 1, 1, 1, 0}})[n], sizes})
    testing.assert_equal(seen, order_of(set:loader{batch = 4, shuffle = true, seed = 2}))
    refused(function() loader:recut{latitude = {"domain", {7, 7, 7, 7}}} end, "loader: sizes of 'latitude' do not fit")
    testing.assert_equal(loader:batches()().inputs:shard_sizes(2), sizes)
  end)
end

-- ---- Options and files that do not fit ------------------------------------------------------------------------------

function tests.test_X21_options_that_do_not_fit()
  with_cf(function(data)
    local set = data:windows(kWindows)
    local n = mh.world_size()
    local mesh = mh.init_device_mesh(mh.device(), {n}, {"domain"})
    local function bad(options, text) refused(function() set:loader(options) end, text) end
    bad({batch = 21}, "loader: a batch of 21 is larger than the set\n  have  17 samples")
    bad({batch = 0}, "loader: batch is 0")
    bad({mesh = mesh, cut = {latitud = "domain"}},
        "loader: 'latitud' is not a dim of the fields; did you mean 'latitude'?")
    bad({mesh = mesh, cut = {latitude = "domian"}},
        "loader: 'latitude' is cut over 'domian', which is not a dim of the mesh; did you mean 'domain'?")
    bad({cut = {latitude = "domain"}}, "loader: 'latitude' is cut over 'domain', which is not a dim of the mesh")
    bad({mesh = mesh, cut = {latitude = "domain", longitude = "domain"}},
        "loader: 'latitude' and 'longitude' are both cut over 'domain'")
    bad({mesh = mesh, cut = {latitude = {"domain", {1, 2, 3, 4, 5}}}}, "loader: sizes of 'latitude' do not fit")
    bad({batch = 4, memory = 1000}, "loader: 5 batches do not fit in memory = 1000 bytes\n" ..
            "  have  5040 bytes for the largest block of 4 samples of 9 channels")
    bad({memory = "2 gigs"}, "loader: memory is '2 gigs'")
    bad({missing = {mask = true}}, "loader: missing is {\"mask\":true}")
    bad({normalize = {t2m = {mean = 0, std = 1}}}, "loader: statistics of other fields: none of 'orography'")
    bad({normalize = {t2m = {mean = 0, std = 0}, z = {mean = {0, 0}, std = {1, 1}}, orography = {mean = 0, std = 1}}},
      "loader: the standard deviation of 't2m' is 0 in channel 0")
    bad({normalize = {t2m = {mean = 0, std = 1}, z = {mean = 0, std = 1}, orography = {mean = 0, std = 1}}},
        "loader: mean of 'z' is 1 numbers")
    testing.assert_error(function() set:loader{shufle = true} end,
        "loader: unknown option 'shufle'; did you mean 'shuffle'?")
    if n > 1 then bad({seed = mh.rank()}, "loader: ranks 0 and 1 want different samples or options") end
  end)
end

function tests.test_X21_orders_that_differ_from_rank_to_rank()
  if mh.world_size() == 1 then return end
  with_cf(function(data)
    local rank = mh.rank()
    for field, value in pairs {seed = rank, shuffle = rank == 1, batch = rank == 1 and 3 or 2, epoch = rank % 2,
      next = rank % 2, drop_last = rank == 1, prefetch = rank % 2} do
      local loader = data:windows(kWindows):loader{batch = 2, seed = 7}
      local before = loader[field]
      loader[field] = value
      refused(function() loader:batches() end, "loader: ranks 0 and 1 want different orders or places")
      loader[field] = before
    end
    local loader = data:windows(kWindows):loader()
    refused(function() loader:batches{resume = rank == 1} end, "loader: ranks 0 and 1 want different orders or places")
  end)
end

--- Damage that one rank's thread finds is one error on all, and the next epoch says it again.
function tests.test_X21_damage_met_while_reading_ahead_is_one_error_on_all_ranks()
  local path = files.cf("d_cut.nc", 0, 40, {compression = 6, chunks = {20, 7, 5}, without_z = true})
  mh._files.on_first_rank(function()
    local whole = io.open(path, "rb"):read("a")
    local changed, chunks = whole:gsub("\x78\x9c", "\0\0")  -- every chunk's first bytes
    assert(#changed == #whole and chunks == 2, chunks)
    local out = io.open(path, "wb")
    assert(out:write(changed))
    assert(out:close())
  end)
  local set = mh.data.open(path):windows{inputs = {"t2m"}}
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  for _ = 1, 2 do
    local message = testing.assert_error(function() order_of(set:loader{mesh = mesh, cut = {latitude = "domain"},
        batch = 4}) end, path)
    assert(message:find('"t2m"', 1, true), message)
    mh._data.check_same("damaged", "messages", message)
  end
  files.remove{path}
end

--- Ranks that have the old file open and ranks that open the new one would mix both.
function tests.test_X21_a_file_replaced_after_it_was_opened()
  local path = files.cf("d_new.nc", 0, 12, {without_z = true})
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  local function loader()
    -- No memory to keep what was read, so that every step is read again.
    local rows = (7 + mh.world_size() - 1) // mh.world_size()
    return mh.data.open(path):windows{inputs = {"t2m"}}:loader{mesh = mesh, cut = {latitude = "domain"}, batch = 4,
        memory = 5 * 4 * rows * 5 * 4}
  end
  local wanted = 'file "' .. path .. '" has changed since it was opened\n  have  '
  for _, steps in ipairs{5, 12} do  -- of the same size too
    local before = loader()
    files.cf("d_new.nc", steps, steps, {without_z = true})
    refused(function() order_of(before) end, wanted)
    local during = loader()
    during:batches()()
    files.cf("d_new.nc", 2 * steps, steps, {without_z = true})
    refused(function() for _ = 1, 3 do order_of(during) end end, wanted)  -- what was read ahead is as it was
    testing.assert_equal(#order_of(loader()), steps)
  end
  mh.barrier()
  local gone = loader()
  files.remove{path}
  mh.barrier()
  refused(function() order_of(gone) end, "cannot find file")
end

return tests
