-- SPDX-License-Identifier: Apache-2.0
-- X12, S11, N39: a run that is saved on some ranks and continued on others, with other cuts of data and weights. With
-- --set folder=PATH: `save` (the default) trains, saves half way and writes down the losses of the uninterrupted run;
-- --set resume=true continues from the folder and fails where a loss differs from those.
local mh = require "moonhalo"
local nn = mh.nn
local S, R = mh.Shard, mh.Replicate

local cfg = mh.config {folder = "", resume = false}
local kF64, kSteps = {dtype = "float64"}, 3
local ranks = mh.world_size()
local mesh = ranks == 4 and mh.init_device_mesh(mh.device(), {2, 2}, {"rows", "tp"})
    or mh.init_device_mesh(mh.device(), {ranks}, {"rows"})

--- The placements of tensors: on 4 ranks on a grid, on 3 in uneven rows and weights in uneven blocks, on 2 and 1
--- otherwise.
local kCuts = {
  [4] = {data = {S(2, {7, 2}), R()}, place = {S(1, {3, 6}), R()}, conv = {R(), S(0)}, linear = {S(0), S(1)}},
  [3] = {data = {S(3, {1, 4, 1})}, place = {S(2, {4, 0, 2})}, conv = {S(0, {1, 0, 5})}, linear = {S(1)}},
  [2] = {data = {S(2, {1, 8})}, place = {S(1, {1, 8})}, conv = {R()}, linear = {S(0)}},
  [1] = {data = {R()}, place = {S(1)}, conv = {S(1)}, linear = {R()}},
}
local cuts = assert(kCuts[ranks], "resume.lua runs on 1 to 4 ranks")

local Net = nn.Module:extend("Net")
function Net:init()
  self.enter = nn.Conv2d(2, 6, 3, {padding = 1})
  self.place = nn.Parameter(mh.randn({6, 9, 6}))  -- a positional embedding, cut as the field is
  self.drop = nn.Dropout(0.3)
  self.leave = nn.Linear(6, 2)
end
function Net:forward(x)
  local h = self.drop((self.enter(x) + self.place):gelu())
  return self.leave(h:permute{0, 2, 3, 1}):permute{0, 3, 1, 2}
end

mh.manual_seed(3)
local net = Net():double()
mh.parallelize_module(net, mesh, {parameter = {place = cuts.place, ["enter.weight"] = cuts.conv,
    ["enter.bias"] = cuts.conv[2]
  and {R(), cuts.conv[2]} or nil, ["leave.weight"] = cuts.linear}})
local opt = mh.optim.AdamW(net:parameters(), {lr = 0.02})
local data = mh.distribute_tensor(mh.randn({8, 2, 9, 6}, kF64), mesh, cuts.data)
local state = {model = net, optimizer = opt, generator = mh.default_generator()}

local function train()
  local losses = {}
  for step = 1, kSteps do
    local chosen = data:index_select(0, mh.randperm(8):narrow(0, 0, 5))  -- the order of data is part of the run
    opt:zero_grad()
    local loss = (net(chosen) - chosen:tanh()):square():mean()
    loss:backward()
    opt:step()
    losses[step] = loss:item()
  end
  return losses
end

if not cfg.resume then
  train()
  mh.checkpoint.save(cfg.folder .. "/checkpoint", state)
  local losses = train()
  local whole = {place = net.place, weight = net.leave.weight}
  mh.checkpoint.save(cfg.folder .. "/expected", {losses = losses, place = whole.place, weight = whole.weight})
  return
end

mh.manual_seed(100 + ranks)
mh.no_grad(function()  -- what is not loaded would be seen
  for _, p in net:named_parameters() do p:zero_() end
end)
mh.checkpoint.load(cfg.folder .. "/checkpoint", state)
-- S11: the file holds the whole embedding; here it is cut again, as this run needs it.
local saved = mh.checkpoint.load(cfg.folder .. "/checkpoint").model.place
assert(not saved:is_shard_tensor() and saved.shape[2] == 9 and mh.equal(saved, net.place:detach():full_tensor()))
assert(net.place:is_shard_tensor() and net.place.placements[1].dim == cuts.place[1].dim)
local expected, losses = mh.checkpoint.load(cfg.folder .. "/expected"), train()
local function close(name, have, want)
  local worst = ((have - want):abs() / want:abs():clamp_min(1e-3)):max():item()
  assert(worst <= 1e-10, ("%s differs by %.1e on %d ranks"):format(name, worst, ranks))
end
close("losses", mh.tensor(losses, kF64), mh.tensor(expected.losses, kF64))
close("the embedding", net.place:detach():full_tensor(), expected.place)
close("the weights", net.leave.weight:detach():is_shard_tensor() and net.leave.weight:detach():full_tensor()
  or net.leave.weight:detach(), expected.weight)
if mh.rank() == 0 then print(("continued on %d ranks"):format(ranks)) end
