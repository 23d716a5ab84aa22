-- SPDX-License-Identifier: Apache-2.0
-- X14: training steps that read files, for moonhalo plan --check. The first argument is the folder of the files, the
-- others are the reads of a step; "save" alone writes the files, and "values" alone compares what small reads give with
-- what they hold.
local mh = require "moonhalo"

local folder = arg[1]
local function path(name) return folder .. "/" .. name end

local ranks = mh.world_size()
local line = mh.init_device_mesh("cpu", {ranks}, {"ranks"})
local grid = ranks == 4 and mh.init_device_mesh("cpu", {2, 2}, {"rows", "columns"})

local function make_stored(placement)
  local model = mh.nn.Linear(700, 300)
  collectgarbage()
  mh.parallelize_module(model, line, {parameter = {weight = {placement}}})
  return model
end
local stored = make_stored(mh.Shard(1))

if arg[2] == "save" then
  mh.checkpoint.save(path "checkpoint", {model = stored, plain = mh.rand{400, 300}})
  mh.checkpoint.save(path "own", {model = stored}, {layout = "per_rank"})
  if mh.rank() > 0 then return end
  local file <close> = mh.h5.open(path "fields.h5", "w")
  file:write("plain", mh.rand{600, 1200})
  file:write("wide", mh.arange(600 * 1200, {dtype = "float64"}):reshape{600, 1200} / (600 * 1200))
  file:write("chunks", mh.rand{301, 900}, {chunks = {64, 900}, compression = 1})
  file:write("packed", mh.ones({300, 900}, {dtype = "int16"}),
    {chunks = {64, 900}, compression = 1, attrs = {scale_factor = 0.5}})
  file:write("small", mh.arange(512, {dtype = "float64"}):reshape{64, 8}, {chunks = {8, 8}, compression = 1})
  mh.files.write_npy(path "fields.npy", mh.rand{600, 1200})
  mh.save_pt(path "tensors.pt", {weight = mh.rand{300, 400}})
  return
end

local function sizes(first, all)
  local list = {first}
  for i = 2, ranks do list[i] = i == ranks and all - first or 0 end
  return list
end

local kStates = {  -- that are not as they were saved
  rows = function() return {model = make_stored(mh.Shard(0))} end,
  uneven = function() return {model = make_stored(mh.Shard(1, sizes(600, 700)))} end,
  empty = function() return {model = make_stored(mh.Shard(1, sizes(700, 700)))} end,
  copies = function() return {model = make_stored(mh.Replicate())} end,
  module = function() return {model = mh.nn.Linear(700, 300)} end,
  plain = function() return {plain = mh.zeros{300, 400}:t()} end,
  cut = function()
    return {plain = mh.distribute_tensor(mh.zeros({400, 300}, {dtype = "float64"}), line, {mh.Shard(1)})}
  end,
  sums = function() return {plain = mh.from_local(mh.zeros{400, 300}, line, {mh.Partial()})} end,
}

local states = {}
local function load_as(name)
  states[name] = states[name] or kStates[name]()
  mh.checkpoint.load(path "checkpoint", states[name])
end

local kReads = {
  plain = function(file) return mh.scatter_tensor(file.plain, line, {mh.Shard(1)}) end,
  wide = function(file) return mh.scatter_tensor(file.wide, line, {mh.Shard(1)}, {dtype = "float32"}) end,
  chunks = function(file) return mh.scatter_tensor(file.chunks, line, {mh.Shard(1)}) end,
  decoded = function(file) return mh.scatter_tensor(file.packed, line, {mh.Shard(1)}, {decode = true}) end,
  half = function(file)
    return mh.scatter_tensor(file.packed, line, {mh.Shard(1)}, {decode = true, dtype = "float16"})
  end,
  integers = function(file) return mh.scatter_tensor(file.packed, line, {mh.Shard(1)}, {dtype = "int32"}) end,
  slices = function(file) return mh.scatter_tensor(file.plain["1:600:2, 5:1100"], line, {mh.Shard(1)}) end,
  steps = function(file) return mh.scatter_tensor(file.chunks["1:300:2, ::3"], line, {mh.Shard(1)}) end,
  uneven = function(file) return mh.scatter_tensor(file.chunks, line, {mh.Shard(1, sizes(700, 900))}) end,
  empty = function(file) return mh.scatter_tensor(file.plain, line, {mh.Shard(1, sizes(1200, 1200))}) end,
  halo = function(file) return mh.scatter_tensor(file.plain, line, {mh.Shard(1)}, {halo = 3}) end,
  copies = function(file) return mh.scatter_tensor(file.chunks, line, {mh.Replicate()}) end,
  rows = function(file) return mh.scatter_tensor(file.plain, line, {mh.Shard(0)}) end,
  grid = function(file)
    return grid and mh.scatter_tensor(file.plain, grid, {mh.Shard(0), mh.Shard(1)})
        + mh.scatter_tensor(file.plain, grid, {mh.Replicate(), mh.Shard(1)}) or mh.zeros{1}
  end,
  npy = function() return mh.scatter_tensor(mh.h5.open(path "fields.npy").data, line, {mh.Shard(1)}) end,
  pt = function() return mh.load(path "tensors.pt") end,
  checkpoint = function() mh.checkpoint.load(path "checkpoint", {model = stored}) end,
  own = function() mh.checkpoint.load(path "own", {model = stored}) end,
  loads = function()
    for _, name in ipairs {"rows", "uneven", "empty", "copies"} do load_as(name) end
  end,
  plain_loads = function()
    for _, name in ipairs {"module", "plain", "cut", "sums"} do load_as(name) end
  end,
  small = function(file) return mh.scatter_tensor(file.small, line, {mh.Shard(1)}) end,
  whole = function(file) return file.chunks:read() end,
  whole_half = function(file) return file.wide:read{dtype = "float16"} end,
}

-- Small reads have their values, in dry runs, too.
if arg[2] == "values" then
  local file <close> = mh.h5.open(path "fields.h5")
  local function check(what, row, first, expected)
    for i, value in ipairs(row) do
      if math.abs(value - expected(first + i - 1)) > 1e-3 then
        error(("%s: value %d of %s is %g, expected %g"):format(what, i, mh.backend(), value, expected(first + i - 1)))
      end
    end
  end
  local columns = 8 // ranks
  for i, row in ipairs(kReads.small(file):to_local():tolist()) do
    check("small", row, (i - 1) * 8 + mh.rank() * columns, function(place) return place end)
  end
  local half = file.wide["0:5"]:read{dtype = "float16"}  -- of 48,000 bytes
  for i, row in ipairs(half:tolist()) do
    check("half", row, (i - 1) * 1200, function(place) return place / (600 * 1200) end)
  end
  return
end

local net = mh.nn.Linear(16, 16)
mh.replicate(net, {mesh = line})
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
for _ = 1, 100 do
  collectgarbage()
  optimizer:zero_grad()
  net(mh.local_batch(mh.zeros{40, 16})):square():mean():backward()
  do
    local file <close> = mh.h5.open(path "fields.h5")
    for i = 2, #arg do
      local read = kReads[arg[i]](file)
      read = read and nil
      collectgarbage()
    end
  end
  optimizer:step()
end
