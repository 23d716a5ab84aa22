-- SPDX-License-Identifier: Apache-2.0
-- V01: one script, written as for one device, whose losses are those of plain tensors on any number of ranks. It is run
-- on plain tensors (--set plain=true) and on 1, 2, 3 and 4 ranks; compare_losses.lua compares the logs.
local mh = require "moonhalo"
local nn, F = mh.nn, mh.functional

local cfg = mh.config {
  steps = 5,
  dtype = "float64",
  dropout = 0.0,
  plain = false,  -- the reference: no ShardTensor anywhere
}

local Net = nn.Module:extend("Net")
function Net:init()
  self.enter = nn.Conv2d(3, 8, 5, {padding = 2, stride = 2})
  self.norm = nn.GroupNorm(2, 8)
  self.attention = nn.MultiheadAttention(8, 2, {batch_first = true})
  self.drop = nn.Dropout(cfg.dropout)
  self.up = nn.ConvTranspose2d(8, 4, 3, {stride = 2, padding = 1})
  self.batch_norm = nn.BatchNorm2d(4)
  self.leave = nn.Linear(4, 2)
end
function Net:forward(x)
  local h = F.gelu(self.norm(self.enter(x)))
  local tokens = h:flatten(2):transpose(1, 2)
  tokens = tokens + self.drop((self.attention(tokens, tokens, tokens, {need_weights = false})))
  h = self.up(tokens:transpose(1, 2):reshape(h.shape))
  return self.leave(self.batch_norm(h):permute{0, 2, 3, 1}):permute{0, 3, 1, 2}
end

mh.manual_seed(3)
local net = Net():to(cfg.dtype)
local x, y = mh.randn({2, 3, 15, 9}, {dtype = cfg.dtype}), mh.randn({2, 2, 15, 9}, {dtype = cfg.dtype})
if not cfg.plain then
  -- Rows 1, 2, 3 ... and the rest: uneven, whatever the ranks.
  local ranks, sizes, rest = mh.world_size(), {}, 15
  for r = 1, ranks do
    sizes[r] = r == ranks and rest or r
    rest = rest - sizes[r]
  end
  local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"rows"})
  x, y = mh.distribute_tensor(x, mesh, {mh.Shard(2, sizes)}), mh.distribute_tensor(y, mesh, {mh.Shard(2, sizes)})
end

local opt = mh.optim.AdamW(net:parameters(), {lr = 0.01})
for step = 1, cfg.steps do
  opt:zero_grad()
  local loss = mh.mse_loss(net(x), y)
  loss:backward()
  opt:step()
  mh.log {step = step, loss = loss:item()}
end
