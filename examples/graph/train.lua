-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * message passing on a mesh of triangles whose nodes and edges are cut: an edge is on the rank of its target
--  (mh.cut_graph)
--  * what is sent: of each layer the rows of nodes at the borders of blocks, forward and backward, and nothing else
--  * losses that do not depend on the ranks, in blocks as uneven as the mesh is
--
-- Heat spreads along the edges of a mesh of 2,400 points, faster where edges conduct better. A network that passes
-- messages (MeshGraphNet: T. Pfaff et al., arXiv:2010.03409) learns what ten steps of the solver do.
--
--     ./dev run examples/graph/train.lua --ranks 4 [--set steps=50] [--log run.jsonl]

local mh = require "moonhalo"
local nn = mh.nn

local cfg = mh.config {
  steps = 60,        -- optimizer steps
  layers = 4,        -- rounds of messages: how far a node sees
  width = 24,        -- features of a node and of an edge
  lr = 3e-3,
  dtype = "float32",
  seed = 5,
}
local kRows, kColumns, kSolverSteps = 60, 40, 10

local clock = mh.clock()
mh.manual_seed(cfg.seed)
local rank, ranks = mh.rank(), mh.world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"strip"})

-- ---- The mesh of triangles: plain, the same on every rank -----------------------------------------------------------

local sources, targets = {}, {}
local function join(a, b)  -- both ways
  sources[#sources + 1], targets[#targets + 1] = a, b
  sources[#sources + 1], targets[#targets + 1] = b, a
end
for row = 0, kRows - 1 do
  for column = 0, kColumns - 1 do
    local node = row * kColumns + column
    if column + 1 < kColumns then join(node, node + 1) end
    if row + 1 < kRows then join(node, node + kColumns) end
    if row + 1 < kRows and column + 1 < kColumns then join(node, node + kColumns + 1) end
  end
end
local edges = mh.tensor({sources, targets}, {dtype = "int64"})
local nodes, links = kRows * kColumns, edges.shape[2]
-- Two edges that join the same nodes, one in each direction, conduct equally well.
local conductance = (mh.rand({links // 2, 1}, {dtype = cfg.dtype}) * 0.9 + 0.1):repeat_interleave(2, 0)
local heat = mh.rand({nodes, 1}, {dtype = cfg.dtype})

-- ---- Blocks: nodes in strips, every edge with its target ------------------------------------------------------------

local v = mh.distribute_tensor(heat, mesh, {mh.Shard(0)})
local order, sizes = mh.cut_graph(edges, v)
local by_edges = {mh.Shard(0, sizes)}
local function of_edges(plain) return mh.distribute_tensor(plain:index_select(0, order), mesh, by_edges) end
-- Made once: what is asked for by an index is found out when it is used first, and kept as long as the index is.
local source, target = of_edges(edges[0]), of_edges(edges[1])
conductance = of_edges(conductance)

--- Adds up in every node what flows along the edges to it.
local function gather_flow(like, flow) return mh.zeros_like(like):index_add(0, target, flow) end

local after = mh.no_grad(function()
  local u = v
  for _ = 1, kSolverSteps do
    u = u + 0.1 * gather_flow(u, conductance * (u:index_select(0, source) - u:index_select(0, target)))
  end
  return u
end)

-- ---- The network ----------------------------------------------------------------------------------------------------

local function mlp(inputs)
  return nn.Sequential(nn.Linear(inputs, cfg.width), nn.GELU(), nn.Linear(cfg.width, cfg.width),
      nn.LayerNorm(cfg.width))
end

local Layer = nn.Module:extend("Layer")
function Layer:init()
  self.of_edge, self.of_node = mlp(3 * cfg.width), mlp(2 * cfg.width)
end
function Layer:forward(u, e)
  e = e + self.of_edge(mh.cat({u:index_select(0, source), u:index_select(0, target), e}, 1))
  return u + self.of_node(mh.cat({u, gather_flow(u, e)}, 1)), e
end

local Net = nn.Module:extend("Net")
function Net:init()
  self.node, self.edge, self.head = mlp(1), mlp(1), nn.Linear(cfg.width, 1)
  self.layers = nn.ModuleList{}
  for _ = 1, cfg.layers do self.layers:append(Layer()) end
end
function Net:forward(u, e)
  local h, f = self.node(u), self.edge(e)
  for _, layer in self.layers:each() do h, f = layer(h, f) end
  return u + self.head(h)
end

local net = Net():to(cfg.dtype)
local opt = mh.optim.AdamW(net:parameters(), {lr = cfg.lr})

-- ---- Training -------------------------------------------------------------------------------------------------------

local function train_step()
  local loss = mh.mse_loss(net(v, conductance), after)
  opt:zero_grad()
  loss:backward()
  opt:step()
  return loss:item()
end

local first, last
local began = mh.clock()
for step in mh.progress(cfg.steps, {desc = "train"}) do
  last = train_step()
  first = first or last
  mh.log {step = step, loss = last}
end
local step_ms = (mh.clock() - began) / cfg.steps * 1000

-- Counts what rank 0 sends for messages, in rows of nodes: its last row of points is read by the next strip.
local sent = 0
local _, records = mh.op_trace(train_step)
for _, record in ipairs(records) do
  if record.op:find("aten::index", 1, true) then sent = sent + record.bytes end
end
local row_bytes = cfg.width * (cfg.dtype == "float64" and 8 or 4)
say("%d nodes in strips of %s, %d edges in blocks of %s", nodes, table.concat(v:shard_sizes(0), " + "), links,
    table.concat(sizes, " + "))
say("rank 0 sends %.0f rows a layer, forward and backward together, of its %d", sent / row_bytes / cfg.layers,
    v:shard_sizes(0)[1])
say("loss %.3g -> %.3g in %d steps of %.0f ms; %.1f s in all", first, last, cfg.steps, step_ms, mh.clock() - clock)
