-- SPDX-License-Identifier: Apache-2.0
-- A name that does not exist is an error with the nearest one: of every table of functions and of every object that
-- mh.data, mh.files, mh.plot, mh.h5 and the schedules make. The tests go through the tables, so a function that is
-- added later fails here until its objects are strict, too.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local nn, optim = mh.nn, mh.optim

local tests = {}

--- `name` without its last letter but one, or with one more: near to `name`, and no name itself.
local function misspelt(name) return #name > 3 and name:sub(1, -3) .. name:sub(-1) or name .. name:sub(-1) end

local function write(object, name) object[name] = 1 end

--- Names of the public methods of an object of Lua.
local function sorted_methods(object)
  local names, class = {}, getmetatable(object).__class
  while class do
    for name, method in pairs(class) do
      if type(method) == "function" and name:sub(1, 1) ~= "_" then names[name] = true end
    end
    local meta = getmetatable(class)
    class = meta and meta.__index
  end
  return sorted_keys(names)
end

--- A method that is called with a dot says so, and a wrong value of a field with a check is refused.
local function check_object(object)
  for _, name in ipairs(getmetatable(object).may and sorted_methods(object) or {}) do
    testing.assert_error(function() object[name]() end, name .. ": called without its ")
    testing.assert_error(function() object[name](3) end, "\n  fix   write a colon, not a dot: ")
  end
  for _, field in ipairs(sorted_keys(getmetatable(object).checks or {})) do
    local before = object[field]
    local message = testing.assert_error(function() object[field] = {} end, field)
    assert(message:find(" is {}, expected ", 1, true) and message:find("\n  fix   ", 1, true)
      or message:find("unknown " .. field .. " {}\n  have  ", 1, true)
      or message:find(field .. " is fixed when the object is made\n  fix   ", 1, true), message)
    assert(rawequal(object[field], before), field .. " was written")
  end
end

--- Refuses every name of `known` misspelt, to read; and one to write.
local function check(object, known)
  for _, name in ipairs(known) do
    local slip = misspelt(name)
    testing.assert_error(function() return object[slip] end, "'" .. slip .. "'; did you mean ")
  end
  testing.assert_error(function() return object.nothing_like_it end, "'nothing_like_it'")
  testing.assert_error(function() write(object, misspelt(known[1])) end, misspelt(known[1]))
end

local function names_of(functions)
  local names = {}
  for name in pairs(functions) do names[#names + 1] = name end
  assert(#names > 0)
  return names
end

--- Public methods of an object: those of its class, and of the class that it inherits from.
local function methods_of(object)
  local names, known = {}, select(2, pcall(function() return object.nothing_like_it end))
  for name in known:match("\n  have  ([^\n]*)"):gsub("%.%.%. .*", ""):gmatch("[%a_][%w_]*") do
    names[#names + 1] = name
  end
  assert(#names > 1, known)
  return names
end

local function is_open_to_all(what, object)
  check_object(object)
  local refused = select(2, pcall(function() return object.nothing_like_it end))
  if type(refused) == "string" and refused:find("'nothing_like_it'", 1, true) then return false end
  error(what .. " made an object that says nothing of names that it lacks: see moonhalo.internal.strict", 0)
end

function tests.test_tables_of_functions()
  for name, functions in pairs {files = mh.files, plot = mh.plot, h5 = mh.h5, json = mh.json,
    safetensors = mh.safetensors, data = mh.data,
    ["data.layouts"] = mh.data.layouts, ["optim.lr_scheduler"] = optim.lr_scheduler} do
    check(functions, names_of(functions))
  end
  testing.assert_error(function() return mh.plot.line end, "plot: no 'line'; did you mean 'lines'?\n  have  ")
  testing.assert_error(function() mh.plot.line = print end, "plot: no 'line' to write; did you mean 'lines'?")
end

-- Arguments behind the optimizer, of every schedule there is.
local kSchedules = {
  StepLR = {2}, MultiStepLR = {{1, 2}}, ExponentialLR = {0.9}, LinearLR = {}, ConstantLR = {}, PolynomialLR = {},
  CosineAnnealingLR = {4},
  CosineAnnealingWarmRestarts = {4}, LambdaLR = {function() return 1 end}, get_constant_schedule_with_warmup = {2},
  get_linear_schedule_with_warmup = {2, 8}, get_cosine_schedule_with_warmup = {2, 8}, SequentialLR = {},
  OneCycleLR = {0.1, 10}, ReduceLROnPlateau = {}, MultiplicativeLR = {function() return 1 end}, ChainedScheduler = {},
  CyclicLR = {0.1, 1, {cycle_momentum = false}},
}

function tests.test_schedules()
  for name, make in pairs(optim.lr_scheduler) do
    local opt = optim.SGD(nn.Linear(2, 2):parameters(), {lr = 0.1})
    local arguments = kSchedules[name] or error("no arguments for the schedule " .. name .. ": add them to kSchedules",
        0)
    if name == "SequentialLR" then arguments = {{optim.LinearLR(opt), optim.ExponentialLR(opt, 0.9)}, {3}} end
    if name == "ChainedScheduler" then arguments = {{optim.StepLR(opt, 2), optim.ExponentialLR(opt, 0.9)}} end
    local schedule = make(opt, table.unpack(arguments))
    is_open_to_all(name, schedule)
    check(schedule, methods_of(schedule))
    schedule:step(name == "ReduceLROnPlateau" and 0.5 or nil)
    schedule:load_state_dict(schedule:state_dict())
    assert(tostring(schedule):find(name .. " {", 1, true) == 1 and tostring(schedule):find("last_epoch = 1", 1, true),
        tostring(schedule))
    local state = schedule:state_dict()
    state.gama = 2
    testing.assert_error(function() schedule:load_state_dict(state) end,
        "load_state_dict: 'gama' is not a value of a schedule")
  end
  local opt = optim.SGD(nn.Linear(2, 2):parameters(), {lr = 0.1})
  local schedule = optim.StepLR(opt, 10)
  testing.assert_error(function() schedule:step(0.5) end, "StepLR: step takes nothing, got 0.5\n  fix   optim.Reduce")
  testing.assert_error(function() return schedule.last_epoc end,
      "StepLR: no field or method 'last_epoc'; did you mean 'last_epoch'?")
  testing.assert_error(function() schedule.gama = 0.5 end, "StepLR: no field 'gama' to write; did you mean 'gamma'?")
  schedule.gamma = 0.5  -- what there is may be written
  testing.assert_equal(schedule.gamma, 0.5)
  testing.assert_error(function() schedule.gamma = "a" end,
      "StepLR: gamma is 'a', expected a number\n  fix   gamma = 0.1")
  testing.assert_error(function() schedule.T_max = 3 end, "StepLR: no field 'T_max' to write")
  testing.assert_error(function() schedule.gamma = nil end, "StepLR: gamma is nil, expected a number")
  testing.assert_error(function() schedule.step_size = 0 end, "StepLR: step_size is 0, expected a number of at least 1")
  testing.assert_equal({schedule.gamma, schedule.step_size, schedule:state_dict().gamma}, {0.5, 10, 0.5})
  opt:add_param_group{params = nn.Linear(2, 2):parameters()}
  testing.assert_error(function() schedule:step() end,
      "StepLR: the schedule was made for other groups\n  have  2 groups of parameters, 1 when it was made")
  testing.assert_equal(schedule.last_epoch, 0)
end

local function collection()
  return mh.data.from_tensors({u = mh.ones{8, 3, 4}, v = mh.zeros{8, 3, 4}},
      {dims = {"time", "y", "x"}, coordinates = {y = {0, 1, 2}}})
end

local function windows()
  return collection():windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"v"}, steps = {1}}}
end

-- A wrong value of a sampler or a loader is refused where it is assigned, and not where it is used.
function tests.test_assignments_of_orders()
  local sampler = mh.data.Sampler(4, {batch = 2, drop_last = true})
  local part = mh.data.DistributedSampler(7, {num_replicas = 2, rank = 1})
  local loader = windows():loader{batch = 2}
  for _, case in ipairs {
    {sampler, "epoch", "a", "Sampler: epoch is 'a', expected an integer of at least 0\n  fix   epoch = 0"},
    {sampler, "epoch", -1, "Sampler: epoch is -1, expected an integer of at least 0"},
    {sampler, "next", 77, "Sampler: next is 77, expected an integer of 0 to 4\n  fix   next = 0 begins"},
    {sampler, "next", 1.5, "Sampler: next is 1.5, expected an integer of 0 to 4"},
    {sampler, "shuffle", "no", "Sampler: shuffle is 'no', expected true or false\n  fix   shuffle = false keeps"},
    {sampler, "seed", 1.5, "Sampler: seed is 1.5, expected an integer\n"},
    {sampler, "batch", 5, "Sampler: batch is 5, expected at most 4, as drop_last leaves out a smaller batch"},
    {sampler, "size", 1, "Sampler: size is 1, expected at least 2, as drop_last leaves out a smaller batch"},
    {part, "epoch", "a", "DistributedSampler: epoch is 'a', expected an integer of at least 0"},
    {part, "rank", 2, "DistributedSampler: rank is 2, expected an integer of 0 to 1\n  fix   ranks count from 0"},
    {part, "num_replicas", 1, "DistributedSampler: num_replicas is 1, expected more than rank, which is 1"},
    {part, "dataset", 9, "DistributedSampler: dataset is fixed when the object is made\n  fix   make another"},
    {loader, "epoch", "a", "Loader: epoch is 'a', expected an integer of at least 0"},
    {loader, "next", 77, "Loader: next is 77, expected an integer of 0 to 7"},
    {loader, "shuffle", "no", "Loader: shuffle is 'no', expected true, false or 'chunks'"},
  } do
    local object, field, value, message = table.unpack(case)
    local before = object[field]
    testing.assert_error(function() object[field] = value end, message)
    testing.assert_equal(object[field], before)
  end
  sampler.next, sampler.epoch, sampler.shuffle = 2, 3, false
  local rest = {}
  for index in sampler:batches() do rest[#rest + 1] = index:tolist() end
  testing.assert_equal(rest, {{2, 3}})
  testing.assert_equal({sampler.epoch, sampler.next}, {4, 0})
  testing.assert_error(function() mh.data.Sampler(4, {shuffle = "no"}) end, "Sampler: shuffle is 'no', expected true")
end

function tests.test_options_of_missing_values()
  testing.assert_error(function() windows():loader{missing = {fill = 0, maks = true}} end,
      "loader: unknown option of missing 'maks'; did you mean 'mask'?")
end

--- The samples of an epoch, in their order.
local function samples_of(loader)
  local samples = {}
  for batch in loader:batches() do
    for _, sample in ipairs(batch.index:tolist()) do samples[#samples + 1] = sample end
  end
  return samples
end

function tests.test_a_loader_takes_the_order_that_is_assigned()
  local set = windows()
  local shuffled = samples_of(set:loader{batch = 2, shuffle = true, seed = 5})
  local loader = set:loader{batch = 2}
  testing.assert_equal(samples_of(loader), {0, 1, 2, 3, 4, 5, 6})
  loader.shuffle, loader.seed, loader.epoch = true, 5, 0
  testing.assert_equal(samples_of(loader), shuffled)
end

-- Random numbers of a transform follow the seed that is in force, as the order does.
function tests.test_seeds_of_a_transform_follow_the_seed_of_the_loader()
  local set, seen = windows(), nil
  local function seeds_of(loader, change)
    seen = {}
    if change then change(loader) end
    samples_of(loader)
    return seen
  end
  local function loader_of(seed)
    return set:loader{batch = 2, seed = seed, transform = function(batch, place)
      table.move(place.seeds, 1, #place.seeds, #seen + 1, seen)
      return batch
    end}
  end
  local expected, before = seeds_of(loader_of(5)), seeds_of(loader_of(0))
  testing.assert_equal(#expected, 7)
  assert(expected[1] ~= before[1])
  testing.assert_equal(seeds_of(loader_of(0), function(loader) loader.seed = 5 end), expected)
  testing.assert_equal(seeds_of(loader_of(0), function(loader) loader:load_state_dict(loader_of(5):state_dict()) end),
      expected)
end

function tests.test_a_loader_takes_the_batch_and_prefetch_that_are_assigned()
  local loader = windows():loader{batch = 1, memory = 4096}
  local sizes = {}
  for batch in loader:batches() do
    sizes[#sizes + 1] = batch.index:numel()
    loader.batch = 2
    if #sizes == 2 then loader.prefetch = 0 end
  end
  testing.assert_equal(sizes, {1, 2, 2, 2})
  loader.prefetch = 4
  testing.assert_error(function() loader.batch = 7 end, "loader: 7 batches do not fit in memory = 4096 bytes")
  testing.assert_error(function() loader.prefetch = 60 end, "loader: 63 batches do not fit in memory = 4096 bytes")
  testing.assert_equal({loader.batch, loader.prefetch}, {2, 4})
  testing.assert_equal(samples_of(loader), {0, 1, 2, 3, 4, 5, 6})
end

function tests.test_a_state_that_is_refused_changes_nothing()
  local opt = optim.SGD(nn.Linear(2, 2):parameters(), {lr = 0.5})
  local function chained()
    return optim.SequentialLR(opt, {optim.StepLR(opt, 2), optim.StepLR(opt, 3)}, {4})
  end
  for _, case in ipairs {
    {optim.StepLR(opt, 2), function(state) state.step_size = 0 end,
      "load_state_dict: 'step_size' is 0, expected a number of at least 1\n  fix   give what state_dict() gave"},
    {optim.StepLR(opt, 2), function(state) state.gamma = 0 / 0 end, "load_state_dict: 'gamma' is "},
    {optim.OneCycleLR(opt, 0.1, 10), function(state) state.anneal_strategy = "sin" end,
      "unknown anneal_strategy 'sin'"},
    {optim.CyclicLR(opt, 0.1, 1, {cycle_momentum = false}), function(state) state.step_size_down = 0 end,
      "'step_size_down' is 0, expected a number of at least 1"},
    {chained(), function(state) state.schedulers[2].step_size = -1 end, "'step_size' is -1"},
    {chained(), function(state) state.last_epoch = -2 end, "'last_epoch' is -2"},
    {mh.GradScaler(), function(state) state.growth_factor = 0.5 end,
      "GradScaler: load_state_dict: 'growth_factor' is 0.5, expected a number above 1"},
    {mh.GradScaler(), function(state) state.scale = -1.0 end, "load_state_dict: 'scale' is -1.0, expected a number of"},
    {mh.GradScaler(), function(state) state.growth_interval = math.huge end, "'growth_interval' is inf"},
  } do
    local object, damage, message = table.unpack(case)
    local before, rate, state = object:state_dict(), opt.param_groups[1].lr, object:state_dict()
    for key, value in pairs(state) do  -- others that are right
      if key == "gamma" or key == "last_epoch" or key == "backoff_factor" then state[key] = value * 0.5 end
    end
    for _, nested in ipairs(state.schedulers or {}) do nested.gamma = 0.75 end
    damage(state)
    testing.assert_error(function() object:load_state_dict(state) end, message)
    testing.assert_equal(object:state_dict(), before)
    testing.assert_equal(opt.param_groups[1].lr, rate)
  end
end

function tests.test_fields_of_schedules_that_may_be_nil()
  local opt = optim.SGD(nn.Linear(2, 2):parameters(), {lr = 0.5})
  local cyclic = optim.CyclicLR(opt, 0.0, 1.0, {step_size_up = 2, step_size_down = 4, cycle_momentum = false})
  cyclic.step_size_down = nil  -- as step_size_up
  for _ = 1, 3 do cyclic:step() end
  testing.assert_equal(cyclic:get_last_lr(), {0.5})
  local cycle = optim.OneCycleLR(opt, {max_lr = 1.0, epochs = 3, steps_per_epoch = 4})
  cycle.total_steps = nil
  cycle:step()
  testing.assert_equal(cycle.total_steps, nil)
  cycle.epochs = nil
  testing.assert_error(function() cycle:step() end, "OneCycleLR: give total_steps, or epochs and steps_per_epoch")
  testing.assert_error(function() cycle.max_lr = nil end, "OneCycleLR: max_lr is nil, expected a number")
  testing.assert_error(function() cycle.epochs = 0 end, "OneCycleLR: epochs is 0, expected a number of at least 1")
end

function tests.test_objects_of_training()
  local net = nn.Linear(2, 2)
  local opt = optim.SGD(net:parameters(), {lr = 0.1})
  local ema = mh.EMA(net)
  local pipe = mh.pipeline(nn.Sequential(nn.Linear(2, 2)), mh.init_device_mesh("cpu", {1}, {"pp"}), 1)
  for _, object in ipairs {mh.GradScaler(), ema, mh.metrics.mse{}, mh.distributions.Normal(0.0, 1.0), pipe,
    optim.NAdam(net:parameters())} do
    check_object(object)
    check(object, methods_of(object))
  end
  testing.assert_error(function() ema.decay = 0.5 end,
      "EMA: decay is fixed when the object is made\n  fix   make another")
  for _, case in ipairs {
    {optim.StepLR(opt, 2).step, "step", "schedule:step()"},
    {mh.data.Sampler(4).batches, "batches", "sampler:batches()"},
    {ema.update, "update", "ema:update()"}, {mh.GradScaler().update, "update", "scaler:update()"},
    {mh.metrics.mse{}.value, "value", "metric:value()"},
  } do
    testing.assert_error(case[1], case[2] .. ": called without its ")
    testing.assert_error(case[1], "write a colon, not a dot: " .. case[3])
  end
  for micro in mh.accumulate(1, net, {mh.ones{1, 2}}) do
    testing.assert_error(function() micro.backward(mh.ones{}) end,
        "which is not a micro-batch\n  fix   write a colon, not a dot: micro:backward(...)")
  end
end

--- Left out: what is called on classes, and what has an error of its own.
local kOtherWords = {["Module:extend"] = "of classes", ["Module:show"] = "of classes", ["Module:call"] = "net(...)",
  ["Module:forward"] = "of the class", ["Module:init"] = "of the class", ["ModuleDict:forward"] = "always an error",
  ["ModuleDict:init"] = "of the class"}

--- Calls method `name` with a dot, as a script does: errors see that name.
local function call_with_dot(name, ...)
  local call = ("self[%q]"):format(name)
  if load("return function(self, ...) return self." .. name .. " end") then call = "self." .. name end
  return load("return function(self, ...) return " .. call .. "(...) end", "@call.lua")()(...)
end

function tests.test_every_method_that_is_called_with_a_dot_says_so()
  local wrong, count = {}, 0
  for _, one in ipairs(require("support.public_functions")()) do
    for _, given in ipairs(one.make and not kOtherWords[one.name] and {{n = 0}, {3, n = 1}} or {}) do
      local ok, message = pcall(call_with_dot, one.name:match("[%w_]+$"), one.make(), table.unpack(given, 1, given.n))
      count = count + 1
      if ok or not tostring(message):find("\n  fix   write a colon, not a dot", 1, true) then
        wrong[#wrong + 1] = ("%s(%s): %s"):format(one.name, given[1] or "", ok and "is taken" or message)
      end
    end
  end
  assert(count > 400 and #wrong == 0, ("%d of %d\n  %s"):format(#wrong, count, table.concat(wrong, "\n  ", 1,
      math.min(#wrong, 30))))
end

--- Their errors name an object as the reference does.
function tests.test_words_for_objects_with_methods()
  local own = mh.Function{
    forward = function(ctx, x)
      testing.assert_error(ctx.save, "save: called without its context\n  fix   write a colon, not a dot: ctx:save()")
      return x
    end,
    backward = function(_, gradient) return gradient end,
  }
  own(mh.ones{2})
  local trainers = require("moonhalo.internal.trainers").new(nil,
      {every = 1, fields = {"u"}, learn = print, weights = {}, ranks = 1})
  testing.assert_error(trainers.serve, "called without its trainer group\n  fix   write a colon, not a dot: trainers:")
  local path = files.path("strict_save")
  local save = mh.checkpoint.save(path, {values = {1, 2}}, {async = true})
  testing.assert_error(function() save.wait(3) end,
      "called on 3, which is not a save\n  fix   write a colon, not a dot: save:wait(...)")
  testing.assert_equal(save:wait(), path)
  assert(os.execute("rm -r '" .. path .. "'"))
end

--- Tables of a script that inherit from an object have its methods; those that inherit from another object do not.
function tests.test_methods_of_tables_that_inherit_from_an_object()
  local loader = windows():loader{batch = 2}
  local mine = setmetatable({note = "mine"}, {__index = loader})
  local further = setmetatable({}, {__index = mine})
  local names = {}
  for _, object in ipairs {loader, mine, further} do
    for batch in object:batches() do names[#names + 1] = batch.index:tolist()[1] end
  end
  testing.assert_equal(names, {0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6})
  local schedule = setmetatable({}, {__index = optim.StepLR(optim.SGD(nn.Linear(2, 2):parameters(), {lr = 0.5}), 2)})
  testing.assert_equal(schedule:get_last_lr(), {0.5})
  local others = {schedule, {}, setmetatable({}, {__index = {}}), getmetatable(loader),
    setmetatable({}, {__index = function(_, name) return loader[name] end})}
  local round = {}
  others[#others + 1] = setmetatable(round, {__index = round})
  for _, other in ipairs(others) do
    testing.assert_error(function() loader.batches(other) end, "which is not a loader\n  fix   write a colon")
  end
end

--- One object of every function of mh.data; {} where it makes none.
local kData = {
  open = function() return {mh.data.open("examples/climate/data/A1B_north_america.nc")} end,
  from_tensors = function() return {collection()} end,
  layouts = function() return {} end,
  load_statistics = function()
    local path = files.path("strict.json")
    windows():statistics():save(path)
    return {mh.data.load_statistics(path)}
  end,
  Sampler = function() return {mh.data.Sampler{size = 4}} end,
  DistributedSampler = function() return {mh.data.DistributedSampler(4)} end,
}

function tests.test_objects_of_mh_data()
  for name in pairs(mh.data) do
    local make = kData[name] or error("no object of mh.data." .. name .. ": add it to kData", 0)
    for _, object in ipairs(make()) do
      is_open_to_all(name, object)
      check(object, methods_of(object))
    end
  end
end

--- Objects that methods of these objects give.
function tests.test_objects_of_objects()
  local data, set = collection(), windows()
  local train, valid = set:split{train = 0.5, valid = 0.5}
  local loader = set:loader{batch = 2}
  local added = data:add_field("w", {values = mh.ones{3, 4}})
  for what, object in pairs {field = data.fields.u, added = added, windows = set, train = train, valid = valid,
    loader = loader, statistics = set:statistics()} do
    is_open_to_all(what, object)
    check(object, methods_of(object))
  end
  check(data.fields, {"u"})
  check(data.coordinates, {"y"})
  check(set:statistics().fields, {"u", "v"})
  testing.assert_error(function() return set[0] end, "Windows: no field or method 0")
  testing.assert_error(function() return set[0] end,
      "\n  fix   samples come in batches: for batch in set:loader{batch = 1}:batches() do")
  testing.assert_error(function() return data:window{} end,
      "Collection: no field or method 'window'; did you mean 'windows'?")
  testing.assert_equal(data.times, nil)  -- what a collection may have or not is not a slip
  testing.assert_equal(data.guessed, false)
end

function tests.test_batches()
  local seen = {}
  local function transform(batch)
    check(batch, {"inputs", "targets", "times", "index"})
    testing.assert_error(function() batch.input = batch.inputs end,
        "batch: no field 'input' to write; did you mean 'inputs'?")
    batch.anything = 3  -- a new entry
    seen[#seen + 1] = batch
    return batch
  end
  local function replaced(batch)
    return {inputs = batch.inputs, targets = batch.targets, index = batch.index, times = batch.times}
  end
  for _, options in ipairs {{batch = 2}, {batch = 2, transform = transform}, {batch = 2, transform = replaced}} do
    for batch in windows():loader(options):batches() do
      check(batch, {"inputs", "targets", "times", "index"})
      testing.assert_equal(batch.mask, nil)
      testing.assert_equal(batch.static, nil)
      testing.assert_equal(rawget(batch, "anything"), options.transform == transform and 3 or nil)
      testing.assert_equal({batch.inputs.shape[1], #batch.times}, {2, 2})
      testing.assert_equal(not getmetatable(batch), true)  -- a plain table to those who ask
      break
    end
  end
  assert(#seen > 0)
end

function tests.test_files_and_datasets()
  local file <close> = mh.h5.open("examples/climate/data/A1B_north_america.nc")
  local data = file["air_temperature"]
  testing.assert_error(function() return file:dataset() end,
      "File: no attribute, method or dataset 'dataset'; did you mean 'datasets'?")
  testing.assert_error(function() return file["air_temprature"] end, "did you mean 'air_temperature'?")
  for _, object in ipairs {data, data["0:2"]} do
    testing.assert_error(function() return object:raed() end,
        "Dataset: no attribute, method or dataset 'raed'; did you mean 'read'?")
    testing.assert_error(function() return object.shpae end, "did you mean 'shape'?")
    testing.assert_error(function() object.units = "K" end, ": 'units' cannot be written")
  end
  testing.assert_error(function() file.path = "x" end, "File: 'path' cannot be written")
  testing.assert_error(function() mh.Shard(0).dim = 1 end, "Placement: 'dim' cannot be written")
end

return tests
