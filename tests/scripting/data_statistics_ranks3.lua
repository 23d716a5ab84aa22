-- SPDX-License-Identifier: Apache-2.0
-- Statistics of a set: those of the plain tensor, the same bits on any number of ranks, saved and loaded. The same file
-- runs on 4 ranks, and with processes.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"

local tests = {}

local function with_cf(run)
  local paths = {files.cf("s_a.nc", 0, 21, {missing = true, compression = 1, chunks = {8, 4, 5}}),
      files.cf("s_b.nc", 21, 14, {scale = 0.02})}
  run(mh.data.open(paths))
  files.remove(paths)
end

local function expected(values, weights)
  local x = values:double()
  local there = x:isnan():logical_not()
  local w = (weights or mh.ones_like(x)):expand_as(x):masked_select(there)
  local v = x:masked_select(there)
  local mean = ((v * w):sum() / w:sum()):item()
  return {mean = mean, std = ((v - mean):square() * w):sum():div(w:sum()):sqrt():item(), min = v:min():item(),
      max = v:max():item(), count = #v:tolist()}
end

local function check(found, values, weights)
  for i = 0, #found.mean - 1 do
    local of = expected(values[":, " .. i .. ":" .. i + 1], weights)
    for _, name in ipairs{"mean", "std", "min", "max"} do
      testing.assert_close(mh.tensor(found[name][i + 1], {dtype = "float64"}), mh.tensor(of[name], {dtype = "float64"}))
    end
    testing.assert_equal(found.count[i + 1], of.count * 1.0)
    testing.assert_close(mh.tensor(found.rms[i + 1], {dtype = "float64"}),
        mh.tensor(math.sqrt(of.mean ^ 2 + of.std ^ 2), {dtype = "float64"}))
  end
end

local function t2m()
  local first = files.t2m_float64(0, 21)
  first["2, 3, 4"] = 0 / 0
  return mh.cat({first, files.t2m_float64(21, 14, 0.02)}, 0):unsqueeze(1)
end

function tests.test_X20_statistics_are_those_of_the_plain_tensor()
  with_cf(function(data)
    local set = data:windows{inputs = {fields = {"t2m", "z"}, steps = {-1, 0}},
        targets = {fields = {"t2m"}, steps = {1}}, static = {"orography"}}

    local found = set:statistics()

    check(found.fields.t2m, t2m())
    check(found.fields.z, mh.cat({files.z(0, 21), files.z(21, 14)}, 0)["0:34"])
    check(found.fields.orography, files.values(0, 1, 7, 5, 5):float():unsqueeze(0))
    assert(tostring(found):find("t2m  mean", 1, true))

    local cosine = mh.deg2rad(mh.linspace(60, -60, 7):double()):cos():reshape{1, 1, 7, 1}
    check(set:statistics{weights = "latitude"}.fields.t2m, t2m(), cosine)
    check(set:statistics{weights = cosine:reshape{7, 1}:expand{7, 5}}.fields.t2m, t2m(), cosine)
  end)
end

function tests.test_X20_a_part_knows_only_its_own_steps()
  with_cf(function(data)
    local set = data:windows{inputs = {fields = {"t2m"}, steps = {-1, 0}}, targets = {fields = {"z"}, steps = {1}}}
    local train, valid = set:split{train = 0.6, valid = 0.4}

    local found = train:statistics()

    check(found.fields.t2m, t2m()["0:" .. #train + 1])  -- windows begin one step before their anchors
    refused(function() valid:statistics() end, "statistics: of the part 'valid', which training must not know")
    assert(valid:statistics{of_any_split = true}.fields.t2m.mean[1] ~= found.fields.t2m.mean[1])
  end)
end

function tests.test_X20_of_what_targets_change()
  with_cf(function(data)
    local set = data:windows{inputs = {fields = {"t2m", "z"}, steps = {-1, 0}},
        targets = {fields = {"z"}, steps = {1, 3}}}
    local z = mh.cat({files.z(0, 21), files.z(21, 14)}, 0)

    local found = set:statistics{differences = true}

    testing.assert_equal(rawget(found.fields.t2m, "differences"), nil)
    for i, step in ipairs{1, 3} do
      local of = found.fields.z.differences[i]
      testing.assert_equal(of.step, step)
      check(of, z[("%d:%d"):format(1 + step, 32 + step)]:double() - z["1:32"])  -- anchors 1 to 31
    end
  end)
end

-- Every rank reads all steps here, in the groups of 16 whose order the sums have; together they must find these very
-- bits.
function tests.test_X20_the_same_bits_as_one_rank_alone()
  with_cf(function(data)
    local together = data:windows{inputs = {fields = {"t2m", "z"}, steps = {-1, 0}}}:statistics{weights = "latitude"}
    local cosine = mh.deg2rad(mh.tensor(data.coordinates.latitude, {dtype = "float64"})):cos():reshape{7, 1}:expand{7,
        5}:contiguous()
    for _, name in ipairs{"t2m", "z"} do
      local sources, groups = require("moonhalo.data.sources").new(data, {name}), {}
      local reader = sources:reader({0, 0}, {7, 5}, "float64", 1 << 20)
      for first = 0, 34, 16 do
        local frames = {}
        for step = first, math.min(first + 15, 34) do frames[#frames + 1] = {0, step} end
        groups[#groups + 1] = reader:moments(sources:places(name, frames), data.fields[name].channels, cosine)
      end
      local alone = mh._data.merge_moments(mh.stack(groups, 0))
      testing.assert_equal(together.fields[name].mean, alone[":, 2"]:tolist())
      testing.assert_equal(together.fields[name].std, (alone[":, 3"] / alone[":, 1"]):sqrt():tolist())
    end
  end)
end

-- Numbers that float32 does not hold: in a file of float64 after one of float32, packed, as integers, in a tensor.
function tests.test_X20_float64_keeps_its_digits()
  local function large(first, steps)
    return mh.arange(first, first + steps * 4):double():view{steps, 4} / 8 + 2.0 ^ 30
  end
  local function file(name, first, steps, values)
    return files.make(name, function(out)
      out:write("time", mh.arange(first, first + steps, {dtype = "float64"}), {dims = {"time"},
          attrs = {units = "days since 2000-01-01"}})
      for field, one in pairs(values) do out:write(field, one, {dims = {"time", "x"}}) end
    end)
  end
  local odd = mh.arange(8):view{2, 4} * 2 + 2 ^ 26 + 1
  local paths = {file("s_narrow.nc", 0, 3, {u = mh.zeros{3, 4} + 2.0 ^ 30, n = mh.zeros({3, 4}, {dtype = "int32"})}),
      file("s_wide.nc", 3, 2, {u = large(0, 2), n = odd:to("int32")})}
  local found = mh.data.open(paths):windows{inputs = {fields = {"u", "n"}, steps = {0}},
      targets = {fields = {"u"}, steps = {1}}}:statistics{differences = true}.fields
  local u = mh.cat({mh.zeros({3, 4}, {dtype = "float64"}) + 2.0 ^ 30, large(0, 2)}, 0):unsqueeze(1)
  check(found.u, u)
  check(found.n, mh.cat({mh.zeros({3, 4}, {dtype = "int64"}), odd}, 0):narrow(0, 0, 4):unsqueeze(1))
  testing.assert_equal({found.n.max[1], found.u.max[1]}, {odd[0]:max():item() * 1.0, 2.0 ^ 30 + 7 / 8})
  check(found.u.differences[1], u["1:5"] - u["0:4"])
  files.remove(paths)
  local tensor = large(0, 5)
  check(mh.data.from_tensors({u = tensor}, {dims = {"time", "x"}}):windows{inputs = {"u"}}:statistics().fields.u,
      tensor:unsqueeze(1))
end

function tests.test_X20_trajectories_of_files()
  local paths = {files.well("s_0.hdf5", 3, 5, 0), files.well("s_1.hdf5", 2, 5, 3)}
  local set = mh.data.open(paths):windows{inputs = {fields = {"velocity"}, steps = {0}},
      targets = {fields = {"velocity"}, steps = {1}}, static = {"mask"}}
  local runs = {}
  for k = 0, 4 do
    runs[k + 1] = mh.stack({files.values(k * 100, 5, 6, 4, 1), files.values(k * 100, 5, 6, 4, 2)}, 1):float()
  end
  check(set:statistics().fields.velocity, mh.cat(runs, 0))
  files.remove(paths)
end

-- Steps before and after a gap count in the same way.
function tests.test_X20_stretches_between_gaps()
  local paths = {files.cf("s_before.nc", 0, 5), files.cf("s_after.nc", 9, 4)}
  local found = mh.data.open(paths):windows{inputs = {"t2m"}}:statistics()
  check(found.fields.t2m, mh.cat({files.t2m_float64(0, 5), files.t2m_float64(9, 4)}, 0):unsqueeze(1))
  files.remove(paths)
end

-- As many samples from the same step on, and yet others: those that are taken are part of what is kept.
function tests.test_X20_kept_ones_know_how_far_samples_are_apart()
  with_cf(function(data)
    local path = files.path("apart") .. "/of/set.json"
    local function set(every) return data:windows{inputs = {"t2m"}, every = every} end
    testing.assert_equal({#set(12), #set(13)}, {3, 3})
    set(12):statistics{cache = path}
    refused(function() set(13):statistics{cache = path} end, "holds those of another set: its samples differ")
  end)
end

function tests.test_X20_saved_and_loaded()
  with_cf(function(data)
    local set = data:windows{inputs = {"t2m"}}
    local path = files.path("statistics") .. "/of/set.json"
    local found = set:statistics{cache = path}

    testing.assert_equal(mh.data.load_statistics(path).fields, found.fields)
    testing.assert_equal(set:statistics{cache = path}.fields, found.fields)
    refused(function() set:statistics{cache = path, weights = "latitude"} end,
        "holds those of another set: its weights differ")
    refused(function() set:statistics{cache = path, differences = true} end,
        "holds those of another set: its kinds (differences or not) differ")
    refused(function() data:windows{inputs = {"z"}}:statistics{cache = path} end,
        "holds those of another set: its samples differ")
    -- A file of a version that read fields as float32.
    local old = mh.json.load(path)
    old.of.read_as = nil
    mh._files.on_first_rank(function() mh._files.write("test", path, mh.json.encode(old)) end)
    refused(function() set:statistics{cache = path} end, "statistics: '" .. path .. "' was computed from float32")
    testing.assert_equal(mh.data.load_statistics(path).fields, found.fields)
    mh._files.on_first_rank(function() mh._files.write("test", path, "{\"fields\": {\"t2m\": {\"mean\": [1]}}}") end)
    refused(function() mh.data.load_statistics(path) end, "holds no statistics\n  have  no std of 't2m'")
    files.remove{path}
  end)
end

--- Other weights of the same shape, and files that were written again under their names, are other statistics.
function tests.test_X20_kept_statistics_are_of_these_weights_and_files()
  local cache = files.path("kept_statistics.json")
  local path = files.cf("s_kept.nc", 0, 12, {without_z = true})
  local function set() return mh.data.open(path):windows{inputs = {"t2m"}} end
  local ones, rows = mh.ones{7, 5}, mh.arange(7, {dtype = "float32"}):reshape{7, 1}:expand{7, 5}
  local first = set():statistics{cache = cache, weights = ones}
  testing.assert_equal(set():statistics{cache = cache, weights = ones}.fields, first.fields)
  refused(function() set():statistics{cache = cache, weights = rows} end,
      "holds those of another set: its weights differ")
  files.cf("s_kept.nc", 0, 12, {without_z = true, scale = 0.02})  -- of the same size, names, shapes and times
  refused(function() set():statistics{cache = cache, weights = ones} end,
      "holds those of another set: its files differ")
  testing.assert_equal(mh.data.load_statistics(cache).fields, first.fields)
  files.remove{cache}
  check(set():statistics{cache = cache, weights = rows}.fields.t2m, files.t2m_float64(0, 12, 0.02):unsqueeze(1),
      rows:reshape{1, 1, 7, 5}:double())
  files.remove{cache, path}
end

function tests.test_X20_statistics_that_do_not_fit()
  with_cf(function(data)
    local set = data:windows{inputs = {"t2m"}}
    refused(function() set:statistics{weights = "latitud"} end,
        "statistics: no latitudes 'latitud'; did you mean 'latitude'?")
    refused(function() set:statistics{weights = "longitude"} end,
        "statistics: no latitudes 'longitude'; did you mean 'latitude'?\n" ..
            "  have  space (latitude, longitude), coordinates from -90 to 90 of (latitude)")
    refused(function() set:statistics{weights = mh.ones{3, 5}} end,
        "statistics: weights of another shape than space\n  have  [3, 5], space [7, 5]")
    refused(function() set:statistics{weights = mh.full({7, 5}, -1)} end,
        "statistics: weights below 0, or missing\n  have  -1")
    refused(function() set:statistics{weights = mh.full({7, 5}, 0 / 0)} end, "statistics: weights below 0, or missing")
    refused(function() set:statistics{weights = mh.zeros{7, 5}} end,
        "statistics: 't2m' has no value in channel 0\n  have  weights of 0 only")
    if mh.world_size() > 1 then
      refused(function() set:statistics{weights = mh.full({7, 5}, mh.rank() + 1)} end,
          "statistics: ranks 0 and 1 want different samples or weights")
    end
    testing.assert_error(function() set:statistics{wieghts = "latitude"} end,
        "unknown option 'wieghts'; did you mean 'weights'?")
  end)
  local path = files.make("s_nan.nc", function(out)
    out:write("time", mh.arange(3, {dtype = "float64"}), {dims = {"time"}, attrs = {units = "days since 2000-01-01"}})
    out:write("u", mh.full({3, 4}, 0 / 0), {dims = {"time", "x"}})
  end)
  refused(function() mh.data.open(path):windows{inputs = {"u"}}:statistics() end,
      "statistics: 'u' has no value in channel 0")
  files.remove{path}
end

--- A file that is cut after it was opened: one rank finds the damage, all get the error.
function tests.test_X20_a_damaged_file_is_one_error_on_all_ranks()
  local path = files.cf("s_cut.nc", 0, 40, {compression = 1, chunks = {1, 7, 5}})
  local set = mh.data.open(path):windows{inputs = {"t2m"}}
  mh._files.on_first_rank(function()
    local whole = io.open(path, "rb"):read("a")
    local cut = io.open(path, "wb")
    assert(cut:write(whole:sub(1, #whole // 2)))
    assert(cut:close())
  end)
  local message = testing.assert_error(function() set:statistics() end, path)
  mh._data.check_same("damaged", "messages", message)
  files.remove{path}
end

--- Normalized values are given back in the units of the files: parts of batches, cut or plain, by kept statistics too.
function tests.test_X20_denormalized_by_part()
  local paths, cache = {files.cf("n_a.nc", 0, 9), files.cf("n_b.nc", 9, 5, {scale = 0.02})},
      files.path("denormalize.json")
  local function full(part) return part:is_shard_tensor() and part:full_tensor() or part end
  do
    local set = mh.data.open(paths):windows{inputs = {fields = {"t2m", "z"}, steps = {-1, 0}},
      targets = {fields = {"z"}, steps = {2}}, static = {"orography"}}
    files.remove{cache}
    local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
    for _, stats in ipairs{set:statistics{cache = cache}, set:statistics{cache = cache},
        mh.data.load_statistics(cache)} do
      local options = {mesh = mesh, cut = {latitude = "domain"}, batch = 7, dtype = "float64"}
      local raw = set:loader(options):batches()
      options.normalize = stats
      for batch in set:loader(options):batches() do
        local as_stored = raw()
        for _, part in ipairs{"inputs", "targets", "static"} do
          local wanted = full(as_stored[part])
          assert(full(batch[part]):sub(wanted):abs():max():item() > 0.1)
          local back = stats:denormalize(batch[part], part)
          assert(back:is_shard_tensor())
          assert(mh.allclose(full(back), wanted, {rtol = 1e-12, atol = 1e-9}), part)
          assert(mh.allclose(stats:denormalize(full(batch[part]), part), wanted, {rtol = 1e-12, atol = 1e-9}), part)
          assert(mh.allclose(full(stats:normalize(back, part)), full(batch[part]), {rtol = 1e-9, atol = 1e-9}), part)
        end
      end
    end
    local stats = set:statistics()
    local x = mh.zeros{1, 1, 2, 2}:requires_grad_(true)
    stats:denormalize(x, {"t2m"}):sum():backward()
    testing.assert_equal(x.grad["0, 0, 0, 0"]:item(), mh.tensor(stats.fields.t2m.std[1], {dtype = "float32"}):item())
    local function bad(text, ...)
      local arguments = table.pack(...)
      testing.assert_error(function() stats:denormalize(table.unpack(arguments)) end, "Statistics:denormalize: "
          .. text)
    end
    bad("no part 'target'\n  have  inputs, static, targets\n  fix   ", x, "target")
    bad("no field 't2n'; did you mean 't2m'?", x, {"t2n"})
    bad("3 channels, the tensor has 1\n  have  shape [1, 1, 2, 2]", x, {"t2m", "z"})
    bad("expected a tensor [batch, channels, space...]\n  have  3\n", 3, "targets")
    files.remove{cache, paths[1], paths[2]}
  end
end

return tests
