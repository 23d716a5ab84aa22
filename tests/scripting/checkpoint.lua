-- SPDX-License-Identifier: Apache-2.0
-- Checkpoints: everything comes back bit by bit, and what does not fit is named.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local folder = require "support.own_path"

local function model() return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)) end

local function train(net, opt, schedule, steps)
  local x, y = (mh.arange(48.0):reshape{3, 1, 4, 4} * 0.3):sin(), (mh.arange(6.0):reshape{3, 2} * 0.7):cos()
  local loss
  for _ = 1, steps do
    opt:zero_grad()
    loss = mh.mse_loss(net(x), y)
    loss:backward()
    opt:step()
    schedule:step()
  end
  return loss:item()
end

local function parts()
  local net = model()
  local opt = optim.AdamW(net:parameters(), {lr = 0.05})
  return net, opt, optim.StepLR(opt, 2)
end

local tests = {}

function tests.test_a_resumed_run_is_the_same_run()
  local path = folder("resume")
  local net, opt, schedule = parts()
  train(net, opt, schedule, 3)
  mh.checkpoint.save(path, {model = net, optimizer = opt, schedule = schedule, step = 3, best = math.huge,
    history = {0.5, 0.25}, note = {text = "a", done = true}, field = mh.arange(3)})
  local expected = train(net, opt, schedule, 3)

  local again, opt2, schedule2 = parts()
  local rest = mh.checkpoint.load(path, {model = again, optimizer = opt2, schedule = schedule2})

  testing.assert_equal({rest.step, rest.best, rest.history, rest.note},
      {3, math.huge, {0.5, 0.25}, {text = "a", done = true}})
  testing.assert_equal(rest.field:tolist(), {0, 1, 2})
  testing.assert_equal(train(again, opt2, schedule2, 3), expected)
  for name, tensor in net:state_dict() do testing.assert_equal(mh.equal(tensor, again:state_dict()[name]), true) end
end

function tests.test_the_model_file_has_the_names_of_the_state()
  local path = folder("names")
  mh.checkpoint.save(path, {model = model()})
  local names = {}
  for i, pair in ipairs((mh.safetensors.load(path .. "/model.safetensors"))) do names[i] = pair[1] end

  testing.assert_equal(names, {"0.bias", "0.weight", "1.bias", "1.num_batches_tracked", "1.running_mean",
    "1.running_var", "1.weight", "3.bias", "3.weight"})
end

function tests.test_what_is_not_loaded_comes_back_plain()
  local path = folder("plain")
  mh.checkpoint.save(path, {model = model(), step = 1})
  local rest = mh.checkpoint.load(path)

  testing.assert_equal(rest.model["3.bias"].shape, {2})
  testing.assert_equal(rest.step, 1)
end

function tests.test_wrong_checkpoints_are_refused()
  local path = folder("wrong")
  mh.checkpoint.save(path, {model = model(), step = 1})
  local refused = {
    {function() mh.checkpoint.load("/nowhere/run") end, "checkpoint.load: '/nowhere/run' is not a checkpoint"},
    {function() mh.checkpoint.load(path, {modle = model()}) end, "has no entry 'modle'; did you mean 'model'?"},
    {function() mh.checkpoint.load(path, {model = nn.Linear(2, 2)}) end,
    "Linear: load_state_dict: missing keys: 'weight', 'bias'"},
    {function() mh.checkpoint.load(path, {}, {entries = "step"}) end,
    "checkpoint.load: entries = 'step', expected a list of names"},
    {function() mh.checkpoint.load(path, {}, {verify = 0}) end, "checkpoint.load: verify = 0, expected true or false"},
    {function() mh.checkpoint.save(path, {}, {async = "no"}) end,
    "checkpoint.save: async = 'no', expected true or false"},
    {function() mh.checkpoint.save(path, {fn = print}) end, "is a function, which cannot be saved"},
    {function() mh.checkpoint.save(path, {["a/b"] = 1}) end, "'a/b' cannot be the name of an entry"},
    {function() local t = {} t.t = t mh.checkpoint.save(path, {a = t}) end,
  "is nested deeper than 90 levels, or holds itself"}, }
  for _, case in ipairs(refused) do testing.assert_error(case[1], case[2]) end

  -- As a later version might write it.
  local file <close> = assert(io.open(path .. "/checkpoint.json", "w"))
  assert(file:write('{"format": 99, "entries": {"step": 1}}'))
  assert(file:close())
  testing.assert_error(function() mh.checkpoint.load(path) end, "has format 99, this reads")
end

local function exists(...)
  local found = {}
  for i, name in ipairs {...} do found[i] = mh.files.exists(name) end
  return found
end

--- X16: {how checkpoint.json is changed, what load says of it}; `in_file` and `entry` begin what it says.
local function damaged_entries(in_file, entry)
  local model = entry:format("model")
  local in_model = model .. "Sequential: load_state_dict: "
  return {
    {function(all) all.format = nil end, in_file .. "it has no format"},
    {function(all) all.entries = nil end, in_file .. "it has no entries"},
    {function(all) all.entries = "none" end, in_file .. "it has no entries"},
    {function(all) all.entries = {"a", "b"} end, in_file .. "it has no entries"},
    {function(all) all.entries["../../etc/x"] = {["$tensor"] = "x"} end,
      in_file .. "'../../etc/x' cannot be the name of an entry"},
    {function(all) all.entries["/tmp/x"] = 1 end, in_file .. "'/tmp/x' cannot be the name of an entry"},
    {function(all) all.entries[""] = 1 end, in_file .. "'' cannot be the name of an entry"},
    {function(all) all.entries["a.b"] = 1 end, in_file .. "'a.b' cannot be the name of an entry"},
    {function(all) all.entries.model = "x" end, in_model .. "expected tensors by name, got 'x'"},
    {function(all) all.entries.model["3.bias"] = nil end, in_model .. "missing keys: '3.bias'"},
    {function(all) all.entries.model["3.bias"] = 4 end, in_model .. "'3.bias' is not a tensor but 4"},
    {function(all) all.entries.model["3.bias"]["$tensor"] = "y" end, model .. "the tensor 'y' is missing"},
    {function(all) all.entries.model["3.bias"]["$tensor"] = {} end, model .. "a name is a table"},
    {function(all) all.entries.best["$number"] = "big" end, entry:format("best") .. "'big' is not a number"},
  }
end

local function damaged_states(entry)
  local optimizer = entry:format("optimizer") .. "load_state_dict: "
  local schedule = entry:format("schedule") .. "load_state_dict: "
  return {
    {function(all) all.entries.optimizer = 3 end, optimizer .. "expected the table of state_dict(), got 3"},
    {function(all) all.entries.optimizer.state = nil end, optimizer .. "'state' is missing"},
    {function(all) all.entries.optimizer.state["0.bias"] = 7 end,
      optimizer .. "the state of parameter 2 is 7, expected a table"},
    {function(all) all.entries.optimizer.state["0.bias"].exp_avg = nil end,
      optimizer .. "'exp_avg' of parameter 2 is nil, expected a tensor"},
    {function(all) all.entries.optimizer.state["0.bias"].exp_avg = 1 end,
      optimizer .. "'exp_avg' of parameter 2 is 1, expected a tensor"},
    {function(all)
      local state = all.entries.optimizer.state
      state["0.bias"].exp_avg = state["0.weight"].exp_avg
    end, optimizer .. "'exp_avg' of parameter 2 is Tensor float32 [4, 1, 3, 3], expected a tensor of shape [4]"},
    {function(all) all.entries.optimizer.state["0.bias"].step = "x" end,
      optimizer .. "'step' of parameter 2 is 'x', expected an integer"},
    {function(all) all.entries.optimizer.state["0.bias"].setp = 1 end,
      optimizer .. "unknown option 'setp'; did you mean 'step'?"},
    {function(all) all.entries.optimizer.param_groups[1].lr = "fast" end, optimizer .. "option 'lr'"},
    {function(all) all.entries.schedule = 3 end, schedule .. "expected the table of state_dict(), got 3"},
    {function(all) all.entries.schedule.last_epoch = nil end, schedule .. "'last_epoch' is missing"},
    {function(all) all.entries.schedule.last_epoch = "x" end,
      schedule .. "'last_epoch' is a string, expected a number"},
    {function(all) all.entries.schedule.step = 3 end, schedule .. "'step' is not a value of a schedule"},
    {function(all) all.entries.schedule.base_lrs = {0.5, 0.5} end,
      schedule .. "'base_lrs' is of 2 groups, the optimizer has 1"},
    {function(all) all.entries.schedule.base_lrs = {"x"} end,
      schedule .. "'base_lrs' holds a string, expected numbers"},
  }
end

function tests.test_damaged_checkpoints_are_refused_with_file_and_entry()
  local path = folder("damaged")
  local net, opt, schedule = parts()
  train(net, opt, schedule, 2)
  mh.checkpoint.save(path, {model = net, optimizer = opt, schedule = schedule, best = math.huge})
  local file = path .. "/checkpoint.json"
  local whole = mh.json.encode(mh.json.load(file))
  local function put(text)
    local out <close> = assert(io.open(file, "w"))
    assert(out:write(text))
  end
  local in_file = "checkpoint.load: '" .. file .. "' is damaged: "
  local entry = "checkpoint.load: '" .. path .. "', entry '%s': "
  for _, cases in ipairs{damaged_entries(in_file, entry), damaged_states(entry)} do
    for _, case in ipairs(cases) do
      local all = mh.json.decode(whole)
      case[1](all)
      put(mh.json.encode(all))
      local again, opt2, schedule2 = parts()
      testing.assert_error(function() mh.checkpoint.load(path, {model = again, optimizer = opt2,
          schedule = schedule2}) end, case[2])
    end
  end
  for text, problem in pairs {[""] = in_file .. "parse error at line 1", ["null"] = in_file
    .. "it has no format", ["[1]"] = in_file .. "it has no format",
    ['{"format": 3, "entries": {"a": 1, "a": 2}}'] = "': json: the text has the key 'a' twice",
    [("["):rep(50000)] = in_file .. "it is nested deeper than 100 levels"} do
    put(text)
    testing.assert_error(function() mh.checkpoint.load(path) end, problem)
  end
  put(whole)
  mh.checkpoint.load(path, {model = net, optimizer = opt, schedule = schedule})
end

--- X16: every state that a killed save can leave.
function tests.test_what_a_killed_save_left_is_found_and_cleaned_up()
  local path = folder("killed")
  local partial, replaced = path .. ".partial", path .. ".replaced"
  for _, name in ipairs {path, partial, replaced} do mh._checkpoint_files.discard("test", name) end
  local function make(name, step)
    mh.checkpoint.save(name, {step = step, x = mh.full({3}, step)})
  end
  local function expect(step, ...)
    local saved = mh.checkpoint.load(path)
    testing.assert_equal({saved.step, saved.x:tolist()}, {step, {step, step, step}})
    testing.assert_equal(exists(path, partial, replaced), {...})
    make(path, step + 1)
    testing.assert_equal(mh.checkpoint.load(path).step, step + 1)
    testing.assert_equal(exists(path, partial, replaced), {true, false, false})
  end

  make(partial, 1)  -- before the first name was given
  expect(1, false, true, false)
  make(partial, 7)  -- complete, not yet exchanged; or exchanged, not yet removed
  expect(2, true, true, false)
  assert(os.rename(path, replaced))  -- in two steps, between them
  make(partial, 5)
  expect(5, false, true, true)
  make(replaced, 3)  -- in two steps, after them
  expect(6, true, false, true)
  mh.files.make_folder(partial .. "/half")  -- while the folder was written, or removed
  expect(7, true, true, false)

  mh._checkpoint_files.discard("test", path)
  mh.files.make_folder(partial)
  testing.assert_error(function() mh.checkpoint.load(path) end,
    "is not a checkpoint (it has no checkpoint.json)\n  have  '" .. partial .. "', which a save left unfinished")
  make(path, 1)
  expect(1, true, false, false)
end

function tests.test_names_of_folders()
  local path = folder("name")
  for _, name in ipairs {path, path .. "_link", path .. "_other"} do mh._checkpoint_files.discard("test", name) end
  mh.checkpoint.save(path .. "/", {step = 1})
  testing.assert_equal(exists(path .. "/checkpoint.json", path .. "/.partial"), {true, false})
  testing.assert_equal(mh.checkpoint.load(path .. "//").step, 1)

  assert(os.execute(("ln -s '%s' '%s_link'"):format(path, path)))
  mh.checkpoint.save(path .. "_link", {step = 2})
  testing.assert_equal(mh.checkpoint.load(path).step, 2)

  mh.files.make_folder(path .. "_other/results")
  testing.assert_error(function() mh.checkpoint.save(path .. "_other", {step = 1}) end,
      "_other' exists and is not a checkpoint")
  testing.assert_equal(exists(path .. "_other/results"), {true})
end

function tests.test_dtypes_go_there_and_back()
  local path = folder("dtypes") .. ".safetensors"
  local all = {}
  for i, dtype in ipairs{"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
      "bool"} do
    all[i] = {dtype, mh.tensor({{0, 1, 1}, {1, 0, 1}}, {dtype = dtype})}
  end
  if mh.rank() == 0 then mh.safetensors.save(path, all, {note = "x"}) end
  mh.barrier()
  local back, notes = mh.safetensors.load(path)

  testing.assert_equal(notes, {note = "x"})
  for i, pair in ipairs(all) do testing.assert_equal(back[i], pair) end
  testing.assert_error(function() mh.safetensors.save(path, {{"a", mh.ones{1}}, {"a", mh.ones{1}}}) end,
      "the name 'a' is taken")
  testing.assert_error(function() mh.safetensors.load("/nowhere") end, "safetensors: cannot open '/nowhere'")
end

function tests.test_files_cut_short_are_refused()
  if mh.rank() ~= 0 then return end
  local path = folder("short") .. ".safetensors"
  mh.safetensors.save(path, {{"a", mh.ones{100}}})
  local file = io.open(path, "rb")
  local whole = file:read("a")
  file:close()
  for _, case in ipairs{{#whole - 1, "is cut short"}, {30, "is cut short"}, {3, "is cut short"}} do
    file = io.open(path, "wb")
    file:write(whole:sub(1, case[1]))
    file:close()
    testing.assert_error(function() mh.safetensors.load(path) end, case[2])
  end
  file = io.open(path, "wb")
  file:write(("x"):rep(200))
  file:close()
  testing.assert_error(function() mh.safetensors.load(path) end, "is not a safetensors file")
end

return tests
