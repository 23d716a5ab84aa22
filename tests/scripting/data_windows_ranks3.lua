-- SPDX-License-Identifier: Apache-2.0
-- Windows over files, gaps and trajectories, and splits that share no step.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"

local tests = {}

local function anchors(set)
  local list = {}
  for i = 0, #set - 1 do
    local run, anchor = set:at(i)
    list[i + 1] = #set.data.runs > 1 and {run, anchor} or anchor
  end
  return list
end

--- Steps that any window of the set reads, as {[run .. ":" .. step] = true}.
local function reads(set)
  local found = {}
  for i = 0, #set - 1 do
    local run, anchor = set:at(i)
    for step = anchor + set.low, anchor + set.high do found[run .. ":" .. step] = true end
  end
  return found
end

local function share_nothing(...)
  local sets = {...}
  for i = 1, #sets do
    for j = i + 1, #sets do
      for step in pairs(reads(sets[i])) do assert(not reads(sets[j])[step], "step " .. step .. " is in two parts") end
    end
  end
end

local function with_cf(run)
  local paths = {files.cf("w_a.nc", 0, 5), files.cf("w_b.nc", 5, 6), files.cf("w_c.nc", 14, 4)}
  run(mh.data.open(paths))
  files.remove(paths)
end

function tests.test_X19_windows_cross_files_and_no_gap()
  with_cf(function(data)
    local set = data:windows{inputs = {fields = {"t2m", "z"}, steps = {-1, 0}},
        targets = {fields = {"t2m"}, steps = {2}}, static = {"orography"}}

    testing.assert_equal(anchors(set), {1, 2, 3, 4, 5, 6, 7, 8, 12})  -- steps 0 to 10, then a gap, then 11 to 14
    testing.assert_equal({#set, set:time(0), set:time(8)}, {9, "2000-12-30 06:00:00", "2001-01-02 18:00:00"})
    testing.assert_equal(set.inputs.channels, {"t2m@-1", "z.0@-1", "z.1@-1", "t2m@+0", "z.0@+0", "z.1@+0"})
    testing.assert_equal({set.targets.channels, set.static.channels}, {{"t2m@+2"}, {"orography"}})
    testing.assert_equal(anchors(data:windows{inputs = {"t2m"}, every = 4}), {0, 4, 8, 11})
    refused(function() data:windows{inputs = {"t2m"}, gaps = "error"} end,
        "windows: 1 gap along 'time'\n  have  the first after step 10: from 2001-01-01 12:00:00")
  end)
end

function tests.test_X19_trajectories_are_apart()
  local path = files.well("w_well.hdf5", 4, 5, 0)
  local set = mh.data.open(path):windows{inputs = {fields = {"tracer"}, steps = {0, 1}},
      targets = {fields = {"velocity"}, steps = {3}}, static = {"mask"}}

  testing.assert_equal(anchors(set), {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}})
  local train, valid = set:split{train = 0.75, valid = 0.25}
  testing.assert_equal(anchors(train), {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}})
  testing.assert_equal(anchors(valid), {{3, 0}, {3, 1}})
  testing.assert_equal({train.dropped, valid.dropped, train.name, valid.name}, {0, 0, "train", "valid"})
  local early = set:split{train = {0, 1.75}}
  -- times 0, 0.5, 1, 1.5, 2
  testing.assert_equal({anchors(early), early.dropped}, {{{0, 0}, {1, 0}, {2, 0}, {3, 0}}, 4})
  files.remove{path}
end

-- By file, trajectories of one file stay together; by trajectory they do not.
function tests.test_X19_files_of_several_trajectories()
  local paths = {files.well("w_0.hdf5", 2, 5, 0), files.well("w_1.hdf5", 3, 5, 2)}
  local set = mh.data.open(paths):windows{inputs = {fields = {"tracer"}, steps = {0}},
      targets = {fields = {"tracer"}, steps = {4}}}
  local function runs(parts)
    local train, valid = set:split(parts)
    return {anchors(train), anchors(valid)}
  end
  testing.assert_equal(runs{train = 0.5, valid = 0.5, by = "file"}, {{{0, 0}, {1, 0}}, {{2, 0}, {3, 0}, {4, 0}}})
  testing.assert_equal(runs{train = 0.6, valid = 0.4, by = "trajectory"}, {{{0, 0}, {1, 0}, {2, 0}}, {{3, 0}, {4, 0}}})
  files.remove(paths)
end

-- A step much longer than the usual one is a gap, and so is one much shorter.
function tests.test_X19_gaps_are_steps_longer_or_shorter_than_the_usual_one()
  for _, case in ipairs {{{0, 6, 12, 18, 30, 36}, {0, 1, 2, 4}, 4}, {{0, 6, 12, 13, 19, 25}, {0, 1, 3, 4}, 3}} do
    local times, wanted, gap = table.unpack(case)
    local path = files.make("w_gaps.nc", function(out)
      out:write("time", mh.tensor(times, {dtype = "float64"}),
          {dims = {"time"}, attrs = {units = "hours since 2000-12-30", standard_name = "time"}})
      for _, name in ipairs {"y", "x"} do out:write(name, mh.arange(3.0), {dims = {name}}) end
      out:write("t", mh.zeros{6, 3, 3}, {dims = {"time", "y", "x"}})
    end)
    local data = mh.data.open(path)
    testing.assert_equal({#data.gaps, data.gaps[1].step}, {1, gap})
    testing.assert_equal(anchors(data:windows{inputs = {"t"}, targets = {fields = {"t"}, steps = {1}}}), wanted)
    files.remove{path}
  end
end

function tests.test_X19_splits_share_no_step()
  with_cf(function(data)
    for _, every in ipairs{1, 2, 3} do
      local set = data:windows{inputs = {fields = {"t2m"}, steps = {-1, 0}}, targets = {fields = {"t2m"}, steps = {1}},
          every = every}
      local train, valid, test = set:split{test = 0.25, valid = 0.35, train = 0.4}
      share_nothing(train, valid, test)
      testing.assert_equal({train.name, valid.name, test.name}, {"train", "valid", "test"})
      local a, b = set:split{train = {"2000-12-30", "2000-12-31"}, valid = {"2001", "2001"}}
      share_nothing(a, b)
      assert(#a > 0 and #b > 0)
      for i = 0, #a - 1 do assert(a:time(i) < "2000-12-31 18:00:00") end
      for i = 0, #b - 1 do assert(b:time(i) >= "2001-01-01 06:00:00") end
      share_nothing(set:split{train = 2 / 3, valid = 1 / 3, by = "file"})
    end
    local set = data:windows{inputs = {fields = {"t2m"}, steps = {-1, 0}}, targets = {fields = {"t2m"}, steps = {1}}}
    testing.assert_equal(anchors(set), {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13})
    local train, valid = set:split{train = 0.5, valid = 0.5}
    testing.assert_equal({anchors(train), train.dropped}, {{1, 2, 3, 4}, 1})
    testing.assert_equal({anchors(valid), valid.dropped}, {{7, 8, 9, 12, 13}, 1})
    local first, rest = set:split{train = 1 / 3, valid = 2 / 3, by = "file"}
    testing.assert_equal({anchors(first), first.dropped, anchors(rest), rest.dropped},
        {{1, 2, 3}, 1, {6, 7, 8, 9, 12, 13}, 1})
  end)
end

function tests.test_X19_windows_that_do_not_fit()
  with_cf(function(data)
    local function bad(options, text) refused(function() data:windows(options) end, text) end
    bad({inputs = {fields = {"t2m"}, steps = {0, 20}}},
        "windows: a window of 21 steps (0 to 20) is longer than what there is\n  have  at most 11 steps along 'time'")
    bad({inputs = {fields = {"t2m"}, steps = {0, 0.5}}}, "windows: inputs.steps has 0.5")
    bad({inputs = {fields = {"t2m"}, steps = {1, 1}}}, "windows: inputs.steps has 1 twice")
    bad({inputs = {fields = {"t3m"}}}, "windows: no field 't3m'; did you mean 't2m'?")
    bad({inputs = {field = {"t2m"}}}, "windows: unknown 'inputs.field'; did you mean 'fields'?")
    bad({inputs = {"t2m", "t2m"}}, "windows: inputs names 't2m' twice")
    bad({inputs = {"orography"}}, "windows: 'orography' does not change along 'time'")
    bad({inputs = {"t2m"}, static = {"z"}}, "windows: 'z' is not a static field: it changes along 'time'")
    bad({inputs = {"t2m"}, axis = "step"}, "windows: the steps follow 'time'")
    bad({inputs = {"t2m"}, every = 0}, "windows: every is 0")
  end)
end

function tests.test_X19_a_field_that_one_file_lacks()
  local paths = {files.cf("l_a.nc", 0, 3), files.cf("l_b.nc", 3, 3, {without_z = true})}
  local data = mh.data.open(paths)
  testing.assert_equal(#data:windows{inputs = {"t2m"}}, 6)
  refused(function() data:windows{inputs = {"z"}} end, "windows: field 'z' is missing in one file\n  have  it in '"
      .. paths[1] .. "', not in '" .. paths[2])
  files.remove(paths)
end

function tests.test_X19_splits_that_do_not_fit()
  with_cf(function(data)
    local set = data:windows{inputs = {fields = {"t2m"}, steps = {-1, 0}}}
    local function bad(parts, text) refused(function() set:split(parts) end, text) end
    bad({train = {"2000", "2001-01-01"}, valid = {"2001-01-01", "2001"}},
        "split: 'train' and 'valid' overlap: samples of one would be known")
    bad({train = {"2000", "2001"}, valid = {"2002", "2003"}},
        "split: 'valid' is empty\n  have  [\"2002\",\"2003\"]; 13 samples, 2000-12-30 06:00:00")
    bad({train = 0.9, valid = 0.2}, "split: the fractions add up to more than 1")
    bad({train = 0.99, valid = 0.01}, "split: 'valid' is empty")
    bad({train = {"2001", "2000"}}, "split: 'train' ends before it begins")
    bad({train = {"May", "June"}}, "split: 'train' has the border 'May'")
    bad({train = {"2000", "2001"}, valid = 0.1}, "split: 'valid' is 0.1")
    bad({train = 0.5, valid = {"2001", "2002"}}, "split: 'valid' is {'2001', '2002'}")
    bad({}, "split: expected a table of parts")
    testing.assert_error(function() set:split{train = 0.5, by = "year"} end, "split: unknown by 'year'")
  end)
end

return tests
