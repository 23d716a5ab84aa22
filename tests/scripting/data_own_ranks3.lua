-- SPDX-License-Identifier: Apache-2.0
-- Fields that no file holds, and transforms, in mh.data: tensors of a script's own, and what functions make of other
-- fields. Batches, statistics and single steps are those of plain tensors, on uneven and empty blocks. The same file
-- runs with processes.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"

local tests = {}
local kSteps, kHeight, kWidth = 9, files.height, files.width

local function full(x) return x:is_shard_tensor() and x:full_tensor() or x end

--- A file of t2m and z [2 levels], and all their values, plain float32 [steps, channels, rows, columns].
local function with_file(run)
  local path = files.cf("own.nc", 0, kSteps)
  run(mh.data.open(path), {t2m = files.t2m(0, kSteps):unsqueeze(1), z = files.z(0, kSteps)}, path)
  files.remove{path}
end

local function cuts()
  local n = mh.world_size()
  local function one(names, cut) return {mesh = mh.init_device_mesh(mh.device(), {n}, names), cut = cut} end
  local list = {{}, one({"data"}, {batch = "data"}), one({"domain"}, {})}
  if n == 3 then
    list[#list + 1] = one({"domain"}, {latitude = {"domain", {5, 0, 2}}})
    list[#list + 1] = one({"domain"}, {longitude = {"domain", {1, 1, 3}}})
  else
    list[#list + 1] = one({"domain"}, {latitude = "domain"})
  end
  return list
end

local kKernel = mh.tensor({{{{0, 1, 0}, {1, -4, 1}, {0, 1, 0}}}}, {dtype = "float32"})
--- Reaches over the borders of blocks, so it is wrong on a block alone.
local function laplacian(t, place)
  return mh.conv2d(t, kKernel:to(t.device), nil, {padding = 1}) * place.coordinates.latitude:mul(math.pi / 180):cos()
end

--- Values of the functions below on whole plain values.
local function expected(all, data)
  local latitude = mh.tensor(data.coordinates.latitude, {dtype = "float32"}):reshape{kHeight, 1}
  local place = {coordinates = {latitude = latitude}}
  local found = {laplacian = laplacian(all.t2m, place), shear = mh.cat({all.z - all.t2m, all.t2m * 2}, 1),
      t2m = all.t2m}
  found.both = found.laplacian + found.shear:sum{dim = {1}, keepdim = true}
  return found
end

local function add_fields(data)
  local seen = {}
  data:add_field("laplacian", {from = "t2m", make = laplacian, units = "K"})
  data:add_field("shear", {from = {"z", "t2m"}, channels = 3, make = function(z, t, place)
    for i, time in ipairs(place.times) do
      assert(time == data.times[place.steps[i] + 1] and place.trajectories[i] == 0, "time of frame")
    end
    for i, dim in ipairs(data.space) do
      local of, range = z:is_shard_tensor() and z:to_local() or z, place.rows[dim]
      assert(of.shape[i + 2] == range[2] - range[1], "rows of this rank")
    end
    seen[#seen + 1] = #place.steps
    return mh.cat({z - t, t * 2}, 1)
  end})
  data:add_field("both", {from = {"laplacian", "shear"}, make = function(a, b) return a
      + b:sum{dim = {1}, keepdim = true} end})
  return seen
end

function tests.test_X21_functions_of_fields_are_fields()
  with_file(function(data, all)
    local seen = add_fields(data)
    local want = expected(all, data)
    testing.assert_close(data.fields.both:read(4), want.both["4"])
    local set = data:windows{inputs = {fields = {"shear", "t2m", "laplacian"}, steps = {-1, 0}},
        targets = {fields = {"both"}, steps = {2}}}
    local stats = set:statistics{differences = true}
    for name, of in pairs(stats.fields) do
      local values = name == "both" and want.both["3:9"] or want[name]["0:7"]
      testing.assert_close(mh.tensor(of.mean, {dtype = "float64"}), values:double():mean{dim = {0, 2, 3}},
          {rtol = 1e-6, atol = 1e-6})
      testing.assert_close(mh.tensor(of.std, {dtype = "float64"}), values:double():std{dim = {0, 2, 3}, correction = 0},
          {rtol = 1e-6})
    end
    local change = stats.fields.both.differences[1]
    testing.assert_close(mh.tensor(change.mean, {dtype = "float64"}),
        (want.both["3:9"] - want.both["1:7"]):double():mean{dim = {0, 2, 3}}, {rtol = 1e-4, atol = 1e-4})
    local function scaled(name, values)
      local of, shape = stats.fields[name], {#stats.fields[name].mean, 1, 1}
      return (values - mh.tensor(of.mean, {dtype = "float32"}):reshape(shape))
          / mh.tensor(of.std, {dtype = "float32"}):reshape(shape)
    end
    for _, normalize in ipairs{false, true} do
      for _, one in ipairs(cuts()) do
        local loader = set:loader{mesh = one.mesh, cut = one.cut, batch = 4, shuffle = true, seed = 3,
            normalize = normalize and stats or nil, prefetch = 1}
        local count = 0
        for batch in loader:batches() do
          for i, sample in ipairs(batch.index:tolist()) do
            local _, anchor = set:at(sample)
            local parts = {}
            for _, step in ipairs{-1, 0} do
              for _, name in ipairs{"shear", "t2m", "laplacian"} do
                local values = want[name][tostring(anchor + step)]
                parts[#parts + 1] = normalize and scaled(name, values) or values
              end
            end
            testing.assert_close(full(batch.inputs)[tostring(i - 1)], mh.cat(parts, 0), {rtol = 1e-4, atol = 1e-3})
            local target = want.both[tostring(anchor + 2)]
            testing.assert_close(full(batch.targets)[tostring(i - 1)], normalize and scaled("both", target) or target,
                {rtol = 1e-4, atol = 1e-3})
            count = count + 1
          end
        end
        testing.assert_equal(count, #set)
      end
    end
    assert(#seen > 0)
  end)
end

function tests.test_X21_tensors_are_fields_beside_files()
  with_file(function(data, all)
    local sun = mh.arange(kSteps * kHeight * kWidth, {dtype = "float64"}):reshape{kSteps, kWidth, kHeight}
    local soil = mh.arange(2 * kHeight * kWidth, {dtype = "int32"}):reshape{kHeight, kWidth, 2}
    data:add_field("sun", {values = sun, dims = {data.axis, "longitude", "latitude"}})
    data:add_field("soil", {values = soil, dims = {"latitude", "longitude", "layer"}})
    data:add_field("land", {values = soil:select(2, 0):gt(20)})
    data:add_field("lit", {from = {"sun", "land"}, make = function(a, b) return a * b end})
    local by_space = sun:transpose(1, 2):float()
    local land = soil:select(2, 0):gt(20):float()
    testing.assert_close(data.fields.sun:read(3), by_space["3"]:unsqueeze(0))
    local set = data:windows{inputs = {fields = {"t2m", "sun"}, steps = {0, 1}},
        targets = {fields = {"lit"}, steps = {1}}, static = {"soil", "land", "orography"}}
    local stats = set:statistics()
    testing.assert_close(stats.fields.lit.mean[1], (by_space["1:9"] * land):double():mean():item(), {rtol = 1e-6})
    testing.assert_close(stats.fields.soil.mean[2], soil:select(2, 1):double():mean():item(), {rtol = 1e-6})
    for _, one in ipairs(cuts()) do
      for batch in set:loader{mesh = one.mesh, cut = one.cut, batch = 3}:batches() do
        for i, sample in ipairs(batch.index:tolist()) do
          local at = function(name, step) return name[tostring(sample + step)] end
          local wanted = mh.cat({at(all.t2m, 0), at(by_space, 0):unsqueeze(0), at(all.t2m, 1),
              at(by_space, 1):unsqueeze(0)}, 0)
          testing.assert_close(full(batch.inputs)[tostring(i - 1)], wanted)
          testing.assert_close(full(batch.targets)[tostring(i - 1)], (at(by_space, 1) * land):unsqueeze(0))
          testing.assert_close(full(batch.static)[tostring(i - 1)],
            mh.cat({soil:permute{2, 0, 1}:float(), land:unsqueeze(0), files.values(0, 1, kHeight, kWidth, 5):float()},
              0))
        end
      end
    end
  end)
end

function tests.test_X21_names_and_values_that_do_not_fit()
  local tensors = {u = mh.ones{4, 6}}
  local function from(...)
    local given = table.pack(...)
    return function() return mh.data.from_tensors(tensors, table.unpack(given, 1, given.n)) end
  end
  for _, case in ipairs {
    {from({"time", "x"}, "tmie"), "tmie"},  -- the axis, by its position
    {from{dims = 5}, "data.from_tensors: dims is 5\n  have  tensors u"},
    {from{dims = {"time", 3}}, "data.from_tensors: dims is "},
    {from{dims = {"time", "x"}, space = 5}, "data.from_tensors: space is 5"},
    {function() mh.data.open("absent.nc", {space = true}) end, "data.open: space is true"},
    {from{dims = {"time", "x"}, units = "K"}, "data.from_tensors: units are 'K'"},
    {from{dims = {"time", "x"}, units = {v = "K"}}, "data.from_tensors: unknown field in units 'v'"},
    {from{dims = {"time", "x"}, units = {u = 3}}, "data.from_tensors: units.u is 3, expected a string"},
    {from{dims = {"time", "x"}, coordinates = 3}, "data.from_tensors: coordinates are 3"},
  } do
    testing.assert_error(case[1], case[2])
  end
  local data = mh.data.from_tensors(tensors, {"time", "x"}, "time")
  testing.assert_error(function() data:windows{inputs = {"u"}, static = "u"} end, "windows: static is 'u'\n  have  u")
  testing.assert_error(function() data:windows{inputs = {"u"}}:loader{cut = "x"} end,
      "loader: cut is 'x'\n  have  space (x)\n  fix   give {DIM = {MESH_DIM, sizes}}")
  testing.assert_error(function() data:windows{inputs = {"u"}}:statistics{differences = "no"} end,
      "statistics: differences is 'no', expected true or false")
  testing.assert_error(function() data:windows{inputs = {"u"}}:statistics():save(3) end, "path is 3, expected a string")
end

function tests.test_X21_tensors_without_files()
  local u = mh.arange(4 * 5 * 6 * 3, {dtype = "float32"}):reshape{4, 5, 6, 3}  -- [trajectory, time, y, x]
  local mask = mh.arange(18):reshape{6, 3}:gt(4)
  local data = mh.data.from_tensors({u = u, mask = mask}, {dims = {u = {"sample", "time", "y", "x"}, mask = {"y", "x"}},
    times = {0, 1, 2, 3, 4}, units = {u = "m"}, coordinates = {y = mh.linspace(0, 1, 6)}})
  testing.assert_equal({#data.runs, data.steps, data.fields.u.units}, {4, 20, "m"})
  data:add_field("force", {values = u:select(1, 0), dims = {"sample", "y", "x"}})
  data:add_field("double", {from = {"u", "force"}, make = function(a, b, place) return a * 2 + b
      + place.coordinates.y end})
  local y = mh.linspace(0, 1, 6):reshape{6, 1}
  local set = data:windows{inputs = {fields = {"u", "double"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}},
      static = {"mask", "force"}}
  testing.assert_equal(#set, 16)
  local stats = set:statistics()
  testing.assert_close(stats.fields.double.mean[1], (u:narrow(1, 0, 4) * 2 + u:narrow(1, 0, 1) + y):double():mean(
      ):item(), {rtol = 1e-6})
  testing.assert_close(stats.fields.force.mean[1], u:narrow(1, 0, 1):double():mean():item(), {rtol = 1e-6})
  local n = mh.world_size()
  local mesh = mh.init_device_mesh(mh.device(), {n}, {"domain"})
  local count = 0
  for batch in set:loader{mesh = mesh, cut = {y = {"domain", n == 3 and {4, 0, 2} or nil}}, batch = 5}:batches() do
    for i, sample in ipairs(batch.index:tolist()) do
      local run, step = set:at(sample)
      local at = u:select(0, run):select(0, step)
      testing.assert_close(full(batch.inputs)[tostring(i - 1)],
          mh.stack({at, at * 2 + u:select(0, run):select(0, 0) + y}, 0))
      testing.assert_close(full(batch.targets)[tostring(i - 1)], u:select(0, run):select(0, step + 1):unsqueeze(0))
      testing.assert_close(full(batch.static)[tostring(i - 1)],
          mh.stack({mask:float(), u:select(0, run):select(0, 0)}, 0))
      count = count + 1
    end
  end
  testing.assert_equal(count, 16)
  local samples = mh.data.from_tensors({x = mh.ones{8, 2, 3, 3}, y = mh.zeros{8, 3, 3}},
      {dims = {x = {"sample", "channel", "h", "w"}, y = {"sample", "h", "w"}}})
  testing.assert_equal({samples.steps, samples.fields.x.channels, #samples.runs}, {8, 2, 1})
end

function tests.test_X21_transforms_of_batches()
  with_file(function(data, all)
    local set = data:windows{inputs = {"t2m"}, targets = {fields = {"z"}, steps = {1}}}
    local flips = {}
    local function transform(batch, place)
      local flip = {}
      for i, seed in ipairs(place.seeds) do flip[i] = seed % 2 == 0 end
      local chosen = mh.tensor(flip):reshape{#flip, 1, 1, 1}
      batch.inputs = mh.where(chosen, batch.inputs:flip{3}, batch.inputs) + place.coordinates.latitude
      batch.extra = place.epoch
      for i, sample in ipairs(batch.index:tolist()) do
        local key = place.epoch .. ":" .. sample
        assert(flips[key] == nil or flips[key] == flip[i], "draws do not depend on batches, cuts or resuming")
        flips[key] = flip[i]
      end
      return batch
    end
    local latitude = mh.tensor(data.coordinates.latitude, {dtype = "float32"}):reshape{kHeight, 1}
    for number, one in ipairs(cuts()) do
      local loader = set:loader{mesh = one.mesh, cut = one.cut, batch = number % 2 == 0 and 2 or 3, shuffle = true,
          transform = transform}
      for epoch = 0, 1 do
        for batch in loader:batches() do
          testing.assert_equal(batch.extra, epoch)
          for i, sample in ipairs(batch.index:tolist()) do
            local values = all.t2m[tostring(sample)]
            testing.assert_close(full(batch.inputs)[tostring(i - 1)],
                (flips[epoch .. ":" .. sample] and values:flip{2} or values) + latitude)
          end
        end
      end
    end
    local counts = {[true] = 0, [false] = 0}
    for _, flip in pairs(flips) do counts[flip] = counts[flip] + 1 end
    assert(counts[true] > 2 and counts[false] > 2, "both happen")
  end)
end

function tests.test_S18_plain_files_are_read_once_over_all_ranks()
  local path = files.make("own_plain.h5", function(out) out:write("u", mh.arange(16 * 24 * 20,
      {dtype = "float32"}):reshape{16, 24, 20}) end)
  local whole = mh.arange(16 * 24 * 20, {dtype = "float32"}):reshape{16, 1, 24, 20}
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  local set = mh.data.open(path, {dims = {"time", "y", "x"}}):windows{inputs = {"u"}}
  for _, dim in ipairs{"y", "x"} do
    local sizes, rows = {}, dim == "y" and 24 or 20
    for i = 1, mh.world_size() do sizes[i] = i == 1 and rows - (mh.world_size() - 1) * 3 or 3 end
    mh.io_stats{reset = true}
    local parts = {}
    for batch in set:loader{mesh = mesh, cut = {[dim] = {"domain", sizes}}, batch = 4}:batches() do
      parts[#parts + 1] = full(batch.inputs)
    end
    testing.assert_equal(mh.cat(parts, 0), whole)
    local mine = mh.tensor({mh.io_stats().stored}, {dtype = "int64"})
    local all = mh.from_local(mine, mesh, {mh.Shard(0)}):full_tensor():sum():item()
    local ahead = 3 * 4 * 24 * 20 * 4  -- batches of the next epoch
    assert(all <= 1.5 * (whole:numel() * 4 + ahead), ("%s: %d bytes read of %d"):format(dim, all, whole:numel() * 4))
  end
  files.remove{path}
end

function tests.test_X21_mistakes_of_own_fields()
  with_file(function(data, _, path)
    local function add(options) return function() data:add_field("own", options) end end
    refused(add{}, "add_field: 'own' is made of nothing")
    refused(add{values = mh.ones{7, 5}, from = "t2m"}, "add_field: 'own' is both a tensor and a function")
    refused(add{from = {"t2n"}, make = function() end}, "add_field: no field 't2n'; did you mean 't2m'?")
    refused(add{from = {"t2m"}}, "add_field: 'own' is made of {'t2m'} by nil")
    refused(add{values = 3}, "add_field: the values of 'own' are 3")
    refused(add{values = mh.ones{9, 7, 5}}, "add_field: which dims has 'own'?")
    refused(add{values = mh.ones{9, 7, 6}, dims = {"time", "latitude", "longitude"}},
        "add_field: 'own' has 6 along 'longitude', which has 5")
    refused(add{values = mh.ones{9, 7}, dims = {"time", "latitude"}}, "add_field: 'own' lacks the dim 'longitude'")
    refused(add{values = mh.ones{7, 5}:to("complex64")}, "add_field: the values of 'own' are complex")
    refused(function() data:add_field("t2m", {values = mh.ones{7, 5}}) end, "add_field: there is a field 't2m' already")
    if mh.world_size() > 1 then
      local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
      refused(add{values = mh.distribute_tensor(mh.ones{7, 5}, mesh, {mh.Shard(0)})},
          "add_field: the values of 'own' are a ShardTensor")
      local differs = testing.assert_error(add{values = mh.full({7, 5}, mh.rank())}, "values of 'own'")
      assert(differs:find("add_field", 1, true), differs)
    end
    local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
    local function first(options) return function() data:windows(options.windows):loader{mesh = mesh,
        cut = {latitude = "domain"}, batch = options.batch, transform = options.transform}:batches()() end end
    local function made(name, make, text)
      data:add_field(name, {from = "t2m", make = make})
      refused(first{windows = {inputs = {name}}}, text)
      refused(function() data:windows{inputs = {name}}:statistics() end, text)
    end
    made("nothing", function() end, "add_field: the function of 'nothing' gave nil")
    made("smaller", function(t) return t:narrow(2, 0, 3) end,
        "add_field: the function of 'smaller' gave shape [1, 1, 3, 5]")
    made("two", function(t) return mh.cat({t, t}, 1) end, "channels = 2 of add_field")
    data:add_field("plain", {from = "t2m", make = function() return mh.ones{1, 1, 7, 5} end})
    refused(first{windows = {inputs = {"plain"}}}, "add_field: the function of 'plain' gave a plain tensor")
    data:add_field("log", {from = "t2m", make = function(t) return (t - 1e6):log() end})
    refused(first{windows = {inputs = {"log"}}}, "loader: the function of 'log' made NaN")
    refused(function() data:windows{inputs = {"log"}}:statistics{cache = path .. ".json"} end,
        "a cache does not know what the function of 'log' does")
    refused(first{windows = {inputs = {"t2m"}}, transform = 3}, "loader: transform is 3")
    refused(first{windows = {inputs = {"t2m"}}, transform = function() end}, "loader: transform gave nil")
    refused(first{windows = {inputs = {"t2m"}}, batch = 2, transform = function(batch) return {
        inputs = batch.inputs:sum{0}} end}, "loader: transform gave batch.inputs of shape [1, 7, 5]")
    refused(first{windows = {inputs = {"t2m"}}, transform = function(batch) return {
        inputs = batch.inputs:full_tensor()} end}, "loader: transform gave a plain tensor as batch.inputs")
    refused(function() data.fields.plain:select(0) end, "Field:select: 'plain' is in no file")
    refused(function() mh.data.from_tensors(3) end, "data.from_tensors: the tensors are 3")
    refused(function() mh.data.from_tensors{u = 3} end, "data.from_tensors: the values of 'u' are 3")
    refused(function() mh.data.from_tensors({u = mh.ones{4, 3, 3}, v = mh.ones{5, 3, 3}},
        {dims = {"time", "y", "x"}}) end, "data.from_tensors: 'v' does not fit")
    refused(function() mh.data.from_tensors({u = mh.ones{4, 3}}, {dims = {"time", "x"}, times = {0, 1}}) end,
        "'time' has 4 steps and 2 times")
  end)
end

function tests.test_X21_tensors_that_change_are_an_error()
  local u, mask = mh.zeros{6, 4, 3}, mh.ones{4, 3}
  local data = mh.data.from_tensors({u = u}, {dims = {"time", "y", "x"}})
  data:add_field("mask", {values = mask})
  local set = data:windows{inputs = {"u"}, static = {"mask"}}
  local loader = set:loader{batch = 1, prefetch = 1}
  loader:batches()()
  mask:mul_(2)
  refused(function() for _ = 1, 6 do loader:batches()() end end,
      'the tensor "mask" has changed since it became a field')
  refused(function() set:statistics() end, 'the tensor "mask" has changed since it became a field')
  u["0"] = 1
  refused(function() data.fields.u:read(0) end, 'the tensor "u" has changed since it became a field')
end

function tests.test_X20_kept_statistics_know_tensors_and_versions()
  local cache = files.path("own_stats.json")
  local function statistics(scale, version)
    local data = mh.data.from_tensors({u = mh.arange(24, {dtype = "float32"}):reshape{4, 3, 2} * scale},
        {dims = {"time", "y", "x"}})
    data:add_field("twice", {from = "u", make = function(u) return u * 2 end, version = version})
    return data:windows{inputs = {"u", "twice"}}:statistics{cache = cache}
  end
  local first = statistics(1, "a")
  testing.assert_equal(statistics(1, "a").fields.twice.mean, first.fields.twice.mean)
  refused(function() statistics(2, "a") end, "holds those of another set")
  refused(function() statistics(1, "b") end, "holds those of another set")
  files.remove{cache}
end

return tests
