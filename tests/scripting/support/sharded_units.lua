-- SPDX-License-Identifier: Apache-2.0
-- Networks of units of fully_shard, and their copies, for fully_shard_units_ranks3.lua and fully_shard_sums_ranks3.lua.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local kF64 = {dtype = "float64"}
local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"dp"})
local units = {
  mesh = mesh, count = 4,  -- three blocks and what stands around them
  settings = {
    {reshard_after_forward = true, reshard_after_backward = true},
    {reshard_after_forward = false, reshard_after_backward = true},
    {reshard_after_forward = false, reshard_after_backward = false},
  },
}

-- ---- A model of units -----------------------------------------------------------------------------------------------

local Block = nn.Module:extend("Block")
function Block:init()
  self.norm, self.fc1, self.fc2 = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)
  self.unused, self.frozen = nn.Linear(2, 9), nn.Linear(6, 6)
  for _, p in ipairs(self.frozen:parameters()) do p:requires_grad_(false) end
end
function Block:forward(x) return self.frozen(x) + self.fc2(mh.gelu(self.fc1(self.norm(x)))) end

local Net = nn.Module:extend("Net")
function Net:init()
  self.embed, self.blocks, self.head = nn.Linear(4, 6), nn.ModuleList{Block(), Block(), Block()}, nn.Linear(6, 2)
  self.again, self.segments, self.turn = false, false, 0
end
function Net:forward(x)
  local h = self.embed(x)
  for i = 0, 2 do h = self.segments and mh.checkpoint(self.blocks[i], h) or self.blocks[i](h) end
  if self.again then h = self.blocks[0](h) end
  return self.head(h)
end

function units.whole(tensor) return tensor:is_shard_tensor() and tensor:detach():full_tensor() or tensor:detach() end

function units.new(op, options, shares)
  mh.manual_seed(1)
  local net = Net():double()
  if shares ~= false then net.blocks[2].fc1.weight = net.blocks[0].fc1.weight end  -- by two units
  local given = {mesh = mesh, min_numel = op == "fully_shard" and 1 or nil}
  for key, value in pairs(options) do given[key] = value end
  for i = 0, 2 do mh[op](net.blocks[i], given) end
  return mh[op](net, given)
end
function units.replicated() return units.new("replicate", {}) end
--- This rank's samples: uneven, the last rank has none.
function units.mine(seed)
  mh.manual_seed(seed or 2)
  local x = mh.randn({7, 5, 4}, kF64)
  local rows = ({[2] = {5, 2}, [3] = {4, 3, 0}, [4] = {3, 1, 3, 0}})[ranks]
  local begin = 0
  for rank = 1, mesh.rank do begin = begin + rows[rank] end
  return mh.local_batch(x:narrow(0, begin, rows[mesh.rank + 1]), mesh)
end

function units.gradients(net)
  local seen = {}
  for name, p in net:named_parameters() do seen[name] = p.grad and units.whole(p.grad) end
  return seen
end

--- Parameters after three steps, and the gradients of the first.
function units.train(net, passes, optimizer)
  passes = passes or function(model) model(units.mine()):square():mean():backward() end
  local opt = mh.optim[optimizer or "AdamW"](net:parameters(), {lr = 0.05})
  local seen = {}
  for step = 1, 3 do
    opt:zero_grad()
    passes(net, opt)
    opt:sync_shard_grad()
    if step == 1 then seen.gradients = units.gradients(net) end
    opt:step()
  end
  for name, p in net:named_parameters() do seen[name] = units.whole(p) end
  return seen
end

function units.messages_of(fn)
  local before = mh.comm_stats().by_kind.exchange.messages
  fn()
  return mh.comm_stats().by_kind.exchange.messages - before
end

-- ---- Types ----------------------------------------------------------------------------------------------------------

local Half = nn.Module:extend("Half")
function Half:init() self.first, self.blocks = nn.Linear(4, 6), nn.ModuleList{nn.Linear(6, 6), nn.Linear(6, 6)} end
function Half:forward(x)
  testing.assert_equal({x.dtype, self.first.weight.dtype}, {"bfloat16", "bfloat16"})
  local h = self.first(x)
  for i = 0, 1 do h = mh.tanh(self.blocks[i](h)) end
  return h
end

function units.halves(options)
  mh.manual_seed(1)
  local net = Half()
  local given = {mesh = mesh, min_numel = 1, mp_policy = {param_dtype = "bfloat16"}}
  for key, value in pairs(options) do given[key] = value end
  for i = 0, 1 do mh.fully_shard(net.blocks[i], given) end
  return mh.fully_shard(net, given)
end

return units
