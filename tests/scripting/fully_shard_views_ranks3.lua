-- SPDX-License-Identifier: Apache-2.0
-- Views of parameters of fully_shard: they use what the unit has gathered.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local units = require "support.sharded_units"
local nn = mh.nn

local tests = {}
local kF64 = {dtype = "float64"}
local ranks = mh.world_size()
local mesh, mine, whole = units.mesh, units.mine, units.whole
local gradients, messages_of = units.gradients, units.messages_of

local Views = nn.Module:extend("Views")
function Views:init()
  self.packed, self.scale = nn.Parameter(mh.randn({12, 4}, kF64)), nn.Parameter(mh.randn({4}, kF64))
  self.position, self.kernel = nn.Parameter(mh.randn({9, 4}, kF64)), nn.Parameter(mh.randn({2, 2, 4}, kF64))
end
function Views:forward(x)
  local a, b = table.unpack(self.packed:chunk(3, 0))
  local h = mh.linear(x, a) * mh.linear(x, b) + mh.linear(x, self.packed:narrow(0, 7, 4))
  h = h * self.scale:unsqueeze(0):expand({5, 4}) + self.position:narrow(0, 2, 5)
  return h * self.kernel:select(0, 1):select(0, 0) + mh.matmul(h, self.packed:t():narrow(1, 0, 4))
end

--- A module as a unit, and as copies.
local function both(make)
  local nets = {}
  for i, op in ipairs {"fully_shard", "replicate"} do
    mh.manual_seed(5)
    nets[i] = mh[op](make():double(), {mesh = mesh, min_numel = op == "fully_shard" and 1 or nil})
  end
  return nets[1], nets[2]
end

-- A view keeps the numbers that it was made of, whatever block or cut its parameter has later.
local function kept_views(make, change)
  local Kept = nn.Module:extend("Kept")
  function Kept:init() self.w, self.kept = nn.Parameter(mh.arange(16):double():view({4, 4}):clone()), nil end
  function Kept:forward(x)
    self.kept = self.kept or {make(self.w)}
    return mh.linear(x, self.kept[1])
  end
  local samples = mh.randn({2 * ranks, 4}, kF64)
  local function result(net, x)
    return mh.no_grad(function()
      net(x)
      change(net)
      return whole(net(x))
    end)
  end
  local unit = mh.fully_shard(Kept(), {mesh = mesh, min_numel = 1})
  testing.assert_close(result(unit, mh.distribute_tensor(samples, mesh, {mh.Shard(0)})), result(Kept(), samples))
end
function tests.test_V15_views_keep_the_numbers_that_they_were_made_of()
  for _, make in ipairs {function(w) return w:narrow(0, 0, 4) end, function(w) return w:t() end} do
    kept_views(make, function(net) net.w.data = net.w.data:clone():mul_(100) end)
    kept_views(make, function(net) net.w:t_() end)
    kept_views(make, function(net) net.w:mul_(3) end)
  end
end

-- PyTorch does not differentiate such views, and reads them.
function tests.test_V15_views_that_were_written_without_gradients_are_read()
  local function read(net)
    local row
    mh.no_grad(function()
      row = net.weight:narrow(0, 1, 2)
      row:mul_(2)
    end)
    assert(tostring(row):find("grad_fn=<Invalid>", 1, true), tostring(row))
    testing.assert_error(function() return row * 2 end, "A view was created in no_grad mode")
    return {whole(row), whole(row:gt(0)), whole(row:argmax(-1)), row:isnan():any():item()}
  end
  local unit, copies = both(function() return nn.Linear(4, 5) end)
  mh.manual_seed(5)
  local plain = nn.Linear(4, 5):double()
  local expected = read(plain)
  for _, net in ipairs {unit, copies} do testing.assert_all_close(read(net), expected) end
end

local viewed = {
  -- Gradients of views are summed one by one, by all_reduce.
  views = {Views, function(net) return net(mine()) end, 1},
  attention = {function() return nn.MultiheadAttention(4, 2, {batch_first = true}) end, function(net)
    local x = mine()
    return (net(x, x, x))
  end},
  attention_to_others = {function() return nn.MultiheadAttention(4, 2, {batch_first = true}) end, function(net)
    local memory = mine(3)
    return net(mine(), memory, memory, {need_weights = false})
  end},
  attention_to_three = {function() return nn.MultiheadAttention(4, 2, {batch_first = true}) end, function(net)
    return net(mine(), mine(3), mine(4), {need_weights = false})
  end},
  encoder_layer = {function()
    return nn.TransformerEncoderLayer(4, 2, {dim_feedforward = 6, dropout = 0.0, batch_first = true})
  end, function(net) return net(mine()) end},
}
for name, case in pairs(viewed) do
  tests["test_V15_" .. name .. "_use_what_the_unit_gathered"] = function()
    local net, copies = both(case[1])
    for _ = 1, 2 do
      net:zero_grad()
      local loss
      testing.assert_equal(messages_of(function() loss = case[2](net):square():mean() end), ranks - 1)
      testing.assert_equal(messages_of(function() loss:backward() end), (case[3] or 2) * (ranks - 1))
    end
    case[2](copies):square():mean():backward()
    mh.optim.SGD(copies:parameters(), {lr = 0.1}):sync_shard_grad()
    testing.assert_all_close(gradients(net), gradients(copies))
    testing.assert_close(case[2](net):full_tensor(), case[2](copies):full_tensor())
  end
end

return tests
