-- SPDX-License-Identifier: Apache-2.0
-- N37-N42: checkpoints of one folder a rank, states in parts, and how both become whole. Used on 3 ranks, and on 4.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.training_runs"
local nn, S, R = mh.nn, mh.Shard, mh.Replicate

local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks})
local tests = {}

local folder = require "support.own_path"

--- When all ranks have come here.
local function on_first(fn)
  mh.barrier()
  mh._files.on_first_rank(fn)
end

local function fresh(name)
  local path = folder(name)
  on_first(function() mh._checkpoint_files.discard("test", path) end)
  return path
end

--- Blocks of 1, of nothing, and the rest.
local function uneven(rows)
  local sizes = {1, 0}
  for i = 3, ranks do sizes[i] = i < ranks and 2 or rows - 1 - 2 * (ranks - 3) end
  return S(0, sizes)
end

local kCuts = {["0.weight"] = {uneven(20)}, ["2.weight"] = {S(1)}, ["2.bias"] = {S(0)}}
local kOthers = {["0.weight"] = {S(1)}, ["0.bias"] = {S(0)}}

local function net_of(cuts, seed)
  mh.manual_seed(seed or 4)
  local net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 7)):double()
  return mh.parallelize_module(net, mesh, {parameter = cuts})
end

local x = mh.distribute_tensor(mh.arange(60, {dtype = "float64"}):mul(0.1):sin():reshape{5, 12}, mesh, {R()})
local function train(net, opt, steps) return runs.go_on(net, opt, x, steps) end
local function adam(net) return mh.optim.AdamW(net:parameters(), {lr = 0.01}) end

local function trained()
  local net = net_of(kCuts)
  local opt = adam(net)
  train(net, opt, 2)
  return net, opt
end

--- `first` goes on as `net` does.
local function expect_goes_on(net, opt, expected)
  testing.assert_close(train(net, opt, 2), expected)
end

function tests.test_N37_a_folder_for_each_rank()
  local path, net, opt = fresh("folders"), trained()
  for round = 1, 2 do  -- the second replaces the first
    mh.checkpoint.save(path, {model = net, optimizer = opt, step = round, best = math.huge, whole = mh.arange(3)},
        {layout = "per_rank"})
    local own = ("%s/rank-%05d-of-%05d"):format(path, mh.rank(), ranks)
    testing.assert_equal({mh.files.exists(path .. "/checkpoint.json"), mh.files.exists(own .. ".partial")},
        {false, false})
    local blocks = {}
    for _, pair in ipairs((mh.safetensors.load(own .. "/model.safetensors"))) do blocks[pair[1]] = pair[2].shape end
    testing.assert_equal(blocks["0.weight"], net[0].weight:to_local().shape)
  end
  local again = net_of(kCuts, 9)
  local opt2, expected = adam(again), train(net, opt, 2)

  local rest = mh.checkpoint.load(path, {model = again, optimizer = opt2})

  testing.assert_equal({rest.step, rest.best, rest.whole:tolist()}, {2, math.huge, {0, 1, 2}})
  expect_goes_on(again, opt2, expected)

  -- Blocks do not are sent, copies neither.
  local function held(value)
    return {field = mh.full({300, 301}, value, {mesh = mesh, placements = {S(1)}}),
        copy = mh.full({300, 30}, value, {mesh = mesh, placements = {R()}})}
  end
  local large = fresh("large")
  local object = {
    tensors = held(3), state_dict = function(self) return self.tensors end,
    load_state_dict = function(self, state) self.tensors = state end,
  }
  local before = mh.comm_stats().bytes
  mh.checkpoint.save(large, {object = object}, {layout = "per_rank"})
  object.tensors = held(0)
  mh.checkpoint.load(large, {object = object})
  testing.assert_equal(mh.comm_stats().bytes - before < 20000, true)
  testing.assert_equal({object.tensors.field:eq(3):all():item(), object.tensors.copy:eq(3):all():item()}, {true, true})
end

function tests.test_N37_other_cuts_and_numbers_of_ranks_are_errors_that_say_merge()
  local path, net, opt = fresh("others"), trained()
  mh.checkpoint.save(path, {model = net, optimizer = opt}, {layout = "per_rank"})
  local function unchanged(into, problem)
    local before = into.model:state_dict()["0.weight"]:full_tensor():clone()
    testing.assert_error(function() mh.checkpoint.load(path, into) end, problem)
    testing.assert_equal(mh.equal(into.model:state_dict()["0.weight"]:full_tensor(), before), true)
  end
  unchanged({model = net_of(kOthers)}, "is in other blocks")
  unchanged({model = net_of(kOthers)}, "moonhalo merge " .. path .. " OTHER")
  unchanged({model = net_of(kCuts, 9), optimizer = mh.optim.AdamW(net_of(kOthers):parameters())},
      "is in other blocks")
  mh.barrier()
  mh.checkpoint.save(path, {model = net, cut = net[0].weight}, {layout = "per_rank"})
  unchanged({model = net_of(kCuts, 9)}, "'cut' was saved in blocks")
  -- The last rank's cut alone differs.
  local sizes = {}
  for i = 1, ranks do sizes[i] = 20 // ranks + (i <= 20 % ranks and 1 or 0) end
  sizes[ranks], sizes[ranks - 1] = sizes[ranks] + 1, sizes[ranks - 1] - 1
  local even = net_of {["0.weight"] = {S(0)}}
  local second = fresh("shifted")
  mh.checkpoint.save(second, {model = even}, {layout = "per_rank"})
  testing.assert_error(function() mh.checkpoint.load(second, {model = net_of {["0.weight"] = {S(0, sizes)}}}) end,
      "is in other blocks")
  on_first(function()
    for rank = 0, ranks - 1 do
      assert(os.rename(("%s/rank-%05d-of-%05d"):format(second, rank, ranks),
          ("%s/rank-%05d-of-%05d"):format(second, rank, ranks + 2)))
    end
  end)
  testing.assert_error(function() mh.checkpoint.load(second, {model = even}) end,
      ("was saved by %d ranks, each its blocks\n  have  %d ranks"):format(ranks + 2, ranks))
  mh.checkpoint.save(second, {model = even}, {layout = "per_rank"})  -- and those of other numbers are gone
  mh.barrier()
  testing.assert_equal(#mh._checkpoint_files.list("test", second), ranks)
  testing.assert_error(function() mh.checkpoint.save(second, {step = 1}) end, "exists and is not a checkpoint")
  testing.assert_error(function() mh.checkpoint.save(second, {step = 1}, {layout = "per-rank"}) end,
      "did you mean 'per_rank'?")
  testing.assert_error(function() mh.checkpoint.save(second, {step = 1}, {layout = "per_rank", max_file_bytes = 9}) end,
      "max_file_bytes is for layout = \"whole\"")
  local whole = fresh("whole")
  mh.checkpoint.save(whole, {step = 1})
  testing.assert_error(function() mh.checkpoint.save(whole, {step = 1}, {layout = "per_rank"}) end,
      "is a checkpoint of whole tensors")
end

function tests.test_X16_a_kill_at_any_moment_leaves_a_save_that_all_ranks_have()
  local path, net = fresh("kills"), net_of(kCuts)
  on_first(function() mh._checkpoint_files.discard("test", path .. ".old") end)
  local function own(rank) return ("%s/rank-%05d-of-%05d"):format(path, rank, ranks) end
  local function save(step)
    mh.checkpoint.save(path, {model = net, step = step}, {layout = "per_rank"})
    mh.barrier()
  end
  local function load() return mh.checkpoint.load(path, {model = net}).step end
  -- Killed between the names of rank 0 and the others: their new ones are complete beside the old.
  save(1)
  on_first(function() assert(os.execute(("cp -r '%s' '%s.old'"):format(path, path))) end)
  save(2)
  on_first(function()
    for rank = 1, ranks - 1 do
      assert(os.rename(own(rank), own(rank) .. ".partial"))
      assert(os.execute(("mv '%s.old/rank-%05d-of-%05d' '%s'"):format(path, rank, ranks, path)))
    end
  end)
  testing.assert_equal(load(), 2)
  -- The next save keeps that one until its own is complete everywhere; killed while it writes:
  save(3)
  testing.assert_equal(load(), 3)
  -- Killed while the first ranks have written theirs: the old one is what all have.
  on_first(function() assert(
      os.execute(("cp -r '%s' '%s.partial' && sed -i 's/\"saved\": *[0-9.e+]*/\"saved\": 9e9/' " ..
          "'%s.partial/checkpoint.json'"):format(own(0), own(0), own(0)))) end)
  testing.assert_equal(load(), 3)
  save(4)
  testing.assert_equal(load(), 4)
  on_first(function() mh._checkpoint_files.discard("test", path .. ".old") end)
end

function tests.test_X12_N37_a_save_in_the_background_is_of_the_moment_of_the_call()
  local path = fresh("background")
  local own = ("%s/rank-%05d-of-%05d"):format(path, mh.rank(), ranks)
  local x = mh.distribute_tensor(mh.zeros{40, 7}, mesh, {uneven(40)})
  local object = {state_dict = function() return {x = x} end, load_state_dict = function(_, state) x = state.x end}
  for step = 1, 3 do
    x:fill_(step)
    local saving = mh.checkpoint.save(path, {object = object, step = step, plain = mh.full({5}, step)},
        {layout = "per_rank", async = true})
    x:fill_(-1)
    if step < 3 then testing.assert_equal(saving:wait(), path) end
    local saved = mh.checkpoint.load(path, {object = object})  -- waits by itself
    testing.assert_equal({saved.step, saving:is_done(), x:eq(step):all():item(), saved.plain[0]:item()},
        {step, true, true, step})
    testing.assert_equal({mh.files.exists(own .. ".partial"), mh.files.exists(own .. "/rank-0.done"), saving:wait()},
        {false, false, path})
  end

  -- A run that ends before the names are given: what all ranks have written counts.
  on_first(function()
    for rank = 0, ranks - 1 do
      local name = ("%s/rank-%05d-of-%05d"):format(path, rank, ranks)
      assert(os.rename(name, name .. ".partial"))
    end
  end)
  testing.assert_equal(mh.checkpoint.load(path, {object = object}).step, 3)
end

function tests.test_X16_a_save_that_fails_in_the_background_leaves_the_old_one_on_every_rank()
  local path = fresh("failing")
  mh.checkpoint.save(path, {step = 1, x = mh.ones{3}}, {layout = "per_rank"})
  local saving = mh.checkpoint.save(path, {step = 2, x = mh.ones{3}}, {layout = "per_rank", async = true})
  while not saving:is_done() do end
  -- The folder of the last rank goes before it takes its name.
  on_first(function() mh._checkpoint_files.discard("test", ("%s/rank-%05d-of-%05d.partial"):format(path, ranks - 1,
      ranks)) end)

  testing.assert_error(function() saving:wait() end, "checkpoint.save: ")

  mh.barrier()
  testing.assert_equal(mh.checkpoint.load(path).step, 1)
  mh.checkpoint.save(path, {step = 3, x = mh.ones{3}}, {layout = "per_rank"})
  testing.assert_equal(mh.checkpoint.load(path).step, 3)
end

function tests.test_latest_and_keep_know_folders_of_each_rank()
  local run = fresh("run")
  local function exists(name) return mh.files.exists(run .. "/" .. name) end
  local function save(name, step, options)
    options.layout = options.layout or "per_rank"
    mh.checkpoint.save(run .. "/" .. name, {step = step}, options)
  end
  save("best", 0, {})
  for _, step in ipairs {9, 10, 11, 8} do save("step" .. step, step, {keep = 2, async = step == 10}) end
  mh.barrier()
  testing.assert_equal(mh.checkpoint.latest(run), run .. "/step8")
  testing.assert_equal({exists("step9"), exists("step10"), exists("step11"), exists("step8"), exists("best")},
      {false, false, true, true, true})

  -- Both layouts count together.
  save("step12", 12, {layout = "whole", keep = 2})
  mh.barrier()
  testing.assert_equal({exists("step11"), exists("step8"), exists("step12"), mh.checkpoint.latest(run)},
      {false, true, true, run .. "/step12"})
  save("step13", 13, {keep = 1})
  mh.barrier()
  testing.assert_equal({exists("step8"), exists("step12"), mh.checkpoint.latest(run)}, {false, false, run .. "/step13"})

  -- A save that was killed before all ranks had written theirs is not a checkpoint, and goes with the next.
  on_first(function()
    mh.files.make_folder(run .. "/step14")
    local part = ("/rank-%05d-of-%05d"):format(ranks - 1, ranks)
    assert(os.execute(("cp -r '%s/step13%s' '%s/step14%s.partial'"):format(run, part, run, part)))
    assert(os.execute(("sed -i 's/\"saved\": *[0-9.e+]*/\"saved\": 9e9/' '%s/step14%s.partial/checkpoint.json'"):format(
        run, part)))
  end)
  testing.assert_equal(mh.checkpoint.latest(run), run .. "/step13")
  save("step15", 15, {keep = 2})
  mh.barrier()
  testing.assert_equal({exists("step14"), exists("step13"), mh.checkpoint.latest(run)}, {false, true, run .. "/step15"})

  -- Another number of ranks: the newest is named, and load says what to do with it.
  on_first(function()
    for rank = 0, ranks do
      local name = ("%s/step16/rank-%05d-of-%05d"):format(run, rank, ranks + 1)
      mh.files.make_folder(run .. "/step16")
      assert(os.execute(("cp -r '%s/step15/rank-00000-of-%05d' '%s'"):format(run, ranks, name)))
      assert(os.execute(("sed -i 's/\"saved\": *[0-9.e+]*/\"saved\": 9e9/' '%s/checkpoint.json'"):format(name)))
    end
  end)
  testing.assert_equal(mh.checkpoint.latest(run), run .. "/step16")
  testing.assert_error(function() mh.checkpoint.load(run .. "/step16") end,
      "fix   make a checkpoint of whole tensors first: moonhalo merge")
  mh.barrier()
end

-- A save by these ranks was killed before the older one of the same name by other ranks went.
function tests.test_keep_counts_names_and_removes_what_others_have_left()
  local run = fresh("names")
  local function exists(name) return mh.files.exists(run .. "/" .. name) end
  local function save(name, keep)
    mh.checkpoint.save(run .. "/" .. name, {step = 1}, {layout = "per_rank", keep = keep})
  end
  save("step0")
  save("step1")
  on_first(function()
    for rank = 0, ranks do
      local name = ("%s/step1/rank-%05d-of-%05d"):format(run, rank, ranks + 1)
      assert(os.execute(("cp -r '%s/step1/rank-00000-of-%05d' '%s'"):format(run, ranks, name)))
      assert(os.execute(("sed -i 's/\"saved\": *[0-9.e+]*/\"saved\": 9/' '%s/checkpoint.json'"):format(name)))
    end
  end)

  save("step2", 3)
  mh.barrier()
  local own, others = ("step1/rank-00000-of-%05d"):format(ranks), ("step1/rank-00000-of-%05d"):format(ranks + 1)
  testing.assert_equal({exists("step0"), exists(own), exists(others), exists("step2")}, {true, true, false, true})

  save("step3", 2)
  mh.barrier()
  testing.assert_equal({exists("step0"), exists("step1"), exists("step2"), exists("step3")}, {false, false, true, true})
end

function tests.test_N37_ranks_with_disks_of_their_own()
  local disks = fresh("disks")
  local own = ("%s/disk%d"):format(disks, mh.rank())
  for step = 1, 4 do
    mh.checkpoint.save(own .. "/step" .. step, {step = step}, {layout = "per_rank", keep = 2, async = step % 2 == 0})
  end

  testing.assert_equal(mh.checkpoint.latest(own), own .. "/step4")

  local here = {}
  for step = 1, 4 do here[step] = mh.files.exists(own .. "/step" .. step) end
  testing.assert_equal(here, {false, false, true, true})
  testing.assert_equal(mh.checkpoint.load(mh.checkpoint.latest(own)).step, 4)
  -- One disk is lost: what all have is the one before.
  on_first(function() mh._checkpoint_files.discard("test", ("%s/disk%d/step4"):format(disks, ranks - 1)) end)
  testing.assert_equal(mh.checkpoint.load(mh.checkpoint.latest(own)).step, 3)
end

--- Merges in a process of this program.
local function merge(from, to)
  return function()
    local pipe = assert(io.popen(
        ("env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK \"$(readlink /proc/$PPID/exe)\" merge " ..
            "'%s' '%s' 2>&1"):format(from, to)))
    local text = pipe:read("a")
    local done = pipe:close()
    return (done and "done " or "failed ") .. text
  end
end
local function merged(from, to)
  mh.barrier()
  return mh._files.on_first_rank(merge(from, to))
end

function tests.test_N38_N39_moonhalo_merge_makes_whole_tensors()
  local path, other, net, opt = fresh("blocks"), fresh("merged"), trained()
  mh.checkpoint.save(path, {model = net, optimizer = opt, step = 5, list = {mh.ones{2, 0}, mh.tensor(3)}},
      {layout = "per_rank"})
  local expected = train(net, opt, 2)

  testing.assert_equal(merged(path, other), "done ")

  local again = net_of(kOthers, 9)
  local opt2 = adam(again)
  local rest = mh.checkpoint.load(other, {model = again, optimizer = opt2})
  testing.assert_equal({rest.step, rest.list[1].shape, rest.list[2]:item()}, {5, {2, 0}, 3})
  expect_goes_on(again, opt2, expected)
  local whole = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 7)):double()
  mh.checkpoint.load(other, {model = whole})

  -- Several files become one.
  local parts, one = fresh("parts"), fresh("one")
  mh.checkpoint.save(parts, {model = whole}, {max_file_bytes = 100})
  testing.assert_equal(merged(parts, one), "done ")
  testing.assert_equal({mh.files.exists(one .. "/model.safetensors"), mh.files.exists(one
      .. "/model.safetensors.index.json")}, {true, false})
  local loaded = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 7)):double()
  mh.checkpoint.load(one, {model = loaded})
  testing.assert_equal(mh.equal(loaded[0].weight, whole[0].weight), true)

  on_first(function() mh._checkpoint_files.discard("test", ("%s/rank-%05d-of-%05d"):format(path, 1, ranks)) end)
  assert(merged(path, other):find("failed .*lacks the blocks of rank 1 of " .. ranks))
  assert(merged(folder("nowhere"), other):find("failed .*Directory does not exist"))
end

function tests.test_N38_N40_N41_parts_of_states_and_their_merge()
  local net, opt = trained()
  local model, state = mh.deduped_state_dict(net, opt)
  local bytes = 0
  for _, part in ipairs {model, state} do
    for _, block in pairs(part.blocks) do bytes = bytes + block:numel() * block:element_size() end
  end
  local total = mh.from_local(mh.tensor({bytes}, {dtype = "int64"}), mesh, {mh.Partial("sum")}):full_tensor():item()
  testing.assert_equal(total, 3 * 8 * (12 * 20 + 20 + 20 * 7 + 7) + (state.notes["step/0.bias"] and 1 or 0))
  local expected = train(net, opt, 2)

  -- Stored as users like: here in checkpoints of each rank, read by all.
  local path = fresh("stored")
  mh.checkpoint.save(path, {model = model, state = state}, {layout = "per_rank"})
  local own = mh.checkpoint.load(path)
  local again = net_of(kOthers, 9)
  local opt2 = adam(again)
  mh.load_deduped_state_dict(again, own.model, opt2, own.state)
  expect_goes_on(again, opt2, expected)

  local models, states = {}, {}
  for rank = 0, ranks - 1 do
    local function part_of(name)
      local json = mh.json.load(("%s/rank-%05d-of-%05d/checkpoint.json"):format(path, rank, ranks)).entries[name]
      local blocks = {}
      for _, pair in ipairs((mh.safetensors.load(("%s/rank-%05d-of-%05d/%s.safetensors"):format(path, rank, ranks,
          name)))) do
        blocks[pair[1]:match("^blocks%.(.*)$")] = pair[2]
      end
      json.blocks = blocks
      return json
    end
    models[ranks - rank], states[ranks - rank] = part_of("model"), part_of("state")
  end
  local whole, whole_state = mh.merge_state_dicts(models, states)
  local plain = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 7)):double()
  local cut = net_of(kOthers, 9)
  local opt3 = adam(cut)
  mh.load_merged_state_dict(plain, whole, adam(plain), whole_state)
  mh.load_merged_state_dict(cut, whole, opt3, whole_state)
  testing.assert_equal(mh.equal(cut[0].weight:full_tensor(), plain[0].weight), true)
  expect_goes_on(cut, opt3, expected)

  testing.assert_error(function() mh.merge_state_dicts({models[1], models[1]}) end, "is of rank " .. (ranks - 1))
  testing.assert_error(function() mh.merge_state_dicts({models[2]}) end, "is not whole")
  testing.assert_error(function() mh.merge_state_dicts({net}) end, "expected what mh.deduped_state_dict gave")
  testing.assert_error(function() mh.load_deduped_state_dict(again, models[1]) end, "the part is of rank "
      .. (ranks - 1))
  testing.assert_error(function() mh.load_deduped_state_dict(nn.Linear(2, 2), model) end,
      "missing keys: 'weight', 'bias'")
  mh.barrier()
end

return tests
