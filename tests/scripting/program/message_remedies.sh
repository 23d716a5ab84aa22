#!/usr/bin/env bash
# X14: `moonhalo plan` names the cause of messages and of uneven work, and advises only what changes something.
# usage: message_remedies.sh PROGRAM
# Each script is planned, changed as the remedy says, and planned again.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > field.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local rows, columns, height, width = table.unpack(arg)
local mesh = mh.init_device_mesh("cpu", {tonumber(rows), tonumber(columns)}, {"rows", "columns"})
local net = nn.Sequential(nn.Conv2d(3, 16, 5, {padding = 2}), nn.GELU(), nn.Conv2d(16, 1, 5, {padding = 2}))
mh.distribute_module(net, mesh)
local x = mh.zeros({1, 3, tonumber(height), tonumber(width)}, {mesh = mesh, placements = {mh.Shard(2), mh.Shard(3)}})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
LUA

cat > wide.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"data"})
local net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
if arg[1] == "stored" then
  mh.fully_shard(net, {mesh = mesh, reshard_after_forward = arg[2] ~= "once"})
else
  mh.distribute_module(net, mesh)
end
local x = mh.zeros({4096, 256}, {mesh = mesh, placements = {mh.Shard(0)}})
local optimizer = mh.build_optimizer(net, mh.optim.SGD, {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
LUA

cat > decoder.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"data"})
local net = nn.TransformerDecoderLayer(64, 4, 2048)
mh.fully_shard(net, {mesh = mesh})
local x = mh.zeros({16, 32, 64}, {mesh = mesh, placements = {mh.Shard(1)}})
local optimizer = mh.build_optimizer(net, mh.optim.SGD, {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  net(x, x * 2):square():mean():backward()
  optimizer:step()
end
LUA

cat > stages.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"pp"})
local stages = {}
for i = 1, mh.world_size() do stages[i] = nn.Sequential(nn.Linear(64, 64), nn.GELU()) end
local pipe = mh.pipeline(nn.Sequential(table.unpack(stages)), {mesh = mesh, micros = 4})
local samples = {}
for i = 1, 4 do samples[i] = mh.zeros{256, 64} end
local optimizer = mh.optim.SGD(pipe:parameters(), {lr = 1e-3})
for _ = 1, 3 do
  pipe:train_step(samples, function(y) return y:square():mean() end)
  optimizer:step()
end
LUA

cat > tokens.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {4, 4}, {"rows", "columns"})
local embed, layer = nn.Conv2d(3, 64, 16, {stride = 16}), nn.TransformerEncoderLayer(64, 4, 256, {batch_first = true})
local net = nn.ModuleList{embed, layer}
mh.distribute_module(net, mesh)
local x = mh.zeros({2, 3, 128, 128}, {mesh = mesh, placements = {mh.Shard(2), mh.Shard(3)}})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  local tokens = embed(x)
  -- before dims are merged
  layer(tokens:flatten(2):transpose(1, 2)):square():mean():backward()
  optimizer:step()
end
LUA

cat > sums.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"ranks"})
local net = nn.Sequential()
for _ = 1, arg[1] == "metrics" and 1 or 6 do
  net:append(nn.Conv2d(8, 8, 3, {padding = 1}))
  if arg[1] ~= "metrics" then net:append(nn.GroupNorm(2, 8)) end
end
mh.distribute_module(net, mesh)
local x = mh.zeros({8, 8, 64, 64}, {mesh = mesh, placements = {mh.Shard(arg[2] == "samples" and 0 or 2)}})
local optimizer = mh.optim.SGD(net:parameters(), {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  local y = net(x)
  y:square():mean():backward()
  optimizer:step()
  if arg[1] == "metrics" then
    local all = {}
    for i = 1, 12 do all[i] = (y * i):mean() end
    if arg[2] == "stacked" then mh.stack(all):full_tensor() else for _, one in ipairs(all) do one:full_tensor() end end
  end
end
LUA

cat > attention.lua <<'LUA'
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"tokens"})
local qkv = mh.nn.Linear(64, 192)
mh.distribute_module(qkv, mesh)
local tokens = tonumber(arg[1])
local x = mh.zeros({2, tokens, 64}, {mesh = mesh, placements = {mh.Shard(1)}})
local optimizer = mh.optim.SGD(qkv:parameters(), {lr = 1e-3})
for _ = 1, 3 do
  optimizer:zero_grad()
  local q, k, v = table.unpack(mh.chunk(qkv(x):reshape{2, tokens, 12, 16}:transpose(1, 2), 3, 1))
  if arg[2] == "gathered" then
    k, v = k:redistribute(mesh, {mh.Replicate()}), v:redistribute(mesh, {mh.Replicate()})
  end
  mh.scaled_dot_product_attention(q, k, v):square():mean():backward()
  optimizer:step()
end
LUA

fail() {
  echo "$1"
  cat report.txt
  exit 1
}
# plan SCRIPT RANKS [ARGUMENT ...]
plan() { "$program" plan "$1" --ranks "$2" --machine epyc -- "${@:3}" > report.txt; }
has() { grep -q "$1" report.txt || fail "not in the report: $1"; }
lacks() { ! grep -q "$1" report.txt || fail "in the report: $1"; }
# The bytes that the rank with the most sends, of "messages first ...: of B that rank R sends, A".
bytes() { sed -n 's/^  messages first .* of \([0-9.]* [kMG]*B\) that .*/\1/p' report.txt | awk '
  {print $1 * ($2 == "kB" ? 1e3 : $2 == "MB" ? 1e6 : $2 == "GB" ? 1e9 : 1)}'; }
# Fails unless the first number is less than the second.
less() { awk -v a="$1" -v b="$2" 'BEGIN {exit !(a < b)}' || fail "$1 bytes are sent, before $2"; }

# Long edges: another mesh of the same ranks.
plan field.lua 16 2 8 1024 256
has 'messages first edges of blocks'
has 'fix   make the mesh rows 8 x columns 2'
before=$(bytes)
plan field.lua 16 8 2 1024 256
lacks 'make the mesh'
less "$(bytes)" "$before"
# Blocks that are squares, or of one mesh dim: no other mesh is advised.
plan field.lua 16 4 4 512 512
lacks 'make the mesh'
lacks 'squares'
plan field.lua 8 8 1 512 512
lacks 'make the mesh'

# 10 rows on 4 ranks cannot be more even; 12 can, and rebalance changes neither.
plan field.lua 4 4 1 10 65536
has 'more computing than the mean'
has 'cannot be more even: use 8 or 12 rows'
lacks 'rebalance'
plan field.lua 4 4 1 12 65536
lacks 'cannot be more even'
lacks 'rebalance'

# Gradients are no gathers of blocks.
plan wide.lua 4 whole
has 'messages first sums of gradients'
has 'fix   more samples on each rank'
lacks 'keep one cut'
# Parameters are no edges and no blocks that move.
plan wide.lua 4 stored
has 'messages first parameters of fully_shard'
has 'reshard_after_forward = false gathers once a step'
lacks 'edges of blocks'
before=$(bytes)
plan wide.lua 4 stored once
less "$(bytes)" "$before"
# Rows of one parameter give queries, others keys and values: they are no blocks that move.
plan decoder.lua 4
has 'messages first parameters of fully_shard'
lacks 'keep one cut'
# What goes to the next stage are no edges.
plan stages.lua 4
has 'messages first tensors between stages of a pipeline'
lacks 'along the dims that are cut'
# Ranks without tokens behind flatten: rows for all ranks before it.
plan tokens.lua 16
has 'more computing than the mean.*; 8 of 16 ranks have none of 64 rows, which are cut along rows, columns'
has 'fix   give each rank rows before dims are merged (flatten, view): x:redistribute(mesh, placements)'
lacks 'edges on more sides'
sed 's/-- before dims are merged/tokens = tokens:redistribute(mesh, {mh.Shard(2), mh.Replicate()})/' tokens.lua > given.lua
plan given.lua 16
lacks 'ranks have none of'
lacks 'more computing than the mean'

# Statistics of norms are used at once: other dims are cut.
plan sums.lua 4 norms
has 'messages first .* of less than 64 KiB'
has 'so none can be put together'
lacks 'add up what several calls'
plan sums.lua 4 norms samples
lacks 'can be put together'
# What the script adds up is put together.
plan sums.lua 4 metrics
has 'messages first .* of less than 64 KiB'
has 'fix   add up what several calls give in one sum'
plan sums.lua 4 metrics stacked
lacks 'sums are of less than 64 KiB'

# Where a ring has many short steps, one gather is faster.
milliseconds() { sed -n 's/^  step  *\([0-9.]*\) ms .*/\1/p' report.txt; }
attention() { "$program" plan attention.lua --ranks "$1" --machine h100 -- "${@:2}" > report.txt; }
attention 32 2048
has 'time first .* steps of rings of 32 ranks, each of which starts operators'
has 'fix   gather once what passes around, such as keys and values of attention: redistribute them to Replicate'
ring=$(milliseconds)
attention 32 2048 gathered
lacks 'steps of rings'
less "$(milliseconds)" "$ring"
