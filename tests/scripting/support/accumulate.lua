-- SPDX-License-Identifier: Apache-2.0
-- N47: mh.accumulate on the ranks of a run, against one batch of all samples on one rank.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local tests = {}
local kF64 = {dtype = "float64"}
local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"dp"})

local function network()
  mh.manual_seed(1)
  return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)):double()
end

--- Seven batches of five samples: as a whole, and this rank's rows, of which the last rank has none.
local function batches(own)
  mh.manual_seed(2)
  local list, rows = {}, ({{5}, {3, 2}, {4, 1, 0}})[ranks]
  local begin = 0
  for rank = 1, mesh.rank do begin = begin + rows[rank] end
  for i = 1, 7 do
    local x = mh.randn({5, 4}, kF64)
    list[i] = own and mh.local_batch(x:narrow(0, begin, rows[mesh.rank + 1]), mesh) or x
  end
  return list
end

local function values_of(net)
  local found = {}
  for name, p in net:named_parameters() do
    found[name] = p:is_shard_tensor() and p:detach():full_tensor() or p:detach()
  end
  return found
end
local function loss_of(y) return y:square():mean() end

--- Steps over three, three and one of the batches, each of their mean.
local function expected()
  local net, all = network(), batches(false)
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.05})
  for _, group in ipairs {{1, 2, 3}, {4, 5, 6}, {7}} do
    opt:zero_grad()
    local total = 0
    for _, i in ipairs(group) do total = total + loss_of(net(all[i])) end
    local mean = total / #group
    mean:backward()
    opt:step()
  end
  return values_of(net)
end

local kWays = {
  plain = function(net) return net end,
  replicate = function(net) return mh.replicate(net, {mesh = mesh}) end,
  fully_shard = function(net) return mh.fully_shard(net, {mesh = mesh, min_numel = 1}) end,
  kept = function(net)
    return mh.fully_shard(net, {mesh = mesh, min_numel = 1, reshard_after_forward = false,
        reshard_after_backward = false})
  end,
}

for way, place in pairs(kWays) do
  tests["test_N47_steps_are_those_of_the_mean_of_their_batches_" .. way] = function()
    local net = place(network())
    local opt = mh.optim.AdamW(net:parameters(), {lr = 0.05})
    local indices, lasts = {}, {}
    for micro, batch in mh.accumulate(3, net, batches(true)) do
      local loss = micro:backward(loss_of(net(batch)))
      testing.assert_equal({loss.requires_grad, loss:numel()}, {false, 1})
      indices[#indices + 1], lasts[#lasts + 1] = micro.index, micro.last
      if micro.last then
        opt:step()
        opt:zero_grad()
      end
    end
    testing.assert_equal(indices, {1, 2, 3, 1, 2, 3, 1})
    testing.assert_equal(lasts, {false, false, true, false, false, true, true})
    testing.assert_all_close(values_of(net), expected())
  end
end

-- Nothing is sent for gradients but with the last batch of a step.
function tests.test_N47_sums_travel_once_a_step()
  local net = kWays.fully_shard(network())
  local x, sent = batches(true), {}
  for micro, batch in mh.accumulate(3, net, {x[1], x[2], x[3]}) do
    local loss = loss_of(net(batch))
    local before = mh.comm_stats().by_kind.exchange.messages
    micro:backward(loss)
    sent[micro.index] = mh.comm_stats().by_kind.exchange.messages - before
  end
  local gathers = ranks - 1  -- of the unit's parameters
  testing.assert_equal({sent[1], sent[2], sent[3] > gathers}, {gathers, gathers, ranks > 1})
end

-- An iterator's state at the end of a step is that of the batches trained with.
function tests.test_N47_iterators_are_read_ahead_within_a_step_alone()
  local net, asked = network(), 0
  local function count(state, control)
    testing.assert_equal({state, control}, {"state", asked})
    asked = asked + 1
    if asked <= 5 then return asked, asked * 10 end
  end
  local seen = {}
  for micro, i, ten in mh.accumulate(2, net, count, "state", 0) do
    testing.assert_equal(ten, i * 10)
    seen[#seen + 1] = asked
    micro:backward(loss_of(net(mh.ones({1, 4}, kF64))))
  end
  testing.assert_equal(seen, {2, 2, 4, 4, 6})
end

function tests.test_N47_mistakes_in_accumulation()
  local net = network()
  testing.assert_error(function() mh.accumulate(0, net, {}) end,
      "accumulate: expected the number of batches for a step, got 0")
  testing.assert_error(function() mh.accumulate(2, {}, {}) end, "accumulate: expected the module that is trained")
  testing.assert_error(function() mh.accumulate(2, net) end,
      "accumulate: expected what `for` goes through, or a list of batches, got nil")
  testing.assert_error(function() mh.accumulate(2, {net, 3}, {}) end, "accumulate: module 2 is 3")
  for micro in mh.accumulate(2, net, {1}) do
    testing.assert_error(function() micro:backward(mh.ones{2}) end, "backward takes the loss of a batch, one number")
  end
end

return tests
