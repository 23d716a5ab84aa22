-- SPDX-License-Identifier: Apache-2.0
-- Reads the .npy files that check_npy.py has made, whole and by blocks, and writes them again (X18, S18): moonhalo run
-- npy.lua -- FOLDER OUT
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local folder, out = arg[1], arg[2]
local ranks, rank = mh.world_size(), mh.rank()
local mesh = mh.init_device_mesh("cpu", {ranks}, {"domain"})
local cases = mh.json.load(folder .. "/cases.json")

--- Blocks of a dim of `rows`: the second rank has nothing, the last most.
local function uneven(rows)
  if ranks == 1 then return {rows} end
  local sizes = {}
  for i = 1, ranks do sizes[i] = i == 1 and rows // 3 or i == ranks and rows - rows // 3 or 0 end
  return sizes
end

--- Bytes that all ranks took of files while they ran `read`.
local function stored_by(read)
  mh.io_stats{reset = true}
  local result = read()
  local mine = mh.tensor({mh.io_stats().stored}, {dtype = "int64"})
  return result, mh.from_local(mine, mesh, {mh.Shard(0)}):full_tensor():tolist()
end

for _, name in ipairs(cases.arrays) do
  local path = folder .. "/" .. name
  local whole = mh.files.read_npy(path)
  local data = mh.h5.open(path)["data"]
  testing.assert_equal(data.shape, whole.shape)
  for dim = 0, whole.ndim - 1 do
    local sizes = uneven(whole.shape[dim + 1])
    local x, stored = stored_by(function() return mh.scatter_tensor(data, mesh, {mh.Shard(dim, sizes)}) end)
    assert(mh.equal(x:full_tensor(), whole), name)
    local bytes, all = whole:numel() * whole:element_size(), 0
    for i, of_rank in ipairs(stored) do
      -- of what is its own, or equal ones
      local share = math.max(bytes * sizes[i] / math.max(whole.shape[dim + 1], 1), bytes / ranks)
      assert(of_rank <= 1.5 * share + 8192, ("%s, dim %d: rank %d read %d bytes, its share is %g"):format(name, dim,
          i - 1, of_rank, share))
      all = all + of_rank
    end
    assert(all <= 1.5 * bytes, ("%s, dim %d: %d bytes read of %d"):format(name, dim, all, bytes))
  end
  if whole.ndim == 3 then
    local wanted = whole["1:, ::2, 1:4"]
    assert(mh.equal(data["1:, ::2, 1:4"]:read(), wanted), name .. ": a selection")
    assert(mh.equal(mh.scatter_tensor(data["1:, ::2, 1:4"], mesh, {mh.Shard(2, uneven(wanted.shape[3]))}):full_tensor(),
        wanted), name .. ": a selection by blocks")
  end
  if rank == 0 then mh.files.write_npy(out .. "/" .. name, whole) end
  mh.barrier()
  local again = mh.files.read_npy(out .. "/" .. name)
  assert(again.dtype == whole.dtype and mh.equal(again, whole), name .. ": written and read")
end

local messages = {}
for _, name in ipairs(cases.refused) do
  messages[name] = testing.assert_error(function() mh.files.read_npy(folder .. "/" .. name) end, name)
  mh._data.check_same("npy", "messages", messages[name])
end
testing.assert_error(function() mh.files.write_npy(out .. "/x.npy", mh.ones({2}, {dtype = "bfloat16"})) end,
    "numpy has no dtype bfloat16")
testing.assert_error(function() mh.files.write_npy(out .. "/x.npy", mh.distribute_tensor(mh.ones{4}, mesh,
    {mh.Shard(0)})) end, "a ShardTensor")
if rank == 0 then
  local file <close> = io.open(out .. "/messages.json", "w")
  file:write(mh.json.encode(messages))
end

local data = mh.data.open(folder .. "/series", {dims = {run = {"time", "y", "x"}, mask = {"y", "x"}}})
testing.assert_equal({#data.runs, data.steps, data.axis}, {2, 8, "time"})
local set = data:windows{inputs = {fields = {"run"}, steps = {0, 1}}, static = {"mask"}}
testing.assert_equal(#set, 6)
local from = mh.arange(60, {dtype = "float32"}):reshape{4, 3, 5}
local wanted = {}
for i, run in ipairs{10, 2} do  -- in the order of the paths
  for step = 0, 2 do wanted[3 * (i - 1) + step + 1] = from[step .. ":" .. step + 2] + 1000 * run end
end
testing.assert_close(set:statistics().fields.run.mean[1], 29.5 + 6000)
for _, dim in ipairs{"y", "x"} do
  for batch in set:loader{mesh = mesh, cut = {[dim] = {"domain", uneven(dim == "y" and 3 or 5)}},
      batch = 6}:batches() do
    testing.assert_close(batch.inputs:full_tensor(), mh.stack(wanted, 0))
    testing.assert_close(batch.static:full_tensor()["5, 0"], mh.arange(15):remainder(2):eq(0):float():reshape{3, 5})
  end
end

-- Steps that are between each other in the file, as Fortran has them, are read once, not once a step.
for _, name in ipairs{"large.npy", "large_fortran.npy"} do
  local whole, sums = mh.files.read_npy(folder .. "/" .. name), {}
  local _, stored = stored_by(function()
    local steps = mh.data.open(folder .. "/" .. name, {dims = {"time", "y", "x"}}):windows{
        inputs = {name:match("^%w*_?%a*")}}
    for batch in steps:loader{mesh = mesh, cut = {x = {"domain", uneven(300)}}, batch = 8}:batches() do
      sums[#sums + 1] = batch.inputs:sum{dim = {1, 2, 3}}:full_tensor()
    end
  end)
  testing.assert_close(mh.cat(sums, 0), whole:sum{dim = {1, 2}}, {rtol = 1e-4})
  local all = 0
  for _, of_rank in ipairs(stored) do all = all + of_rank end
  assert(all <= 1.5 * 4 * whole:numel(), ("%s: %d bytes read of %d"):format(name, all, 4 * whole:numel()))
end

local dates = mh.h5.open(folder .. "/dates.npy")["data"]
testing.assert_equal({dates.attrs.units, dates.attrs.calendar, dates:read{decode = true,
    dtype = "float64"}["0:2"]:tolist()}, {"days since 1970-01-01", "proleptic_gregorian", {10957, 11356}})
assert(dates:read{decode = true}:isnan()["2"]:item(), "NaT is missing")
