-- SPDX-License-Identifier: Apache-2.0
-- X14: training steps in which some ranks read, or write, what others need or have: the kinds of many ranks. The first
-- argument is the folder of the files, the others are what a step does; "save" alone writes the files.
local mh = require "moonhalo"

local folder = arg[1]
local function path(name) return folder .. "/" .. name end

local ranks = mh.world_size()
local line = mh.init_device_mesh("cpu", {ranks}, {"ranks"})

local function make_model()
  local model = mh.nn.Linear(2048, 301)
  mh.parallelize_module(model, line, {parameter = {weight = {mh.Shard(1)}}})
  return model
end

if arg[2] == "save" then
  local file <close> = mh.h5.open(path "fields.h5", "w")
  file:write("plain", mh.rand{300, 2048})
  file:write("bands", mh.rand{301, 2048}, {chunks = {16, 2048}, compression = 1})
  file:write("tiles", mh.rand{300, 2048}, {chunks = {64, 300}, compression = 1})
  file:write("frames", mh.rand{60, 64, 2048}, {chunks = {1, 64, 2048}, compression = 1})
  mh.checkpoint.save(path "checkpoint", {model = make_model(), whole = mh.zeros{301, 300}})
  return
end

local function read(name, placements)
  return function()
    local file <close> = mh.h5.open(path "fields.h5")
    local x = mh.scatter_tensor(file[name], line, placements)
    return x.shape
  end
end

local function write(name, shape, options)
  local x = mh.from_local(mh.zeros(shape), line, {mh.Shard(1)})
  return function()
    local file <close> = mh.h5.open(path(name .. "_new.h5"), "w")
    file:write("x", x, options)
  end
end

local kMake = {
  plain = function() return read("plain", {mh.Shard(1)}) end,
  bands = function() return read("bands", {mh.Shard(1)}) end,
  tiles = function() return read("tiles", {mh.Shard(1)}) end,
  copies = function() return read("bands", {mh.Replicate()}) end,
  frames = function() return read("frames", {mh.Shard(2)}) end,
  written = function() return write("written", {301, 7}) end,
  written_bands = function() return write("bands", {301, 7}, {chunks = {16, 500}, compression = 1}) end,
  written_tiles = function() return write("tiles", {301, 7}, {chunks = {64, 100}}) end,
  load = function()
    local state = {model = make_model(), whole = mh.zeros{301, 300}}
    return function() mh.checkpoint.load(path "checkpoint", state) end
  end,
  save = function()
    local state = {model = make_model(), whole = mh.zeros{301, 300}}
    return function() mh.checkpoint.save(path "saved", state) end
  end,
  background = function()
    local state = {model = make_model(), whole = mh.zeros{301, 300}}
    return function() mh.checkpoint.save(path "saved", state, {async = true}) end
  end,
}

local field = mh.zeros{1 << 20}  -- beside which the memory of small sums, which differs from rank to rank, is nothing
local does = {}
for i = 2, #arg do does[#does + 1] = kMake[arg[i]]() end
local net = mh.nn.Linear(16, 16)
mh.replicate(net, {mesh = line})
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
for _ = 1, 3 do
  collectgarbage()
  optimizer:zero_grad()
  net(mh.local_batch(mh.zeros{4, 16})):square():mean():backward()
  for _, fn in ipairs(does) do fn(field) end
  optimizer:step()
end
