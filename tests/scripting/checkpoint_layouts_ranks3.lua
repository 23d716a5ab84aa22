-- SPDX-License-Identifier: Apache-2.0
-- N37-N41, S10, S11, X12: whole tensors in the files, whatever the cuts of those that save and load; states of
-- optimizers by name; saves in the background; the newest checkpoints of a folder.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.training_runs"
local layouts = require "support.checkpoint_layouts"
local nn, S, R = mh.nn, mh.Shard, mh.Replicate

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()})
local folder = layouts.folder
local tests = {}

--- When all ranks have come here.
local function on_first(fn)
  mh.barrier()
  mh._files.on_first_rank(fn)
end
local function exists(path) return mh.files.exists(path) end

local function first_dim(sizes)
  return function(x) return #x.shape == 0 and {R()} or {S(0, sizes and sizes(x.shape[1]))} end
end
local function last_dim(x) return #x.shape == 0 and {R()} or {S(#x.shape - 1)} end

function tests.test_N40_S11_tensors_that_lie_in_any_way_are_whole_in_the_file()
  layouts.check {
    {mesh = mesh, placements = first_dim()},
    {mesh = mesh, placements = first_dim(function(n) return {0, n - n // 4, n // 4} end)},
    {mesh = mesh, placements = last_dim},
    {mesh = mesh, placements = function() return {R()} end},
    false,
  }
end

function tests.test_N40_sums_are_made_before_they_are_written()
  local path = folder("partial")
  local x = mh.arange(30000.0):reshape{300, 100}
  local partial = mh.distribute_tensor(x, mesh, {S(1)}):sum(1)
  assert(partial.placements[1]:is_partial())
  mh.checkpoint.save(path, {x = partial})

  testing.assert_close(mh.checkpoint.load(path).x, x:sum(1))
end

local function net_of(cuts)
  mh.manual_seed(4)
  local net = nn.Sequential(nn.Linear(120, 200), nn.Tanh(), nn.Linear(200, 6)):double()
  return mh.parallelize_module(net, mesh, {parameter = cuts})
end

local x = mh.distribute_tensor(mh.arange(600, {dtype = "float64"}):mul(0.1):sin():reshape{5, 120}, mesh, {R()})
local function train(net, opt, steps) return runs.go_on(net, opt, x, steps) end

local kOptimizers = {SGD = {lr = 0.1, momentum = 0.9}, AdamW = {lr = 0.01, amsgrad = true},
  RMSprop = {lr = 0.01, centered = true}, Adagrad = {lr = 0.1}, LBFGS = false}

function tests.test_N37_N39_N41_any_optimizer_goes_on_with_other_cuts_and_another_order()
  for kind, options in pairs(kOptimizers) do
    if options then
      local path = folder("optimizer")
      local net = net_of {["0.weight"] = {S(0)}, ["2.weight"] = {S(1)}}
      local opt = mh.optim[kind](net:parameters(), options)
      train(net, opt, 2)
      mh.checkpoint.save(path, {model = net, optimizer = opt})
      local expected = train(net, opt, 2)

      mh.manual_seed(9)
      local again = net_of {["0.weight"] = {S(1, {100, 0, 20})}, ["2.weight"] = {S(0)}, ["0.bias"] = {S(0)}}
      local turned = again:parameters()
      for i = 1, #turned // 2 do turned[i], turned[#turned + 1 - i] = turned[#turned + 1 - i], turned[i] end
      local opt2 = mh.optim[kind](turned, options)
      mh.checkpoint.load(path, {model = again, optimizer = opt2})
      testing.assert_close(train(again, opt2, 2), expected)
      local state = opt2:state_dict().state[#turned]  -- of 0.weight
      for _, value in pairs(state) do
        if mh.is_tensor(value) then testing.assert_equal(value.placements[1].dim, 1) end
      end
    end
  end
end

function tests.test_N40_entries_in_several_files()
  local path = folder("parts")
  local net = net_of {["0.weight"] = {S(0)}}
  mh.checkpoint.save(path, {model = net, step = 1}, {max_file_bytes = 100000})
  local index = mh.json.load(path .. "/model.safetensors.index.json")
  testing.assert_equal({index.metadata.total_size, index.weight_map["0.bias"], index.weight_map["0.weight"],
    index.weight_map["2.weight"]},
    {(120 * 200 + 200 + 200 * 6 + 6) * 8, "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
      "model-00003-of-00003.safetensors"})
  testing.assert_equal(exists(path .. "/model.safetensors"), false)
  local again = net_of {["0.weight"] = {S(1)}}
  mh.no_grad(function() again[0].weight:zero_() end)
  mh.checkpoint.load(path, {model = again})
  for name, tensor in net:state_dict() do
    testing.assert_equal(mh.equal(again:state_dict()[name]:full_tensor(), tensor:full_tensor()), true)
  end

  local function damage(name, map)
    on_first(function()
      local file <close> = assert(io.open(path .. "/model.safetensors.index.json", "w"))
      file:write(mh.json.encode({weight_map = map}))
    end)
    testing.assert_error(function() mh.checkpoint.load(path, {model = again}) end, name)
  end
  damage("'../x.safetensors' cannot be the name of a file", {["0.bias"] = "../x.safetensors"})
  damage("the tensor '0.weight' is missing", {["0.bias"] = "model-00001-of-00003.safetensors"})
  testing.assert_error(function() mh.checkpoint.save(path, {x = mh.ones{3}}, {max_file_bytes = 0}) end,
      "max_file_bytes = 0, expected a number of bytes")
end

function tests.test_N41_states_have_the_names_of_the_parameters()
  local path = folder("names")
  local net = net_of {}
  local opt = mh.optim.Adam(net:parameters())
  train(net, opt, 1)
  mh.checkpoint.save(path, {model = net, optimizer = opt})
  local names = {}
  for i, pair in ipairs((mh.safetensors.load(path .. "/optimizer.safetensors"))) do names[i] = pair[1] end
  table.sort(names)
  testing.assert_equal(names, {"exp_avg/0.bias", "exp_avg/0.weight", "exp_avg/2.bias", "exp_avg/2.weight",
    "exp_avg_sq/0.bias", "exp_avg_sq/0.weight", "exp_avg_sq/2.bias", "exp_avg_sq/2.weight"})

  -- Without the model the order says which is which.
  local opt2 = mh.optim.Adam(net:parameters())
  mh.checkpoint.load(path, {optimizer = opt2})
  for i, state in ipairs(opt:state_dict().state) do
    testing.assert_equal(mh.equal(opt2:state_dict().state[i].exp_avg:full_tensor(), state.exp_avg:full_tensor()), true)
  end
  local some = mh.optim.Adam({net[0].weight})
  testing.assert_error(function() mh.checkpoint.load(path, {model = net, optimizer = some}) end,
    "entry 'optimizer': load_state_dict: the optimizer has no '0.bias', '2.bias', '2.weight'")
  mh.checkpoint.load(path, {model = net, optimizer = some}, {strict = false})
  testing.assert_equal(mh.equal(some:state_dict().state[1].exp_avg:full_tensor(),
      opt:state_dict().state[1].exp_avg:full_tensor()), true)
end

--- Changes a bit of a file, `back` bytes before its end.
local function alter(file, back)
  local handle <close> = assert(io.open(file, "r+b"))
  handle:seek("end", -back)
  local byte = handle:read(1):byte()
  handle:seek("end", -back)
  handle:write(string.char(byte ~ 16))
end

function tests.test_X16_altered_data_are_found_before_anything_changes()
  local blocks = "rank-00001-of-00003/"
  local ways = {
    {{}, ""}, {{async = true}, ""}, {{max_file_bytes = 100000}, "", "-00002-of-00003"},
    {{layout = "per_rank"}, blocks}, {{layout = "per_rank", async = true}, blocks},
  }
  for _, way in ipairs(ways) do
    local options, place, part = table.unpack(way)
    local path, cuts = folder("altered" .. (options.layout or "")), {["0.weight"] = {S(0)}, ["2.weight"] = {S(1)}}
    local net = net_of(cuts)
    local opt = mh.optim.Adam(net:parameters())
    train(net, opt, 1)
    local saving = mh.checkpoint.save(path, {model = net, optimizer = opt}, options)
    if saving then saving:wait() end
    local saved, again = net:state_dict(), net_of(cuts)
    local function loading(more)
      return function() mh.checkpoint.load(path, {model = again, optimizer = mh.optim.Adam(again:parameters())},
          more) end
    end
    for _, entry in ipairs {"model", not part and "optimizer" or nil} do
      local file = ("%s/%s%s%s.safetensors"):format(path, place, entry, part or "")
      for name, tensor in again:state_dict() do mh.no_grad(function() tensor:zero_() end) end
      on_first(function() alter(file, 100) end)
      testing.assert_error(loading(), ("checkpoint.load: '%s' is damaged: the data of '"):format(file))
      testing.assert_error(loading(), "are not those that were saved\n  have  CRC-32C ")
      for _, tensor in again:state_dict() do testing.assert_equal(tensor:abs():sum():item(), 0.0) end
      loading {verify = false}()
      on_first(function() alter(file, 100) end)
      loading()()
      for name, tensor in again:state_dict() do
        testing.assert_equal(mh.equal(tensor:full_tensor(), saved[name]:full_tensor()), true)
      end
    end
  end
end

-- Modules with parameters of the same names: neither the order of parameters nor that of groups decides.
function tests.test_N41_one_optimizer_of_two_modules_goes_by_names()
  local path = folder("two")
  local function pair(turned)
    local made = {a = mh.nn.Linear(4, 3), b = mh.nn.Linear(4, 3)}
    local groups = {{params = made.a:parameters(), lr = 0.1}, {params = made.b:parameters(), lr = 0.01}}
    if turned then groups[1], groups[2] = groups[2], groups[1] end
    made.opt = mh.optim.Adam(groups)
    return made
  end
  local function averages(made)
    local dict, seen, position = made.opt:state_dict(), {}, 0
    for _, group in ipairs(made.opt.param_groups) do
      for _, parameter in ipairs(group.params) do
        position = position + 1
        for _, entry in ipairs {"a", "b"} do
          for name, own in made[entry]:named_parameters() do
            if own:is_same(parameter) then seen[entry .. name] = {dict.state[position].exp_avg, group.lr} end
          end
        end
      end
    end
    return seen
  end
  local saved = pair(false)
  local y = saved.a(mh.ones{2, 4}) * 2 + saved.b(mh.ones{2, 4})
  y:sum():backward()
  saved.opt:step()
  mh.checkpoint.save(path, saved)
  for version = 1, 2 do  -- 1: as written before names of several modules had their entry's in front, all of them
    if version == 1 then
      on_first(function()
        local all = mh.json.load(path .. "/checkpoint.json")
        local state, first = all.entries.opt.state, all.entries.opt.param_groups[1].params
        for i, name in ipairs {"weight", "bias"} do
          state[name], state["a/" .. name], first[i] = state["a/" .. name], nil, name
        end
        mh._files.write("test", path .. "/checkpoint.json", mh.json.encode(all))
      end)
    else
      mh.checkpoint.save(path, saved)
    end
    for _, turned in ipairs {false, true} do
      local again = pair(turned)
      mh.checkpoint.load(path, again)
      testing.assert_equal(averages(again), averages(saved))
    end
  end
  local mixed = pair(false)
  mixed.opt = mh.optim.Adam {{params = {mixed.a.weight, mixed.b.weight}}, {params = {mixed.a.bias, mixed.b.bias}}}
  testing.assert_error(function() mh.checkpoint.load(path, mixed) end,
    "group 1 of the optimizer has parameters of the saved groups 1 ('a/weight') and 2 ('b/weight'), whose options " ..
        "differ")
end

--- As version 1 wrote it: states of optimizers by position.
local function save_format_1(path, net, opt)
  local model, state, tensors, at = {}, {}, {}, {}
  local function add(list, name, tensor)
    list[#list + 1] = {name, tensor:is_shard_tensor() and tensor:full_tensor() or tensor}
    return {["$tensor"] = name}
  end
  for name, tensor in net:state_dict() do model[name] = add(tensors, name, tensor) end
  local dict = opt:state_dict()
  for i, own in ipairs(dict.state) do
    state[i] = {step = own.step}
    for _, field in ipairs {"exp_avg", "exp_avg_sq"} do
      state[i][field] = add(at, ("state.%d.%s"):format(i, field), own[field])
    end
  end
  on_first(function()
    mh.files.make_folder(path)
    mh.safetensors.save(path .. "/model.safetensors", tensors)
    mh.safetensors.save(path .. "/optimizer.safetensors", at)
    local file <close> = assert(io.open(path .. "/checkpoint.json", "w"))
    file:write(mh.json.encode({format = 1, entries = {model = model, step = 3, best = {["$number"] = "inf"},
      optimizer = {name = dict.name, param_groups = dict.param_groups, state = state}}}))
  end)
end

function tests.test_N37_format_1_still_loads()
  local path = folder("format1")
  local net = net_of {["0.weight"] = {S(0)}}
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.01})
  train(net, opt, 2)
  save_format_1(path, net, opt)
  local expected = train(net, opt, 2)

  local again = net_of {["0.weight"] = {S(1)}}
  local opt2 = mh.optim.AdamW(again:parameters(), {lr = 0.01})
  local rest = mh.checkpoint.load(path, {model = again, optimizer = opt2})
  testing.assert_equal({rest.step, rest.best}, {3, math.huge})
  testing.assert_close(train(again, opt2, 2), expected)
end

function tests.test_X16_nothing_changes_when_something_does_not_fit()
  local path = folder("unfit")
  local net = net_of {}
  local opt = mh.optim.Adam(net:parameters())
  train(net, opt, 1)
  mh.checkpoint.save(path, {model = net, optimizer = opt, step = 1})
  local function unchanged(into, problem, options)
    local before = {}
    for name, tensor in into.model:state_dict() do before[name] = tensor:clone() end
    testing.assert_error(function() mh.checkpoint.load(path, into, options) end, problem)
    for name, tensor in into.model:state_dict() do testing.assert_equal(mh.equal(tensor, before[name]), true) end
  end
  mh.manual_seed(8)
  local other = nn.Sequential(nn.Linear(120, 200), nn.Tanh(), nn.Linear(200, 6)):double()
  unchanged({model = other, optimizer = mh.optim.SGD(other:parameters(), {lr = 1})},
      "entry 'optimizer': load_state_dict: the state is that of 'Adam', the optimizer is SGD")
  unchanged({model = nn.Sequential(nn.Linear(120, 200), nn.Tanh(), nn.Linear(200, 7)):double()},
      "'2.weight' has shape [6, 200], the module's is [7, 200]")
  local fewer, more = net_of {["0.weight"] = {S(1)}}, net_of {["0.weight"] = {S(1)}}
  more:append(nn.LayerNorm(6):double())
  unchanged({model = nn.Sequential(fewer[0], fewer[1])},
      "entry 'model': Sequential: load_state_dict: unexpected keys: '2.bias', '2.weight'")
  unchanged({model = more}, "entry 'model': Sequential: load_state_dict: missing keys: '3.weight', '3.bias'")
  unchanged({model = other:float()}, "'0.weight' is float64, the module's is float32; strict = false casts")
  other = other:double()
  local file = path .. "/model.safetensors"
  local right = "[193648,203248]"
  local function put(text, was)  -- where the last tensor is, in as many bytes
    on_first(function()
      local one <close> = assert(io.open(file, "r+b"))
      local length = string.unpack("<I8", one:read(8))
      local header, changed = one:read(length):gsub(was:gsub("%p", "%%%0"), text)
      assert(changed == 1 and #header == length and one:seek("set", 8) and one:write(header))
    end)
    mh.barrier()
  end
  for _, case in ipairs {{"[NaN,   203248]", "', at which its header ceases to be JSON"},
                         {"[-93648,203248]", "': -93648 is not a size"},
                         {"[193640,203240]", "': its data begins at byte 193640, that before ends at 193648"}} do
    put(case[1], right)
    unchanged({model = other}, "safetensors: '" .. file .. "' has a broken entry '2.weight" .. case[2])
    put(right, case[1])
  end
  on_first(function() assert(os.execute(("truncate -s -8 '%s/optimizer.safetensors'"):format(path))) end)
  unchanged({model = other}, "which is cut short")
  testing.assert_error(function() mh.checkpoint.load(path, {}, {strickt = false}) end,
      "unknown option 'strickt'; did you mean 'strict'?")
end

function tests.test_N38_strict_off_casts_and_leaves_out()
  local path = folder("loose")
  local net = net_of {}
  mh.checkpoint.save(path, {model = net})
  local other = nn.Sequential(nn.Linear(120, 200), nn.Tanh(), nn.Linear(200, 6), nn.Linear(6, 2))
  mh.checkpoint.load(path, {model = other}, {strict = false})
  testing.assert_equal(mh.equal(other[0].weight, net[0].weight:full_tensor():float()), true)
end

function tests.test_N42_what_is_returned_lies_on_the_device_asked_for()
  local path = folder("device")
  mh.checkpoint.save(path, {x = mh.ones{3}})
  testing.assert_equal(tostring(mh.checkpoint.load(path, {}, {device = "cpu"}).x.device), "cpu")
  testing.assert_equal(tostring(mh.checkpoint.load(path, {}, {device = "meta"}).x.device), "meta")
end

function tests.test_X16_ranks_that_save_different_things_are_told_so()
  local path = folder("different")
  testing.assert_error(function() mh.checkpoint.save(path, {x = mh.ones{3 + mh.rank()}}) end,
    "checkpoint.save: ranks 0 and 1 save different tensors in '" .. path .. "'")
  testing.assert_equal({exists(path), exists(path .. ".partial")}, {false, false})
  mh.barrier()
end

function tests.test_X12_a_save_in_the_background_is_of_the_moment_of_the_call()
  local path = folder("background")
  on_first(function() mh._checkpoint_files.discard("test", path) end)
  local x = mh.distribute_tensor(mh.zeros{300, 70}, mesh, {S(0)})
  for step = 1, 3 do
    x:fill_(step)
    local saving = mh.checkpoint.save(path, {x = x, step = step, plain = mh.full({5}, step)}, {async = true})
    x:fill_(-1)
    if step < 3 then testing.assert_equal(saving:wait(), path) end
    local saved = mh.checkpoint.load(path)  -- waits by itself
    testing.assert_equal({saved.step, saving:is_done(), saved.x:eq(step):all():item(), saved.plain[0]:item()},
        {step, true, true, step})
    testing.assert_equal({exists(path .. ".partial"), exists(path .. "/rank-0.done"), saving:wait()},
        {false, false, path})
  end
end

function tests.test_latest_and_keep()
  local run = folder("run")
  on_first(function() mh._checkpoint_files.discard("test", run) end)
  testing.assert_equal(mh.checkpoint.latest(run), nil)
  mh.checkpoint.save(run .. "/best", {step = 0})
  for _, step in ipairs {9, 10, 11, 8} do
    mh.checkpoint.save(run .. "/step" .. step, {step = step}, {keep = 2, async = step == 10})
  end
  testing.assert_equal(mh.checkpoint.latest(run), run .. "/step8")
  testing.assert_equal({exists(run .. "/step9"), exists(run .. "/step10"), exists(run .. "/step11"),
    exists(run .. "/step8"), exists(run .. "/best")}, {false, false, true, true, true})
  testing.assert_error(function() mh.checkpoint.save(run .. "/x", {step = 1}, {keep = 0}) end,
      "keep = 0, expected a number of checkpoints")
  -- Killed before the new name was given.
  on_first(function() assert(os.rename(run .. "/step8", run .. "/step12.partial")) end)
  testing.assert_equal(mh.checkpoint.latest(run), run .. "/step12")
  testing.assert_equal(mh.checkpoint.load(mh.checkpoint.latest(run)).step, 8)
end

return tests
