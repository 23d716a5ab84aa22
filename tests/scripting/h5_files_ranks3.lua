-- SPDX-License-Identifier: Apache-2.0
-- HDF5 files from Lua on three ranks: written by all, read by each, scattered; what a failing script leaves behind.
local mh = require "moonhalo"
local t = mh.testing

local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local tests = {}

--- A path that is the same on every rank.
local function path_of(name)
  return (os.getenv("TMPDIR") or "/tmp") .. "/moonhalo_" .. name .. ".h5"
end

local function field() return mh.arange(9 * 7, {dtype = "float32"}):reshape{9, 7} * 0.5 end

function tests.test_a_shard_tensor_becomes_one_file()
  local path = path_of "lua_files"
  local x = mh.distribute_tensor(field(), mesh, {mh.Shard(0)})
  local out = mh.h5.open(path, "w")
  out:write("rows", mh.arange(9))
  out:write("deep/x", x, {attrs = {units = "K", levels = {1, 2, 3}, note = "half"}, dims = {"y", "x"}, chunks = {2, 7}, compression = 4})
  out:set_attr("title", "three ranks")
  out:close()

  local file = mh.h5.open(path)
  local stored = file["deep/x"]
  t.assert_equal(file:keys(), {"deep", "rows"})
  t.assert_equal(stored.shape, {9, 7})
  t.assert_equal(stored.dtype, mh.float32)
  t.assert_equal(stored.attrs.units, "K")
  t.assert_equal(stored.attrs.levels, {1, 2, 3})
  t.assert_equal(stored.dims, {"y", "x"})
  t.assert_equal(stored.chunks, {2, 7})
  t.assert_equal(file.attrs.title, "three ranks")
  t.assert_close(stored:read(), field())
  t.assert_close(stored["1::2, -1"]:read{dtype = "float64"}, field()["1::2, -1"]:double())
  t.assert_error(function() return file["deep/y"] end, 'no dataset "deep/y"')
  t.assert_error(function() file:write("x", x) end, "open for reading only")

  local y = mh.scatter_tensor(stored["1:, :"], mesh, {mh.Shard(0, {1, 5, 2})})
  t.assert_equal(y:to_local().shape[1], ({1, 5, 2})[mh.rank() + 1])
  t.assert_close(y:full_tensor(), field()["1:, :"])
  mh.barrier()
  file:close()
  mh.barrier()
  if mh.rank() == 0 then os.remove(path) end
end

function tests.test_a_discarded_file_leaves_the_old_one()
  local path = path_of("lua_kept_" .. mh.rank())
  for _, value in ipairs{1, 2} do
    local out = mh.h5.open(path, "w")
    out:write("x", mh.full({3}, value))
    if value == 1 then out:close() else out:discard() end
  end
  t.assert_equal(mh.h5.open(path).x:read():tolist(), {1, 1, 1})
  os.remove(path)
end

function tests.test_a_scope_left_by_an_error_leaves_the_old_file()
  local path = path_of("lua_scope_" .. mh.rank())
  do
    local out <close> = mh.h5.open(path, "w")
    out:write("x", mh.full({3}, 1))
  end
  t.assert_error(function()
    local out <close> = mh.h5.open(path, "w")
    out:write("x", mh.full({3}, 2))
    error("half of it is missing")
  end, "half of it is missing")
  t.assert_equal(mh.h5.open(path).x:read():tolist(), {1, 1, 1})
  os.remove(path)
end

return tests
