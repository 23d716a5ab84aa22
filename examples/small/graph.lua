-- SPDX-License-Identifier: Apache-2.0
-- One round of messages on a ring of nodes. Every edge is on the rank of its target; only rows at borders are sent.
local mh = require "moonhalo"
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"nodes"})

local n = 12
local from = mh.cat{mh.arange(n), mh.arange(n)}
local to = mh.cat{mh.arange(1, n + 1), mh.arange(-1, n - 1)}:remainder(n)
local edges = mh.stack{from, to}
local v = mh.distribute_tensor(mh.arange(12.0):square():unsqueeze(1), mesh, {mh.Shard(0)})

local order, sizes = mh.cut_graph(edges, v)
edges = edges:index_select(1, order)
local source = mh.distribute_tensor(edges[0], mesh, {mh.Shard(0, sizes)})
local target = mh.distribute_tensor(edges[1], mesh, {mh.Shard(0, sizes)})

local messages = v:index_select(0, source) - v:index_select(0, target)
local sums = mh.zeros_like(v):index_add(0, target, messages)
print(sums["1:4, 0"]:tolist(), sums:sum():item())  --> {2.0, 2.0, 2.0}  0.0
