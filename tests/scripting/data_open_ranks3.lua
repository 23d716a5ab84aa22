-- SPDX-License-Identifier: Apache-2.0
-- mh.data.open: layouts, fields over several files, times and gaps, and errors that are the same on all ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"
local calendar = require "moonhalo.data.calendar"

local tests = {}

function tests.test_X18_files_of_cf_follow_each_other_in_time()
  local paths = {files.cf("b.nc", 6, 4, {scale = 0.02, time_units = "hours since 2000-12-30 00:00:00"}),
      files.cf("a.nc", 0, 6)}

  local data = mh.data.open(paths)

  testing.assert_equal({data.layout, data.axis, data.space, data.steps, #data.gaps},
      {"cf", "time", {"latitude", "longitude"}, 10, 0})
  testing.assert_equal(data:time_text(data.times[1]), "2000-12-30 00:00:00")
  testing.assert_equal(data:time_text(data.times[10]), "2001-01-01 06:00:00")
  testing.assert_equal({data.fields.t2m.units, data.fields.t2m.channels, data.fields.z.channels}, {"K", 1, 2})
  testing.assert_equal(data.fields.orography.varies, false)
  testing.assert_equal(tostring(data.fields.z), "z [time, level 2, latitude 7, longitude 5]")
  testing.assert_equal(data.fields.t2m:read(5), files.t2m(0, 6)["5:6"])
  testing.assert_equal(data.fields.t2m:read(6), files.t2m(6, 4, 0.02)["0:1"])  -- packed by that file's own scale
  testing.assert_equal(data.fields.z:read(8), files.z(6, 4)["2"])
  testing.assert_equal(data.fields.t2m:select(7).shape, {7, 5})
  refused(function() data.fields.t2m:read(10) end,
      "Field:read: step 10 of trajectory 0\n  have  1 trajectories, 10 steps")
  testing.assert_equal(data.coordinates.longitude, {0, 30, 60, 90, 120})
  assert(tostring(data):find("10 steps along 'time', 2000-12-30 00:00:00 to 2001-01-01 06:00:00, 0 gaps", 1, true),
      tostring(data))
  files.remove(paths)
end

function tests.test_X18_patterns_folders_and_gaps()
  local paths = {files.cf("year_1.nc", 0, 4), files.cf("year_2.nc", 6, 4)}

  local data = mh.data.open(files.path("year_*.nc"))

  testing.assert_equal(data.files, paths)
  testing.assert_equal(#data.gaps, 1)
  testing.assert_equal({data.gaps[1].step, data:time_text(data.gaps[1].before)}, {4, "2000-12-30 18:00:00"})
  testing.assert_equal(data.runs[1].stretches, {{0, 4}, {4, 4}})
  files.remove(paths)
end

function tests.test_X18_the_well()
  local paths = {files.well("well_0.hdf5", 2, 5, 0), files.well("well_1.hdf5", 3, 5, 2)}

  local data = mh.data.open(paths)

  testing.assert_equal({data.layout, #data.runs, data.steps, data.space, data.boundary.y},
      {"well", 5, 25, {"x", "y"}, "wall"})
  testing.assert_equal({data.fields.velocity.channels, data.fields.mask.varies}, {2, false})
  testing.assert_equal(data.fields.velocity:read(2, {trajectory = 3}),
    mh.stack({files.values(300, 5, 6, 4, 1)["2"], files.values(300, 5, 6, 4, 2)["2"]}, 0):float())
  testing.assert_equal(data.fields.mask:read(), files.values(0, 1, 6, 4, 3):float())
  files.remove(paths)
end

function tests.test_X18_scenarios_are_runs_of_their_own()
  local paths = {files.cf("run_a.nc", 0, 5), files.cf("run_b.nc", 0, 5, {scale = 0.02}), files.cf("run_c.nc", 2, 4)}

  local data = mh.data.open(paths, {join = "trajectories"})

  testing.assert_equal({#data.runs, data.steps, #data.gaps}, {3, 14, 0})
  local t2m = data.fields.t2m
  testing.assert_equal(t2m:read(4, {trajectory = 1}), files.t2m(0, 5, 0.02)["4:5"])
  testing.assert_error(function() t2m:read(4, {trajectry = 1}) end,
      "Field:read: unknown option 'trajectry'; did you mean 'trajectory'?")
  testing.assert_error(function() t2m:select(4, {dtype = "float64"}) end, "Field:select: unknown option 'dtype'")
  local set = data:windows{inputs = {fields = {"t2m"}, steps = {0, 1}}, static = {"orography"}}
  local train, valid = set:split{train = 2 / 3, valid = 1 / 3}
  testing.assert_equal({#set, #train, #valid, valid:time(0)}, {11, 8, 3, "2000-12-30 12:00:00"})
  for batch in set:loader{batch = 11}:batches() do
    testing.assert_equal(batch.inputs["4:8, 1"], files.t2m(0, 5, 0.02)["1:5"])
    testing.assert_equal(batch.static["10"], files.values(0, 1, 7, 5, 5):float())
  end
  testing.assert_error(function() mh.data.open(paths, {join = "runs"}) end, "data.open: unknown join 'runs'")
  files.remove(paths)
end

--- Samples by their times, and the steps of a set's loader on all ranks.
local function times_of(set)
  local times = {}
  for i = 0, #set - 1 do times[i + 1] = set:time(i) end
  return times
end

function tests.test_X18_trajectories_may_differ()
  local function cf(name, first, steps, options) return files.cf("md_" .. name .. ".nc", first, steps, options) end
  local paths = {cf("a", 0, 5, {hours = 24, calendar = "standard"}), cf("b", 58, 4, {hours = 24, calendar = "360_day"}),
    cf("c", 0, 6, {units = "degC"}), cf("d", 0, 4, {south = -59}), cf("e", 0, 4, {time_units = "1"})}
  local a, b, c, d, e = table.unpack(paths)
  local function open(list, may_differ) return mh.data.open(list, {join = "trajectories", may_differ = may_differ}) end

  refused(function() open{a, b} end, "differ in the calendar\n  have  standard")
  local both = open({a, b}, "calendar")  -- 2001-02-29 and 2001-02-30, which the standard calendar lacks
  local set = both:windows{inputs = {"t2m"}}
  testing.assert_equal(times_of(set), {"2000-12-30 00:00:00", "2000-12-31 00:00:00", "2001-01-01 00:00:00",
    "2001-01-02 00:00:00", "2001-01-03 00:00:00",
    "2001-02-28 00:00:00", "2001-02-29 00:00:00", "2001-02-30 00:00:00", "2001-03-01 00:00:00"})
  assert(tostring(both):find("  calendars 360_day, standard, each of its trajectories", 1, true), tostring(both))
  local early, late = set:split{train = {"2000-12", "2001-01"}, valid = {"2001-02", "2001-02"}}
  testing.assert_equal({#early, #late, late:time(2)}, {5, 3, "2001-02-30 00:00:00"})
  refused(function() set:split{train = {"2000", "2000"}, valid = {"2001-02-30", "2001-03"}} end,
      "'valid' has the border '2001-02-30'\n  have  times of calendar standard")

  refused(function() open{a, c} end, "the units of 't2m'")
  refused(function() open{a, d} end, "coordinates of 'latitude', element 1")
  testing.assert_equal(open({a, d}, {"coordinates", "units"}).coordinates.latitude[7], -60)
  testing.assert_equal(open({c, a}, "units").fields.t2m.units, "degC")

  -- Days beside six hours: each has a step of its own; without the option those of the shorter run count as gaps.
  local one = {inputs = {fields = {"t2m"}, steps = {0, 1}}}
  testing.assert_equal({#open({a, c}, "units").gaps, #open({a, c}, "units"):windows(one)}, {4, 5})
  local own = open({a, c}, {"units", "times"})
  testing.assert_equal({#own.gaps, #own:windows(one)}, {0, 9})
  refused(function() open{a, e} end, 'give may_differ = {"times"}, which takes what each trajectory says')
  local mixed = open({a, e}, "times"):windows(one)
  testing.assert_equal({#mixed, mixed:time(3), mixed:time(4)}, {7, "2001-01-02 00:00:00", "0.0"})
  refused(function() mixed:split{train = {"2000", "2001"}} end,
      "'train' has the border '2000'\n  have  times of plain numbers")
  refused(function() mh.data.open({a, b}, {may_differ = "times"}) end, 'may_differ = {"times"} is for trajectories')
  for batch in mixed:loader{batch = 7}:batches() do
    testing.assert_equal(batch.times[5], "0.0")
    testing.assert_equal(batch.inputs["4:7, 0"], files.t2m(0, 4)["0:3"])
  end
  files.remove(paths)
end

function tests.test_X18_a_static_file_beside_trajectories()
  local mask = files.make("md_mask.nc", function(out)
    out:write("latitude", mh.linspace(60, -60, 7), {dims = {"latitude"}, attrs = {units = "degrees_north"}})
    out:write("longitude", mh.arange(5, {dtype = "float32"}) * 30,
        {dims = {"longitude"}, attrs = {units = "degrees_east"}})
    out:write("land", mh.arange(35, {dtype = "float32"}):reshape{7, 5}, {dims = {"latitude", "longitude"}})
  end)
  local paths = {mask, files.cf("md_x.nc", 0, 3), files.cf("md_y.nc", 0, 3)}
  local set = mh.data.open(paths, {join = "trajectories"}):windows{inputs = {"t2m"}, static = {"land"}}
  testing.assert_equal(#set, 6)
  for batch in set:loader{batch = 6}:batches() do
    testing.assert_equal(batch.static["5, 0"], mh.arange(35, {dtype = "float32"}):reshape{7, 5})
  end
  files.remove(paths)
end

function tests.test_X18_trajectories_of_the_well_with_times_of_their_own()
  local path = files.well("md_well.hdf5", 2, 5, 0)
  mh._files.on_first_rank(function()
    local out <close> = mh.h5.open(path, "a")
    out:write("dimensions/time", mh.tensor({{0, 1, 2, 3, 4}, {0, 0.5, 1, 1.5, 2}}), {replace = true})
  end)
  local flow = files.flow("md_flow.h5", 2, 4)
  mh._files.on_first_rank(function()
    local out <close> = mh.h5.open(flow, "a")
    out:write("t-coordinate", mh.tensor({{0, 1, 2, 3, 4}, {0, 0.5, 1, 1.5, 2}}), {replace = true})
  end)
  refused(function() mh.data.open(flow) end, "t-coordinate of shape [2, 4]")
  testing.assert_equal(mh.data.open(flow, {may_differ = {"times"}}).runs[2].times, {0, 0.5, 1, 1.5})
  files.remove{flow}
  refused(function() mh.data.open(path) end, 'or give may_differ = {"times"}')
  local set = mh.data.open(path, {may_differ = {"times"}}):windows{inputs = {fields = {"tracer"}, steps = {0, 1}}}
  testing.assert_equal(times_of(set), {"0.0", "1.0", "2.0", "3.0", "0.0", "0.5", "1.0", "1.5"})
  files.remove{path}
end

function tests.test_X18_pdebench()
  local seeds, flow = files.seeds("seeds.h5", 3, 4), files.flow("flow.h5", 2, 4)

  local data, other = mh.data.open(seeds), mh.data.open(flow)

  testing.assert_equal({data.layout, #data.runs, data.steps, data.fields.data.channels}, {"pdebench", 3, 12, 2})
  testing.assert_equal(data.fields.data:read(1, {trajectory = 2})["1"], files.values(100, 4, 6, 4, 1)["1"]:float())
  testing.assert_equal({other.layout, #other.runs, #other.runs[1].times}, {"pdebench", 2, 4})
  testing.assert_equal(other.fields.Vy:read(3, {trajectory = 1})["0"], files.values(100, 4, 6, 4, 4)["3"]:float())
  files.remove{seeds, flow}
end

function tests.test_X18_plain_arrays_and_a_layout_of_ones_own()
  local x = mh.arange(4 * 3 * 2 * 5, {dtype = "float32"}):reshape{4, 3, 2, 5}
  local path = files.make("plain.h5", function(out)
    out:write("x", x)
    out:write("y", x["..., 0"]:sum{dim = {1}}:unsqueeze(2))
    out:write("weights", mh.zeros{9})
  end)

  local data = mh.data.open(path)
  testing.assert_equal({data.layout, data.axis, data.steps, data.space}, {"plain", "sample", 4, {"height", "width"}})
  testing.assert_equal({data.fields.x.channels, rawget(data.fields, "weights")}, {3})
  testing.assert_equal(data.fields.x:read(2), x["2"])

  mh.data.layouts.add{name = "mine", matches = function(file) return file:has("weights") end, describe = function(file)
    return {axis = "n", space = {"a", "b"}, steps = 4, trajectories = 1, join = "axis", coordinates = {},
      fields = {u = {datasets = {"x"}, dims = {"n", "a", "b", "c"}, shape = file["x"].shape}}}
  end}
  local own = mh.data.open(path)
  testing.assert_equal({own.layout, own.fields.u.channels}, {"mine", 5})
  testing.assert_equal(own.fields.u:read(1), x["1"]:permute{2, 0, 1}:contiguous())
  testing.assert_equal(mh.data.open(path, {layout = "plain"}).layout, "plain")
  files.remove{path}
end

--- [trajectory, time, y, x] without names: what is what is said by dims, or axis; groups of one kind are trajectories
--- too.
function tests.test_X18_plain_trajectories()
  local x = mh.arange(3 * 6 * 4 * 5, {dtype = "float32"}):reshape{3, 6, 4, 5}
  local path = files.make("turb.h5", function(out)
    out:write("vorticity", x)
    out:write("mask", mh.ones{4, 5})
  end)
  local groups = files.make("turb_groups.h5", function(out)
    for i, number in ipairs{0, 2, 10} do
      out:write(("run_%d/vorticity"):format(number), x[tostring(i - 1)]:contiguous())
    end
  end)

  local guess = mh.data.open(path)
  testing.assert_equal({#guess.runs, guess.steps, guess.fields.vorticity.channels}, {1, 3, 6})
  assert(tostring(guess):find("vorticity [sample, channel 6, height 4, width 5]", 1, true), tostring(guess))
  assert(tostring(guess):find("names of dims are a guess: dims = ", 1, true), tostring(guess))
  local by_name = {vorticity = {"sample", "time", "y", "x"}, mask = {"y", "x"}}
  for _, data in ipairs{mh.data.open(path, {dims = {"sample", "time", "y", "x"}}), mh.data.open(path, {dims = by_name}),
      mh.data.open(path, {axis = "channel"}), mh.data.open(groups),
        mh.data.open(groups, {dims = {"time", "y", "x"}})} do
    testing.assert_equal({#data.runs, data.steps, data.fields.vorticity.channels}, {3, 18, 1})
    testing.assert_equal(data.fields.vorticity:read(4, {trajectory = 2}), x["2, 4:5"])
    local set = data:windows{inputs = {fields = {"vorticity"}, steps = {0}},
        targets = {fields = {"vorticity"}, steps = {1}}}
    testing.assert_equal(#set, 15)
    for batch in set:loader{batch = 15}:batches() do
      testing.assert_equal(batch.inputs, x[":, :5"]:reshape{15, 1, 4, 5})
      testing.assert_equal(batch.targets, x[":, 1:"]:reshape{15, 1, 4, 5})
    end
  end
  local with_mask = mh.data.open(path, {dims = by_name}):windows{inputs = {"vorticity"}, static = {"mask"}}
  for batch in with_mask:loader{batch = 18}:batches() do testing.assert_equal(batch.static, mh.ones{18, 1, 4, 5}) end
  assert(not tostring(mh.data.open(path, {dims = by_name})):find("guess", 1, true))
  testing.assert_equal(#mh.data.open(path, {dims = {"sample", "channel", "y", "x"}}).runs, 1)
  refused(function() mh.data.open(path, {dims = {"time", "y", "x"}}) end,
      "data.open: dims has 3 names, 'vorticity' in '" .. path .. "' has 4 dims\n  have  ")
  refused(function() mh.data.open(path, {dims = {"sample", 2}}) end,
      "data.open: dims is {'sample', 2}\n  have  layout nil\n  fix   give the names of all dims")
  refused(function() mh.data.open(path, {dims = {"sample", "time", "y", "x"}, layout = "cf"}) end,
      "data.open: dims is {'sample', 'time', 'y', 'x'}\n  have  layout 'cf'")
  refused(function() mh.data.open(path, {layout = "pdebench"}) end, "data.open: '" .. path
      .. "' is not a file of layout 'pdebench'\n  have  mask, vorticity")
  files.remove{path, groups}
end

local function date_text(units, name, value)
  return calendar.text(calendar.reader(units, name, "x")(value), calendar.name(name))
end

function tests.test_X18_calendars()
  testing.assert_equal(date_text("hours since 1900-01-01 00:00:00.0", "gregorian", 876576), "2000-01-01 00:00:00")
  testing.assert_equal(date_text("days since 1800-01-01", nil, 80353), "2020-01-01 00:00:00")
  testing.assert_equal(date_text("days since 2000-02-28", "noleap", 1), "2000-03-01 00:00:00")
  testing.assert_equal(date_text("days since 1999-02-28", "all_leap", 1), "1999-02-29 00:00:00")
  testing.assert_equal(date_text("days since 1859-12-01", "360_day", 60), "1860-02-01 00:00:00")
  testing.assert_equal(date_text("seconds since 1969-12-31T23:59:00Z", "standard", 59.6), "1970-01-01 00:00:00")
  -- The standard calendar is Julian before 1582-10-15: 1 January of year 1 is Julian day 1721423.5, that of 1970
  -- 2440587.5.
  testing.assert_equal(date_text("days since 0001-01-01", "standard", 719164), "1970-01-01 00:00:00")
  testing.assert_equal(date_text("days since 1-1-1 00:00:0.0", nil, 719164), "1970-01-01 00:00:00")
  testing.assert_equal(date_text("days since 0001-01-01", "proleptic_gregorian", 719162), "1970-01-01 00:00:00")
  testing.assert_equal(date_text("days since 1582-10-04", "gregorian", 1), "1582-10-15 00:00:00")
  testing.assert_equal(date_text("days since 1582-10-15", "gregorian", -1), "1582-10-04 00:00:00")
  testing.assert_equal(date_text("days since 1582-10-04", "proleptic_gregorian", 1), "1582-10-05 00:00:00")
  testing.assert_equal(date_text("days since 1500-02-28", "standard", 1), "1500-02-29 00:00:00")
  testing.assert_equal(date_text("days since 1850-01-01", "standard", -341972), "0913-09-13 00:00:00")
  testing.assert_equal(date_text("days since 1900-02-28", "julian", 1), "1900-02-29 00:00:00")
  for _, name in ipairs{"standard", "proleptic_gregorian", "julian"} do
    for day = -800000, 200000, 991 do
      testing.assert_equal(calendar.reader("days since " .. calendar.text(day * 86400, name), name, "x")(0),
          day * 86400)
    end
  end
  for day = -200000, 200000, 997 do
    local text = calendar.text(day * 86400, "standard")
    testing.assert_equal(calendar.reader("days since " .. text, nil, "x")(0), day * 86400)
  end
end

function tests.test_X18_dates_in_other_spellings()
  -- Years before Christ, zones and letters of any size mean what cftime makes of them.
  testing.assert_equal(date_text("days since -4713-01-01 12:00:00", "standard", 2440587.5), "1970-01-01 00:00:00")
  testing.assert_equal(date_text("days since -0050-01-01", "julian", 295000), "0758-09-01 00:00:00")
  testing.assert_equal(date_text("days since -0050-01-01", "proleptic_gregorian", 295000), "0757-09-07 00:00:00")
  testing.assert_equal(date_text("days since -0001-12-31", "standard", 1), "0001-01-01 00:00:00")
  testing.assert_equal(date_text("day since 2000-03-01 00:00 +01:00", nil, 0), "2000-02-29 23:00:00")
  testing.assert_equal(date_text("days since 1980-01-06 00:00:00 -5:30", nil, 0.5), "1980-01-06 17:30:00")
  testing.assert_equal(date_text("Days Since 2000-01-01T06:00:00+0530", nil, 1), "2000-01-02 00:30:00")
  testing.assert_equal(date_text("days since 2000/1/1 06:00", nil, 1), "2000-01-02 06:00:00")
  testing.assert_equal(date_text("days since 20000101T06", nil, 1), "2000-01-02 06:00:00")
  testing.assert_equal(date_text("days since 2000.01.01", nil, 1), "2000-01-02 00:00:00")
  testing.assert_equal(date_text("days since 0000-01-01", "proleptic_gregorian", 738000), "2020-07-29 00:00:00")
  testing.assert_equal(date_text("days since 0-1-1", "noleap", 738000), "2021-12-02 00:00:00")
  testing.assert_equal(date_text("months since 1960-01-01", "360_day", 1.5), "1960-02-16 00:00:00")
  testing.assert_equal(date_text("nanoseconds since 1970-01-01", nil, 3600000000000), "1970-01-01 01:00:00")
end

function tests.test_X18_what_is_no_date()
  for name, text in pairs{standard = "1582-10-10", noleap = "2000-02-29", ["360_day"] = "2000-01-31",
      proleptic_gregorian = "1900-02-29"} do
    testing.assert_equal(calendar.span(text, name), nil)
    testing.assert_error(function() calendar.reader("days since " .. text, name, "x") end,
        "x: no date in the units 'days since " .. text)
  end
  for _, text in ipairs{"2000-01-01 24:00:00", "20000230", "2000/02/30", "01/02/2000", "1.2.2000", "2000.01/01",
      "200001",  "2000-01-01 00:60", "2000-01-01 00:00:60", "2000-01-01 00:00:0.0.0", "2000-01-01 00:00 CET",
      "2000-01-01 00:00 01:00"} do
    testing.assert_error(function() calendar.reader("days since " .. text, nil, "x") end,
        "x: no date in the units 'days since " .. text)
  end
  -- Nothing can be said of dates, as cftime refuses them.
  for _, case in ipairs{{"months since 2000-01-01"}, {"days since 0000-01-01"}, {"days since 0000-01-01", "julian"},
      {"days since 2000-01-01", "none"}, {"common_years since 2000-01-01", "standard"}} do
    testing.assert_equal(calendar.reader(case[1], case[2], "x"), nil)
  end
end

function tests.test_X18_spans_of_dates()
  local first, after = calendar.span("1582", "standard")
  testing.assert_equal((after - first) / 86400, 355.0)
  testing.assert_equal({calendar.span("2015", "standard")}, {1420070400, 1451606400})
  testing.assert_equal({calendar.span("2016-02", "standard")}, {1454284800, 1456790400})
  testing.assert_equal({calendar.span("2015-12", "standard")}, {1448928000, 1451606400})
  testing.assert_equal({calendar.span("2015-12-31", "standard")}, {1451520000, 1451606400})
  testing.assert_equal({calendar.span("2015-12-31 06", "standard")}, {1451541600, 1451545200})
  testing.assert_equal({calendar.span("2015-12-31 06:30", "standard")}, {1451543400, 1451543460})
  testing.assert_equal({calendar.span("2015-12-31 06:30:15", "standard")}, {1451543415, 1451543416})
end

function tests.test_X18_bad_files_are_one_error_on_all_ranks()
  local a, open = files.cf("bad_a.nc", 0, 4), mh.data.open
  local function beside(text, first, options)
    local b = files.cf("bad_b.nc", first, 4, options)
    refused(function() open{a, b} end, text)
    files.remove{b}
  end
  beside("two files differ in the units of 't2m'\n  have  'K'", 4, {units = "degC"})
  beside("two files differ in the calendar\n  have  standard", 4, {calendar = "noleap"})
  beside("two files differ in coordinates of 'latitude', element 1", 4, {south = -50})
  beside("two files overlap along 'time'", 3)
  beside("unknown calendar 'lunar'", 4, {calendar = "lunar"})
  refused(function() open(files.path("bad_c.nc")) end, "data.open: no file matches '" .. files.path("bad_c.nc")
      .. "'; did you mean '" .. a)
  refused(function() open("/nowhere/*.nc") end,
      "data.open: no file matches '/nowhere/*.nc'\n  have  no folder '/nowhere'")
  refused(function() open{3} end, "data.open: expected paths, patterns or folders, got 3")
  refused(function() open({}, {layout = "cf"}) end, "data.open: no files")
  refused(function() open{a, a} end, "is named twice")
  files.remove{a}
end

-- Fields in files of their own must have the same steps, to the hour: 1e-6 of the time since 1970.
function tests.test_X18_files_of_other_fields_with_other_steps()
  local function one(name, field, late)
    return files.make(name, function(out)
      out:write("time", mh.arange(0, 5, {dtype = "float64"}) * 6 + late,
          {dims = {"time"}, attrs = {units = "hours since 2000-12-30", standard_name = "time"}})
      for _, dim in ipairs {"y", "x"} do out:write(dim, mh.arange(3.0), {dims = {dim}}) end
      out:write(field, mh.zeros{5, 3, 3}, {dims = {"time", "y", "x"}})
    end)
  end
  local paths = {one("o_t.nc", "t", 0), one("o_u.nc", "u", 0), one("o_v.nc", "v", 1)}
  testing.assert_equal(#mh.data.open{paths[1], paths[2]}:windows{inputs = {"t", "u"}}, 5)
  refused(function() mh.data.open{paths[1], paths[3]} end,
      "data.open: files of other fields differ in their steps along 'time'")
  files.remove(paths)
end

function tests.test_X18_bad_axes_are_one_error_on_all_ranks()
  local function of(times)
    local path = files.make("axis.nc", function(out)
      out:write("time", mh.tensor(times, {dtype = "float64"}),
          {dims = {"time"}, attrs = {units = "days since 2000-01-01"}})
      out:write("x", mh.zeros{#times, 3}, {dims = {"time", "width"}})
    end)
    return function() mh.data.open(path) end
  end
  refused(of{0, 2, 1}, "'time' does not increase: step 2 is not after step 1")
  refused(of{0, 1, 1}, "'time' does not increase: step 2 is not after step 1")
  files.remove{files.path("axis.nc")}
end

--- A layout is code of users: what it says is checked before anything is read.
function tests.test_X18_heads_that_contradict_themselves()
  local path = files.make("heads.h5", function(out) out:write("u", mh.zeros{4, 3, 2}) end)
  local function head(change)
    local one = {axis = "n", space = {"y", "x"}, steps = 4, trajectories = 1, join = "axis", coordinates = {},
      fields = {u = {datasets = {"u"}, dims = {"n", "y", "x"}, shape = {4, 3, 2}}}}
    change(one)
    return one
  end
  local function bad(change, text)
    mh.data.layouts.add{name = "odd", matches = function() return true end,
        describe = function() return head(change) end}
    refused(function() mh.data.open(path, {layout = "odd"}) end, "data.open: '" .. path .. "': " .. text)
  end
  bad(function(one) one.fields.u.dims = {"n", "y", "y"} end, "'u' has the dim 'y' twice")
  bad(function(one) one.fields.u.dims = {"n", "y"} end, "'u' has 3 dims and 2 names of dims")
  bad(function(one) one.coordinates.y = {1, 2} end, "'u' has 3 along 'y', which has 2")
  bad(function(one) one.steps = 5 end,
      "'u' has 4 along 'n', which has 5\n  have  layout 'odd'\n  fix   write its last steps too")
  bad(function(one) one.steps, one.fields.u.shape[1] = 0, 0 end, "'n' has length zero")
  bad(function(one) one.fields = {} end, "no field was found")
  bad(function(one) one.times = {0, 1, 1, 2} end, "'n' does not increase: step 2 is not after step 1")
  bad(function(one) one.times = {0, 0 / 0, 1, 2} end, "'n' has no value at step 1")
  bad(function(one) one.times = {0, 1, 2} end, "'n' has 4 steps and 3 times")
  mh.data.layouts.add{name = "odd", matches = function() return false end,
      describe = function() return head(function() end) end}
  refused(function() mh.data.layouts.add{name = "half"} end, "data.layouts.add: expected {name = text")
  files.remove{path}
end

function tests.test_X18_files_of_other_shapes_and_axes()
  local function make(name, shape, dims, times)
    return files.make(name, function(out)
      out:write("time", mh.arange(shape[1], {dtype = "float64"}) + times,
          {dims = {"time"}, attrs = {units = "days since 2000-01-01"}})
      out:write("u", mh.zeros(shape), {dims = dims})
    end)
  end
  local a = make("shape_a.nc", {3, 4, 2}, {"time", "y", "x"}, 0)
  local function beside(text, shape, dims)
    local b = make("shape_b.nc", shape, dims, 3)
    refused(function() mh.data.open{a, b} end, text)
    files.remove{b}
  end
  beside("two files differ in the shape of 'u'\n  have  [3, 4, 2] in '" .. a, {3, 5, 2}, {"time", "y", "x"})
  beside("two files differ in the dims of space\n  have  (y, x)", {3, 4, 2}, {"time", "x", "y"})
  refused(function() mh.data.open(a, {axis = "tim"}) end, "has no coordinate 'tim'; did you mean 'time'?")
  files.remove{a}
  local plain = files.make("nothing.h5", function(out) out:set_attr("empty", "yes") end)
  refused(function() mh.data.open(plain) end, "no field was found")
  files.remove{plain}
end

function tests.test_X18_arguments_that_differ_between_ranks()
  local a = files.cf("ranks_a.nc", 0, 2)
  if mh.world_size() > 1 then
    refused(function() mh.data.open(mh.rank() == 1 and {a, a} or a) end,
        "data.open: ranks 0 and 1 want different arguments")
  end
  refused(function() mh.data.open(a):_field("t3m", "windows") end, "windows: no field 't3m'; did you mean 't2m'?")
  refused(function() mh.data.open(a, {layout = "grib"}) end, "data.open: unknown layout 'grib'")
  testing.assert_error(function() mh.data.open(a, {lay = 1}) end, "data.open: unknown option 'lay'")
  files.remove{a}
end

return tests
