-- SPDX-License-Identifier: Apache-2.0
-- HDF5 files from Lua on three ranks: written by all, read by each, scattered; what a failing script leaves behind.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local t = mh.testing

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function path_of(name) return own_path(name .. ".h5") end

local function field() return mh.arange(9 * 7, {dtype = "float32"}):reshape{9, 7} * 0.5 end

function tests.test_a_shard_tensor_becomes_one_file()
  local path = path_of "lua_files"
  local x = mh.distribute_tensor(field(), mesh, {mh.Shard(0)})
  local out = mh.h5.open(path, "w")
  out:write("rows", mh.arange(9))
  out:write("deep/u", x, {attrs = {units = "K", levels = {1, 2, 3}, note = "half"}, dims = {"y", "x"}, chunks = {2, 7},
      compression = 4})
  out:set_attr("title", "three ranks")
  out:close()

  local file = mh.h5.open(path)
  local stored = file["deep/u"]
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
  t.assert_error(function() return file["deep/v"] end, 'no dataset "deep/v"')
  t.assert_error(function() file:write("x", x) end, "open for reading only")

  local y = mh.scatter_tensor(stored["1:, :"], mesh, {mh.Shard(0, {1, 5, 2})})
  t.assert_equal(y:to_local().shape[1], ({1, 5, 2})[mh.rank() + 1])
  t.assert_close(y:full_tensor(), field()["1:, :"])

  local z, padded = mh.scatter_tensor(stored, mesh, {mh.Shard(0, {6, 0, 3})}, {halo = 2, dtype = "float64"})
  t.assert_close(z:full_tensor(), field():double())
  t.assert_close(padded, field():double()[({"0:8, :", "4:8, :", "4:9, :"})[mh.rank() + 1]])
  t.assert_equal(#{mh.scatter_tensor(stored, mesh, {mh.Shard(0)}, {halo = 0})}, 1)
  t.assert_error(function() mh.scatter_tensor(stored, mesh, {mh.Shard(0)}, {halo = -1}) end, "halo -1 is below 0")
  mh.barrier()
  file:close()
  mh.barrier()
  if mh.rank() == 0 then os.remove(path) end
end

function tests.test_groups_have_attributes_and_members()
  local path = path_of("lua_groups_" .. mh.rank())
  local out = mh.h5.open(path, "w")
  out:write("fields/deep/x", field())
  out:set_attr("names", {"x", "y"}, "fields")
  out:close()

  local file = mh.h5.open(path)
  local group = file["fields"]
  t.assert_equal(group.attrs.names, {"x", "y"})
  t.assert_equal(group:keys(), {"deep"})
  t.assert_equal(tostring(group), "Group(fields)")
  t.assert_equal(group["deep"].name, "fields/deep")
  t.assert_equal(group["deep/x"].shape, {9, 7})
  t.assert_close(group["deep"]["x"]:read(), field())
  t.assert_error(function() return group["shallow"] end, 'no dataset "fields/shallow"')
  t.assert_error(function() return file["fields/deep/x"]:strings() end, "it holds no text")
  os.remove(path)
end

-- Whole rows are chunks, and every rank needs a part of each: every chunk is read and inflated once over all ranks.
function tests.test_chunks_are_inflated_once()
  local path = path_of "lua_chunks"
  local out = mh.h5.open(path, "w")
  out:write("x", mh.distribute_tensor(field(), mesh, {mh.Shard(0)}), {chunks = {1, 7}, compression = 1})
  out:close()
  mh.io_stats{reset = true}

  local x = mh.scatter_tensor(mh.h5.open(path)["x"], mesh, {mh.Shard(1)})

  t.assert_close(x:full_tensor(), field())
  local stats = mh.io_stats()
  t.assert_equal({stats.chunks, stats.inflated, stats.library}, {3, 3 * 7 * 4, 0})
  t.assert_equal(stats.exchanged, 6 * x:to_local().shape[2] * 4)
  t.assert_equal(stats.stored > 0, true)
  mh.barrier()
  if mh.rank() == 0 then os.remove(path) end
end

-- Rows are added by all ranks, by one of them for plain tensors; what was flushed stands in a file of its own.
function tests.test_files_grow()
  local path = path_of "lua_growing"
  local out = mh.h5.open(path, "w")
  for step = 1, 4 do
    out:append("x", mh.distribute_tensor(field():reshape{1, 9, 7} * step, mesh, {mh.Shard(2)}), {compression = 1})
    out:append("time", mh.tensor{step})
  end
  local wrong = mh.distribute_tensor(field():double():reshape{1, 9, 7}, mesh, {mh.Shard(2)})
  t.assert_error(function() out:append("x", wrong) end, "rows of another dtype")
  local unfinished = out:flush()
  t.assert_equal(mh.h5.open(unfinished)["x"].shape, {4, 9, 7})
  mh.barrier()
  out:close()

  local file = mh.h5.open(path)
  t.assert_equal(file["time"]:read():tolist(), {1, 2, 3, 4})
  t.assert_close(file["x"]["2"]:read(), field() * 3)
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
