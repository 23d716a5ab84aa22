-- SPDX-License-Identifier: Apache-2.0
-- Models built without memory, factories on a mesh, and the state of the generator: V12, X02, X12.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function model()
  local net = nn.Sequential(nn.Embedding(11, 8, {padding_idx = 3}), nn.Linear(8, 12), nn.Dropout(0.3), nn.GELU(),
      nn.Linear(12, 4))
  nn.init.orthogonal_(net[4].weight)
  nn.init.trunc_normal_(net[1].bias, 0, 0.5)
  return net
end

local function expect_equal_states(net, expected)
  for name, tensor in net:state_dict() do
    local whole = tensor:is_shard_tensor() and tensor:full_tensor() or tensor
    testing.assert_equal(whole:is_deferred(), false)
    if not mh.equal(whole, expected[name]) then error(name .. " differs") end
  end
end

function tests.test_V12_a_deferred_model_has_the_values_of_an_eager_one()
  mh.manual_seed(5)
  local eager = model():state_dict()
  mh.manual_seed(5)
  local net = mh.deferred_init(model, {min_numel = 0})
  testing.assert_equal(net[1].weight:is_deferred(), true)
  testing.assert_equal(net[1].weight.requires_grad, true)
  testing.assert_equal(tostring(net[1].weight):find("deferred") ~= nil, true)

  mh.parallelize_module(net, mesh, {parameter = {["0.weight"] = {mh.Shard(0)}, ["1.weight"] = {mh.Shard(0, {5, 0, 7})},
    ["1.bias"] = {mh.Shard(0)}, ["4.weight"] = {mh.Shard(1)}}})

  testing.assert_equal(net[1].weight:to_local().shape[1], ({5, 0, 7})[mh.rank() + 1])
  expect_equal_states(net, eager)
end

function tests.test_V12_materialize_module_gives_the_whole()
  mh.manual_seed(6)
  local eager = model():state_dict()
  mh.manual_seed(6)
  local net = mh.materialize_module(mh.deferred_init(model, {min_numel = 0}))
  expect_equal_states(net, eager)
  net(mh.arange(5)):sum():backward()
  testing.assert_equal(net[1].weight.grad ~= nil, true)
end

function tests.test_V12_conversion_of_a_deferred_model()
  mh.manual_seed(6)
  local eager = model():to("float64"):state_dict()
  mh.manual_seed(6)
  local net = mh.deferred_init(function() return model():to("float64") end, {min_numel = 0})
  testing.assert_equal(net[1].weight:is_deferred(), true)
  expect_equal_states(mh.materialize_module(net), eager)
end

function tests.test_V12_errors()
  local w = mh.deferred_init(function() return mh.rand({40, 40}) end)
  testing.assert_error(function() return w:sum():item() end, "asks for values that are not there yet")
  testing.assert_error(function() mh.deferred_init(model, {min_numle = 0}) end, "did you mean 'min_numel'")
  testing.assert_equal(mh.equal(mh.materialize(w), mh.materialize(w, mesh, {mh.Shard(1)}):full_tensor()), true)
end

function tests.test_X02_factories_on_a_mesh()
  for _, one in ipairs{
    {"randn", {{7, 4}}}, {"rand", {{7, 4}}}, {"randint", {9, {7, 4}}}, {"zeros", {{7, 4}}}, {"ones", {{7, 4}}},
    {"full", {{7, 4}, 2.5}}, {"eye", {7}}, {"arange", {7}}, {"linspace", {0, 1, 7}}, {"randperm", {7}},
  } do
    local name, args = one[1], one[2]
    mh.manual_seed(8)
    local plain = mh[name](table.unpack(args))
    for _, placement in ipairs{mh.Replicate(), mh.Shard(0), mh.Shard(0, {3, 0, 4})} do
      mh.manual_seed(8)
      args[#args + 1] = {mesh = mesh, placements = {placement}}
      local made = mh[name](table.unpack(args))
      args[#args] = nil
      testing.assert_equal(made.placements[1] == placement or tostring(placement) == "Shard(0)", true)
      testing.assert_equal(mh.equal(made:full_tensor(), plain), true)
    end
  end
  local leaf = mh.randn({6}, {mesh = mesh, requires_grad = true})
  testing.assert_equal(leaf:is_shard_tensor() and leaf.requires_grad and leaf.is_leaf, true)
  testing.assert_error(function() mh.randn({6}, {placements = {mh.Shard(0)}}) end, "'placements' needs a 'mesh' too")
end

-- One rank's plain tensors and ShardTensors draw in the same way: a serial script and a sharded one differ in no
-- number.
function tests.test_X02_plain_and_sharded_draws_are_the_same()
  local x = (mh.arange(42.0):reshape{6, 7} * 0.7):sin():abs()
  local shard = mh.distribute_tensor(x, mesh, {mh.Shard(0, {1, 0, 5})})
  for name, draw in ipairs{  -- in the same order on every rank
    function(t) return mh.dropout(t, 0.5) end, function(t) return mh.randn_like(t) end,
    function(t) return t:bernoulli() end, function(t) return mh.poisson(t * 20) end,
    function(t) return mh.multinomial(t, 3) end, function(t) return mh.alpha_dropout(t, 0.4) end,
    function(t) return mh.empty_like(t):normal_(0, 1, {generator = mh.Generator{seed = 3}}) end,
  } do
    mh.manual_seed(9)
    local plain = draw(x)
    mh.manual_seed(9)
    if not mh.equal(plain, draw(shard):full_tensor()) then error("draw " .. name .. " differs") end
  end
end

function tests.test_X02_generator_states()
  local shard = mh.distribute_tensor(mh.ones{6, 7}, mesh, {mh.Shard(0)})
  local function draw() return mh.dropout(shard, 0.5):full_tensor() + mh.rand{6, 7} end
  mh.manual_seed(1)
  draw()
  local state = mh.get_rng_state()
  local first, second = draw(), draw()
  testing.assert_equal(mh.equal(first, second), false)
  mh.set_rng_state(state)
  testing.assert_equal(mh.equal(draw(), first), true)

  local own = mh.Generator{seed = 4}
  local saved = own:get_state()
  local a = mh.rand({3}, {generator = own})
  testing.assert_equal(mh.equal(mh.rand({3}, {generator = own:set_state(saved)}), a), true)
  testing.assert_error(function() own:load_state_dict{} end, "the state is missing")
end

local folder = require "support.own_path"

-- A run with dropout that is saved and resumed is the run that was not: on the same ranks, another cut, and plain.
function tests.test_X12_a_checkpoint_holds_the_generator()
  local path = folder("resume")
  local function start(placement)
    mh.manual_seed(3)
    local net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1)):to("float64")
    local opt = optim.AdamW(net:parameters(), {lr = 0.05})
    local x = mh.distribute_tensor((mh.arange(54.0, {dtype = "float64"}):reshape{9, 6} * 0.3):sin(), mesh, {placement})
    local function train(steps)
      local losses = {}
      for i = 1, steps do
        local chosen = mh.randperm(9):narrow(0, 0, 5)
        opt:zero_grad()
        local loss = net(x:index_select(0, chosen)):square():mean()
        loss:backward()
        opt:step()
        losses[i] = loss:item()
      end
      return losses
    end
    return net, opt, train
  end

  local net, opt, train = start(mh.Shard(0, {2, 3, 4}))
  train(2)
  mh.checkpoint.save(path, {model = net, optimizer = opt, generator = mh.default_generator()})
  local expected = train(3)

  for i, placement in ipairs{mh.Shard(0, {2, 3, 4}), mh.Shard(1), mh.Replicate()} do
    local again, opt2, train2 = start(placement)
    mh.manual_seed(100 + i)
    mh.checkpoint.load(path, {model = again, optimizer = opt2, generator = mh.default_generator()})
    local losses = train2(3)
    if i == 1 then testing.assert_equal(losses, expected) end
    for step = 1, 3 do
      testing.assert_close(mh.tensor(losses[step], {dtype = "float64"}), mh.tensor(expected[step], {dtype = "float64"}))
    end
  end
end

return tests
