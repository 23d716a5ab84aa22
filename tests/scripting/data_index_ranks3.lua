-- SPDX-License-Identifier: Apache-2.0
-- mh.data.open of many files: heads are read in shares, and kept in an index by what the files were.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"

local tests = {}

local function make(count)
  local paths = {}
  for i = 1, count do
    paths[i] = files.cf(("i_%02d.nc"):format(i), 4 * (i - 1), 4, {scale = 0.01 * i, without_z = i == 3})
  end
  return paths
end

local function on_rank_0(command)
  mh._files.on_first_rank(function() assert(os.execute(command)) end)
end

--- Damages a file so that nothing but its size and its times are as they were.
local function hollow(path)
  on_rank_0(("cp -p '%s' '%s.kept' && head -c $(stat -c %%s '%s') /dev/zero > '%s' && touch -r '%s.kept' '%s'"):format(
      path, path, path, path, path, path))
end

local function restore(path) on_rank_0(("mv '%s.kept' '%s'"):format(path, path)) end

local function check(data, paths)
  testing.assert_equal({data.layout, data.files, data.steps, #data.gaps}, {"cf", paths, 4 * #paths, 0})
  testing.assert_equal(data:time_text(data.times[4 * #paths]), ("2001-01-%02d 18:00:00"):format(#paths - 2))
  testing.assert_equal({data.fields.t2m.units, data.fields.t2m.channels, data.fields.z.missing_in}, {"K", 1, paths[3]})
  testing.assert_equal(data.coordinates.longitude, {0, 30, 60, 90, 120})
  for i in ipairs(paths) do
    testing.assert_equal(data.fields.t2m:read(4 * i - 2), files.t2m(4 * (i - 1), 4, 0.01 * i)["2:3"])
  end
end

function tests.test_X18_heads_are_read_in_shares()
  local paths = make(7)
  check(mh.data.open(paths), paths)
  for _, bad in ipairs{1, 4, 7} do  -- whichever rank reads it
    hollow(paths[bad])
    refused(function() mh.data.open(paths) end, paths[bad])
    restore(paths[bad])
  end
  files.remove(paths)
end

function tests.test_X18_an_index_keeps_heads()
  local paths, index = make(6), files.path("index_of") .. "/heads.json"
  check(mh.data.open(paths, {index = index}), paths)

  for _, path in ipairs(paths) do hollow(path) end
  testing.assert_equal(mh.data.open(paths, {index = index}).steps, 24)  -- opens none of them
  refused(function() mh.data.open(paths) end, paths[1])
  refused(function() mh.data.open(paths, {index = index, axis = "time"}) end, paths[1])  -- heads of other options
  for _, path in ipairs(paths) do restore(path) end
  check(mh.data.open(paths, {index = index}), paths)

  local added = files.cf("i_07.nc", 24, 4, {scale = 0.07})
  paths[7] = added
  check(mh.data.open(paths, {index = index}), paths)
  files.cf("i_07.nc", 24, 3, {scale = 0.07})  -- written again
  testing.assert_equal(mh.data.open(paths, {index = index}).steps, 27)
  hollow(paths[2])
  testing.assert_equal(mh.data.open({paths[2], paths[3]}, {index = index}).steps, 8)  -- a part of them
  testing.assert_equal(mh.data.open(paths, {index = index}).steps, 27)  -- which does not forget the others
  on_rank_0("touch '" .. paths[2] .. "'")
  refused(function() mh.data.open(paths, {index = index}) end, paths[2])
  restore(paths[2])
  testing.assert_equal(mh.data.open(paths, {index = index, axis = "time"}).steps, 27)
  testing.assert_equal(mh.data.open(paths, {index = index, axis = "time"}).steps, 27)
  files.remove(paths)
  files.remove{index}
end

function tests.test_X18_an_index_that_is_none()
  local paths, index = make(1), files.path("no_index.json")
  mh._files.on_first_rank(function() mh._files.write("test", index, "{\"results\": [1, 2, 3]}") end)
  refused(function() mh.data.open(paths, {index = index}) end, "data.open: '" .. index .. "' is not an index of heads")
  refused(function() mh.data.open(paths, {index = 3}) end, "data.open: index is 3")
  mh.data.layouts.add{name = "mine", matches = function() return false end, describe = function() end}
  refused(function() mh.data.open(paths, {index = files.path("i.json")}) end,
      "data.open: an index does not know of layouts of one's own")
  testing.assert_equal(mh.data.open(paths, {index = files.path("i.json"), layout = "cf"}).steps, 4)
  files.remove{paths[1], index, files.path("i.json")}
end

return tests
