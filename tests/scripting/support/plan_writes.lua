-- SPDX-License-Identifier: Apache-2.0
-- X14: training steps that write files, for moonhalo plan --check. The first argument is the folder of the files, the
-- others are the writes of a step.
local mh = require "moonhalo"

local folder = arg[1]
local function path(name) return folder .. "/" .. name end

local ranks = mh.world_size()
local line = mh.init_device_mesh("cpu", {ranks}, {"ranks"})
local grid = ranks >= 4 and mh.init_device_mesh("cpu", {ranks // 2, 2}, {"rows", "columns"})

local function sizes(first, all)
  local list = {first}
  for i = 2, ranks do list[i] = i == ranks and all - first or 0 end
  return list
end

local kept = {}  -- steps use the tensors of the first one

local function cut(shape, placements, mesh, dtype)
  local key = table.concat(shape, "x") .. tostring(placements[1]) .. tostring(mesh) .. tostring(dtype)
  kept[key] = kept[key] or mh.distribute_tensor(mh.zeros(shape, {dtype = dtype}), mesh or line, placements)
  return kept[key]
end

local function write(name, tensor, options)
  local file <close> = mh.h5.open(path(name .. ".h5"), "w")
  file:write(name, tensor, options)
end

local gz = {chunks = {64, 900}, compression = 1}
local function stored_model()
  local model = mh.nn.Linear(700, 300)
  collectgarbage()
  mh.parallelize_module(model, line, {parameter = {weight = {mh.Shard(1)}}})
  return model
end

local step = 0
local kWrites = {
  rows = function() write("rows", cut({601, 700}, {mh.Shard(0)})) end,
  columns = function() write("columns", cut({1200, 300}, {mh.Shard(1)})) end,
  uneven = function() write("uneven", cut({900, 300}, {mh.Shard(1, sizes(250, 300))})) end,
  empty = function() write("empty", cut({600, 300}, {mh.Shard(1, sizes(300, 300))})) end,
  copies = function() write("copies", cut({900, 300}, {mh.Replicate()})) end,
  sums = function()
    write("sums", mh.from_local(mh.zeros{300, 900}, line, {mh.Partial()}))
  end,
  wide = function() write("wide", cut({400, 300}, {mh.Shard(1)}, line, "float64")) end,
  bytes = function() write("bytes", cut({900, 900}, {mh.Shard(1)}, line, "uint8")) end,
  nothing = function() write("nothing", cut({0, 300}, {mh.Shard(1)})) end,
  number = function() write("number", mh.from_local(mh.ones{}, line, {mh.Replicate()})) end,
  chunks = function() write("chunks", cut({301, 900}, {mh.Shard(1)}), gz) end,
  chunk_rows = function() write("chunk_rows", cut({301, 900}, {mh.Shard(0)}), gz) end,
  chunk_uneven = function() write("chunk_uneven", cut({301, 900}, {mh.Shard(1, sizes(700, 900))}), gz) end,
  chunk_empty = function() write("chunk_empty", cut({301, 900}, {mh.Shard(0, sizes(301, 301))}), gz) end,
  chunk_copies = function() write("chunk_copies", cut({301, 900}, {mh.Replicate()}), {chunks = {50, 50}}) end,
  compressed = function() write("compressed", cut({301, 900}, {mh.Shard(0)}), {compression = 1}) end,
  -- Rounds of 32 MiB: the next one follows the first.
  rounds = function() write("rounds", cut({40, 500, 500}, {mh.Shard(2)}), {chunks = {1, 250, 500}}) end,
  grid = function()
    if not grid then return end
    write("grid", cut({601, 700}, {mh.Shard(0), mh.Shard(1)}, grid))
    write("grid_chunks", cut({301, 900}, {mh.Replicate(), mh.Shard(1)}, grid), gz)
  end,
  appended = function()  -- each step goes on in a chunk that is full in part
    local file <close> = mh.h5.open(path "appended.h5", "a")
    file:append("x", cut({30, 900}, {mh.Shard(1)}), {chunks = {64, 900}, compression = 1})
    file:append("loss", mh.tensor{1.0})
  end,
  several = function()  -- plain tensors, attributes, dims, and what is written before all ranks know the file
    local file <close> = mh.h5.open(path "several.h5", "w")
    file:write("lat", mh.arange(300, {dtype = "float64"}), {dims = {"lat"}, attrs = {units = "degrees_north"}})
    file:write("turned", mh.zeros{300, 900}:transpose(0, 1))
    file:write("u", cut({300, 900}, {mh.Shard(0)}), {dims = {"lat", "lon"}, attrs = {units = "m s-1"}})
    file:set_attr("title", "winds")
    file:write("group/v", cut({300, 900}, {mh.Shard(1)}))
    file:write("plain", mh.zeros{300, 900})
    file:write("u", cut({300, 900}, {mh.Shard(1)}), {dims = {"lat", "lon"}, replace = true})
    file:flush()
  end,
  copied = function()
    local source <close> = mh.h5.open(path "source.h5")
    local file <close> = mh.h5.open(path "copied.h5", "w")
    for _, name in ipairs {"a", "b"} do
      file:write(name, cut({3000, 90}, {mh.Shard(0)}), {like = source.x})
    end
  end,
  part = function()
    if not grid then return end
    local file <close> = mh.h5.open(path(("part%d.h5"):format(grid:coordinate "rows")), "w")
    file:write("x", cut({601, 700}, {mh.Shard(1)}, grid["columns"]))
  end,
  checkpoint = function(net, optimizer, stored)
    mh.checkpoint.save(path "checkpoint", {net = net, optimizer = optimizer, stored = stored, step = step})
  end,
  plain_model = function(_, _, stored)
    mh.checkpoint.save(path "plain_model", {stored = stored, plain = mh.zeros{300, 900}:transpose(0, 1),
      sums = mh.from_local(mh.zeros{300, 900}, line, {mh.Partial()}), turned = cut({901, 300}, {mh.Shard(1)}):t()})
  end,
  background = function(net, optimizer, stored)
    local state = {net = net, optimizer = optimizer, stored = stored}
    mh.checkpoint.save(path(("background%03d"):format(step)), state, {async = true})
  end,
  waited = function(_, _, stored)
    mh.checkpoint.save(path "waited", {stored = stored}, {async = true}):wait()
  end,
  files = function(net, _, stored)
    mh.checkpoint.save(path "files", {net = net, stored = stored}, {max_file_bytes = 100000})
  end,
  per_rank = function(net, optimizer, stored)
    mh.checkpoint.save(path "per_rank", {net = net, optimizer = optimizer, stored = stored}, {layout = "per_rank"})
  end,
  per_rank_background = function(_, _, stored)
    mh.checkpoint.save(path(("own%03d"):format(step)), {stored = stored}, {layout = "per_rank", async = true})
  end,
  kept = function(net)
    mh.checkpoint.save(path(("kept%d/step%03d"):format(ranks, step)), {net = net}, {keep = 2})
  end,
  kept_own = function(net)
    mh.checkpoint.save(path(("kept%d/own%03d"):format(ranks, step)), {net = net}, {keep = 2, layout = "per_rank"})
  end,
  parts = function(_, _, stored)  -- of this rank alone
    mh.files.write_npy(path(("part%d.npy"):format(mh.rank())), mh.zeros{300, 400}:t())
    mh.safetensors.save(path(("part%d.safetensors"):format(mh.rank())), {a = mh.zeros{300, 400}})
    mh.save_pt(path(("part%d.pt"):format(mh.rank())), {a = stored.bias:full_tensor(), b = mh.zeros{300, 400}})
  end,
}

if arg[2] == "source" then
  local file <close> = mh.h5.open(path "source.h5", "w")
  file:write("lat", mh.arange(3000, {dtype = "float64"}), {dims = {"lat"}})
  file:write("x", mh.zeros{3000, 90}, {dims = {"lat", "lon"}, attrs = {units = "K"}})
  return
end

local stored = stored_model()
collectgarbage()
local net = mh.nn.Linear(16, 16)
mh.replicate(net, {mesh = line})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
for _ = 1, 100 do
  collectgarbage()
  step = step + 1
  optimizer:zero_grad()
  net(mh.local_batch(mh.zeros{40, 16})):square():mean():backward()
  for i = 2, #arg do
    kWrites[arg[i]](net, optimizer, stored)
    collectgarbage()
  end
  optimizer:step()
end
