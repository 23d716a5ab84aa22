-- SPDX-License-Identifier: Apache-2.0
-- Sums of the gradients of units of fully_shard and replicate: when they are made, in which type, and what sees them.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local units = require "support.sharded_units"

local tests = {}
local kSettings = units.settings
local new, replicated, mine, train = units.new, units.replicated, units.mine, units.train
local gradients, halves, kUnits = units.gradients, units.halves, units.count

function tests.test_N35_sums_are_made_in_the_type_asked_for()
  for _, dtype in ipairs {"float32", "bfloat16"} do
    local net = halves {mp_policy = {param_dtype = "bfloat16", reduce_dtype = dtype}}
    local opt, seen = mh.optim.SGD(net:parameters(), {lr = 0.1}), {}
    opt:register_reducer_pre_hook(function(flat) seen[flat.dtype] = true end)
    net(mine():float()):float():square():mean():backward()
    testing.assert_equal(seen, {[dtype] = true})
    testing.assert_equal(net.first.weight.grad.dtype, "float32")
  end
end

-- Gradients of two passes that are summed later, by whoever asks for it first.
function tests.test_N32_N35_sums_that_waited_keep_type_and_hooks()
  local ways = {
    step = function(_, opt) opt:step() end,
    sync_shard_grad = function(_, opt) opt:sync_shard_grad() end,
    clip_gnorm = function(_, opt) opt:clip_gnorm(1.0) end,
    clip_grad_norm = function(net) mh.clip_grad_norm(net:parameters(), 1.0) end,
    finish_grad_sync = function(net) mh.finish_grad_sync(net) end,
    last_pass = function(net)
      net:set_requires_gradient_sync(true)
      net(mine():float()):float():square():mean():backward()
    end,
  }
  for _, sum in pairs(ways) do
    for _, setting in ipairs {kSettings[1], kSettings[3]} do
      local net = halves {mp_policy = {param_dtype = "bfloat16", reduce_dtype = "bfloat16"},
        reshard_after_forward = setting.reshard_after_forward, reshard_after_backward = setting.reshard_after_backward}
      local opt, before, after = mh.optim.SGD(net:parameters(), {lr = 0.1}), {}, {}
      opt:register_reducer_pre_hook(function(flat) before[flat.dtype] = true end)
      opt:register_reducer_post_hook(function(flat) after[flat.dtype] = true end)
      net:set_requires_gradient_sync(false)
      for _ = 1, 2 do net(mine():float()):float():square():mean():backward() end
      testing.assert_equal({before, after}, {{}, {}})
      sum(net, opt)
      testing.assert_equal({before, after}, {{bfloat16 = true}, {bfloat16 = true}})
    end
  end
end

--- Six weights of 128 bytes, two in a bucket; the sizes of the buckets in order.
local function six(op)
  mh.manual_seed(1)
  local net = mh.nn.Sequential()
  for i = 0, 5 do net:append(mh.nn.Linear(4, 4, {bias = false})) end
  mh[op](net:double(), {mesh = units.mesh, min_numel = op == "fully_shard" and 1 or nil, bucket_cap_mb = 256 / 2 ^ 20})
  local opt, sizes = mh.optim.SGD(net:parameters(), {lr = 0.1}), {}
  opt:register_reducer_pre_hook(function(flat) sizes[#sizes + 1] = flat:numel() end)
  return net, opt, sizes
end

-- Gradients of an earlier pass, which were not summed, are sent with those of the last one, in the same buckets.
function tests.test_N35_N45_buckets_are_filled_anew_and_passes_share_them()
  for _, op in ipairs {"replicate", "fully_shard"} do
    local eager, opt, sizes = six(op)
    eager:set_requires_gradient_sync(true)
    eager(mine()):square():sum():backward()
    testing.assert_equal(sizes, {32, 32, 32})
    eager(mine(3)):square():sum():backward()
    opt:sync_shard_grad()

    local late
    late, opt, sizes = six(op)
    late:set_requires_gradient_sync(false)
    late(mine()):square():sum():backward()
    testing.assert_equal(sizes, {})
    local read <const> = late[0].weight.grad:detach()  -- shares the memory of the sum
    late:set_requires_gradient_sync(true)
    late(mine(3)):square():sum():backward()
    testing.assert_equal(sizes, {32, 32, 32})
    for _, parameter in ipairs(late:parameters()) do
      testing.assert_equal(parameter.grad.placements, parameter.placements)
    end
    opt:sync_shard_grad()
    testing.assert_all_close(gradients(late), gradients(eager))
  end
end

-- N32: what has been summed is not summed again.
function tests.test_N32_a_second_call_changes_and_sends_nothing()
  for _, op in ipairs {"replicate", "fully_shard"} do
    for _, sync in ipairs {function(_, opt) opt:sync_shard_grad() end, function(net) mh.finish_grad_sync(net) end} do
      local net, opt = six(op)
      net:set_requires_gradient_sync(false)
      net(mine()):square():sum():backward()
      sync(net, opt)
      local once, before = gradients(net), mh.comm_stats()
      for name, grad in pairs(once) do once[name] = grad:clone() end
      sync(net, opt)
      local after = mh.comm_stats()
      testing.assert_equal({after.bytes, after.messages}, {before.bytes, before.messages})
      testing.assert_equal(gradients(net), once)
    end
  end
end

function tests.test_N35_sums_of_a_unit_travel_before_backward_reaches_the_units_before_it()
  local net = new("fully_shard", kSettings[1])
  local opt, sent, seen = mh.optim.SGD(net:parameters(), {lr = 0.1}), 0, nil
  opt:register_reducer_pre_hook(function() sent = sent + 1 end)
  local x = mine()
  x:requires_grad_()
  x:register_hook(function() seen = sent end)  -- the last gradient of all

  net(x):square():mean():backward()

  testing.assert_equal({seen, sent}, {kUnits - 2, kUnits})  -- the first block ends with the module around it
end

function tests.test_N35_hooks_see_the_buckets_of_a_backward_pass()
  local function run(hooked)
    local net = new("fully_shard", kSettings[1])
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
    local before, after = 0, 0
    if hooked then
      opt:register_reducer_pre_hook(function(flat) before = before + 1 flat:mul_(2) end)
      opt:register_reducer_post_hook(function(flat) after = after + 1 flat:mul_(3) end)
    end
    net(mine()):square():mean():backward()
    local during = {before, after}
    opt:sync_shard_grad()  -- of copies
    return gradients(net), during
  end
  local expected = run(false)
  local seen, during = run(true)
  testing.assert_equal(during, {kUnits, kUnits})
  for name, grad in pairs(expected) do testing.assert_close(seen[name], grad * 6) end
end

-- Caught by the script, in an activation's hook or in those around sums, some of which are made when the pass ends.
function tests.test_N35_a_backward_that_fails_leaves_no_sums()
  local expected = train(replicated())
  local function stops_at(place)
    local count, stopped = 0, false
    return function()
      count = count + 1
      if count ~= place or stopped then return end
      stopped = true
      error("stop here")
    end
  end
  local kinds = {
    activation = function(net, _, place)
      if place > 3 then return end
      return net.blocks[place - 1]:register_forward_hook(function(_, _, y) y:register_hook(stops_at(1)) end)
    end,
    before_sum = function(_, opt, place) opt:register_reducer_pre_hook(stops_at(place)) end,
    after_sum = function(_, opt, place) opt:register_reducer_post_hook(stops_at(place)) end,
  }
  local function sums_of(net)  -- of blocks; those of copies wait for the optimizer
    local found = gradients(net)
    for name, p in net:named_parameters() do
      if p.placements[1]:is_replicate() then found[name] = nil end
    end
    return found
  end
  for kind, stop in pairs(kinds) do
    for place = 1, kUnits do
      for _, setting in ipairs(kSettings) do
        local sums = setting.reshard_after_backward or kind == "activation"
        local function passes(net, opt)
          local before
          if setting.reshard_after_backward then
            net(mine(3)):square():mean():backward()  -- sums that are there already stay what they are
            before = sums_of(net)
          end
          local handle = sums and stop(net, opt, place)
          local y = net(mine(4)):square():mean()
          if sums and (handle or kind ~= "activation") then testing.assert_error(function() y:backward() end,
              "stop here") else y:backward() end
          if handle then handle:remove() end
          if before and (handle or kind ~= "activation") then testing.assert_equal(sums_of(net), before) end
          opt:zero_grad()
          net(mine()):square():mean():backward()
        end
        testing.assert_equal(train(new("fully_shard", setting), passes), expected)
      end
    end
  end
end

function tests.test_N32_copies_may_be_summed_during_backward()
  local waiting, eager = replicated(), replicated():set_requires_gradient_sync(true)
  for _, net in ipairs {waiting, eager} do net(mine()):square():mean():backward() end
  testing.assert_equal(waiting.head.weight.grad.placements[1]:is_partial(), true)
  testing.assert_equal(eager.head.weight.grad.placements, {mh.Replicate()})
  testing.assert_equal(gradients(eager), gradients(waiting))
end

return tests
