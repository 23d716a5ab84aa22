-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * the script of a simulation code (heat.c, heat.f90, in_transit.c): it owns model, loss and optimizer
--  * mh.host.fields.u is the solver's array, in place: each rank's block of it, without the ghosts
--  * one script for any number of ranks; the solver saves and restores it by mh.host.state
--  * the same training on ranks of its own, from snapshots, while the solver goes on (trainers=1)
local mh = require "moonhalo"

local config = mh.config {lr = 1e-2, trainers = 0}
local fields = mh.host.fields

-- The network: the field plus a linear 5 x 5 stencil, as wide as two steps of the solver reach.
local stencil = mh.nn.Conv2d(1, 1, 5, {padding = 2, bias = false}):double()
mh.no_grad(function() stencil.weight:zero_() end)
local optimizer = mh.optim.Adam(stencil:parameters(), {lr = config.lr})
mh.host.state = {stencil = stencil, optimizer = optimizer}

local function forward(u)
  local image = u:unsqueeze(0):unsqueeze(0)
  return (image + stencil(image)):squeeze(0):squeeze(0)
end

local before

--- The field as it is before the solver goes on.
function remember() before = fields.u:clone() end

--- One step of training: from what was remembered to what the solver made of it. Returns the loss.
function learn()
  optimizer:zero_grad()
  local loss = mh.mse_loss(forward(before), fields.u)
  loss:backward()
  optimizer:step()
  return loss
end

--- In place of the solver: two of its steps at once, written into its array.
function leap()
  mh.no_grad(function() fields.u:copy_(forward(fields.u)) end)
end

--- Root mean square of the field, and of its distance from what was remembered.
function measure()
  local u = fields.u
  return u:square():mean():sqrt(), (u - before):square():mean():sqrt()
end

-- ---- On ranks of its own (in_transit.c) ---------------------------------------------------------------------------

local function learn_from_snapshot()
  before = fields.before
  for _ = 1, 20 do learn() end
end

local trainers = config.trainers > 0 and mh.host.trainers {
  ranks = config.trainers, every = 1, fields = {"before", "u"}, weights = stencil, learn = learn_from_snapshot}

--- After a leap of the solver: 1 if newer weights have come. Sends the fields when the trainers are free.
function send() return trainers:step() and 1 or 0 end

--- The last weights, after which the trainers end.
function finish() trainers:finish() end

--- Trainers: learn from snapshots until the solver has finished. Returns the number of snapshots.
function serve() return trainers:serve() end
