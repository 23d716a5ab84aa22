-- SPDX-License-Identifier: Apache-2.0
-- Opened by host_trainers.c: a network that is trained on other ranks than those that solve. X15
local mh = require "moonhalo"

local config = mh.config {trainers = 0, fails = "", waits_for = ""}
local fields = mh.host.fields

mh.manual_seed(5)
local net = mh.nn.Conv2d(1, 1, 3, {padding = 1}):double()
net:register_buffer("seen", mh.zeros({1}, {dtype = "float64"}))
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.01})

--- One step of training towards `factor` times the field, over all ranks that have the field.
function learn(factor)
  while config.waits_for ~= "" do
    local file = io.open(config.waits_for)
    if file then
      file:close()
      break
    end
  end
  if config.fails == "all" or config.fails == "last" and mh.rank() == mh.world_size() - 1 then
    error("the learning rate is negative")
  end
  local u = fields.u:to("float64"):unsqueeze(0):unsqueeze(0)
  optimizer:zero_grad()
  local loss = mh.mse_loss(net(u), factor * u) + fields.c:mean()
  loss:backward()
  optimizer:step()
  mh.no_grad(function() net.seen:add_(factor) end)
  if config.fails == "late" and mh.rank() == 0 then error("the learning rate is negative") end
end

local trainers = config.trainers > 0
  and mh.host.trainers {ranks = config.trainers, every = 2, fields = {"u", "c"}, weights = net, learn = learn}

function trains() return trainers.trains and 1 or 0 end
function step(factor) return trainers:step(factor) and 1 or 0 end
function finish() return trainers:finish() and 1 or 0 end
function serve() return trainers:serve() end
function ranks() return mh.world_size() end
function learned() return net.weight:detach():abs():sum() + net.bias:detach():sum(), net.seen end
function too_late() mh.host.trainers {ranks = 1, every = 1, fields = {"u"}, weights = net, learn = learn} end

