-- SPDX-License-Identifier: Apache-2.0
-- Rows of tests/FEATURES.md about whole models: training, inference and checkpoints of divided models against the plain
-- one.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"ranks"})
local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate
local kUneven = mh.world_size() == 3 and {5, 0, 4} or nil  -- of 9
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end

-- No bias before the norm: its gradient is zero, and AdamW would divide rounding errors by themselves.
local function model()
  return nn.Sequential(nn.Conv2d(2, 6, 3, {padding = 1}), nn.GELU(),
    nn.Conv2d(6, 4, 3, {padding = 1, stride = 2, bias = false}), nn.BatchNorm2d(4),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 3 * 2, 7), nn.Tanh(), nn.Linear(7, 3))
end
local function whole()
  mh.manual_seed(5)
  return model():double()
end
--- Channels and features cut: the first convolution and linear layer by their outputs, the second ones by their inputs.
local function divided()
  return mh.parallelize_module(whole(), mesh, {parameter = {["0.weight"] = {S(0)}, ["0.bias"] = {S(0)},
    ["2.weight"] = {S(1)}, ["6.weight"] = {S(0)}, ["6.bias"] = {S(0)}, ["8.weight"] = {S(1)}}})
end
local function samples(cut)
  mh.manual_seed(6)
  local x, y = mh.randn({9, 2, 5, 4}, kF64), mh.randn({9, 3}, kF64)
  if not cut then return x, y end
  return mh.distribute_tensor(x, mesh, {cut}), mh.distribute_tensor(y, mesh, {cut})
end

--- N14: the loop of every model here, whole or divided.
local function train(net, opt, x, y, steps)
  local losses = {}
  for step = 1, steps do
    opt:zero_grad()
    local loss = mh.mse_loss(net(x), y)
    loss:backward()
    opt:step()
    losses[step] = loss:item()
  end
  return losses
end
local function adamw(net) return optim.AdamW(net:parameters(), {lr = 0.02}) end

--- Losses, parameters and buffers after three steps.
local function outcome(net, cut)
  local x, y = samples(cut)
  mh.manual_seed(9)
  local found = {losses = mh.tensor(train(net, adamw(net), x, y, 3), kF64)}
  for name, tensor in net:state_dict() do found[name] = plain(tensor):clone() end
  return found
end

function tests.test_N02_N14_data_parallel_training()
  local expected = outcome(whole())
  for _, cut in ipairs {S(0), S(0, kUneven)} do
    testing.assert_all_close(outcome(mh.parallelize_module(whole(), mesh, {}), cut), expected)
  end
end

function tests.test_N03_N14_tensor_parallel_training()
  testing.assert_all_close(outcome(divided(), nil), outcome(whole()))
end

function tests.test_N13_inference_as_usual()
  local x = samples()
  local reference = whole():eval()
  local expected = mh.inference_mode(function() return reference(x) end)
  for _, cut in ipairs {R(), S(0, kUneven), S(2)} do
    local net = divided():eval()
    local y = mh.inference_mode(function() return net(mh.distribute_tensor(x, mesh, {cut})) end)

    testing.assert_close(plain(y), expected)
    testing.assert_equal(y.requires_grad, false)
    for _, p in net:named_parameters() do testing.assert_equal(p.grad, nil) end
  end
end

function tests.test_N46_train_and_eval_reach_all_and_mixtures_are_honoured()
  local net, x = divided(), (samples())
  net:eval()
  for name, module in net:named_modules() do testing.assert_equal({name, module.training}, {name, false}) end
  local mean = plain(net[3].running_mean):clone()
  local y = plain(net(x))
  testing.assert_equal(mh.equal(plain(net(x)), y) and mh.equal(plain(net[3].running_mean), mean), true)

  net[3]:train()  -- the norm alone learns from the batch
  net(x)
  testing.assert_equal(mh.equal(plain(net[3].running_mean), mean), false)
  testing.assert_equal(net.training or net[5].training, false)
  local reference = whole():eval()
  reference[3]:train()
  reference(x)
  testing.assert_close(plain(net[3].running_mean), reference[3].running_mean)
  net:train()
  for name, module in net:named_modules() do testing.assert_equal({name, module.training}, {name, true}) end
end

-- ---- Checkpoints ----------------------------------------------------------------------------------------------------

local folder = require "support.own_path"

function tests.test_S10_N38_the_file_of_a_divided_model_is_the_plain_model()
  local path, net = folder("plain"), divided()
  local x, y = samples()
  mh.manual_seed(9)
  train(net, adamw(net), x, y, 2)  -- values of its own
  mh.checkpoint.save(path, {model = net})

  local loaded = model():double()
  mh.checkpoint.load(path, {model = loaded})

  local names = 0
  for name, tensor in net:state_dict() do
    names = names + 1
    testing.assert_equal({name, mh.equal(loaded:state_dict()[name], plain(tensor))}, {name, true})
  end
  testing.assert_equal(names, 12)
  testing.assert_equal(loaded[0].weight:is_shard_tensor(), false)
  testing.assert_close(loaded:eval()(x), plain(net:eval()(x)))
end

function tests.test_N37_a_resumed_run_of_a_divided_model_has_the_same_bits()
  local path, net = folder("resume"), divided()
  local x, y = samples()
  local opt = adamw(net)
  mh.manual_seed(9)
  train(net, opt, x, y, 3)
  mh.checkpoint.save(path, {model = net, optimizer = opt, generator = mh.default_generator()})
  local expected = train(net, opt, x, y, 3)

  local again = divided()
  local opt2 = adamw(again)
  mh.manual_seed(100)
  mh.checkpoint.load(path, {model = again, optimizer = opt2, generator = mh.default_generator()})

  testing.assert_equal(train(again, opt2, x, y, 3), expected)
  for name, tensor in net:state_dict() do
    testing.assert_equal({name, mh.equal(plain(again:state_dict()[name]), plain(tensor))}, {name, true})
  end
end

function tests.test_N40_a_checkpoint_holds_every_tensor_once()
  local path = folder("size")
  local net = mh.parallelize_module(nn.Linear(300, 200):double(), mesh, {parameter = {weight = {S(0)}}})
  local opt = adamw(net)
  net(mh.ones({2, 300}, kF64)):sum():backward()
  opt:step()
  mh.checkpoint.save(path, {model = net, optimizer = opt})

  local bytes = 0
  for _, name in ipairs {"model.safetensors", "optimizer.safetensors", "checkpoint.json"} do
    local file <close> = assert(io.open(path .. "/" .. name, "rb"))
    bytes = bytes + file:seek("end")
  end
  local single = 3 * (300 * 200 + 200) * 8  -- parameters and AdamW's two moments
  testing.assert_equal(bytes >= single and bytes < 1.1 * single, true)
end

function tests.test_N29_parameters_without_values_until_a_file_is_loaded()
  local path, source = folder("deferred"), whole()
  mh.checkpoint.save(path, {model = source})
  mh.manual_seed(77)  -- other values, were any drawn
  local net = mh.deferred_init(function() return model():double() end, {min_numel = 0})
  testing.assert_equal(net[0].weight:is_deferred() and net[8].bias:is_deferred(), true)

  mh.checkpoint.load(path, {model = net})
  mh.parallelize_module(net, mesh, {parameter = {["0.weight"] = {S(0)}, ["6.weight"] = {S(1)}}})

  testing.assert_equal(net[0].weight.placements[1]:is_shard() and net[6].weight.placements[1].dim, 1)
  for name, tensor in source:state_dict() do
    testing.assert_equal({name, mh.equal(plain(net:state_dict()[name]), tensor)}, {name, true})
  end
end

function tests.test_N43_buffers_that_are_not_saved_are_made_again()
  local Waves = nn.Module:extend("Waves")
  function Waves:init()
    self.scale = nn.Parameter(mh.randn({6}))
    self:register_buffer("frequencies", (mh.arange(6.0) * 0.5):exp(), {persistent = false})
  end
  function Waves:forward(x) return x * self.frequencies * self.scale end
  local path = folder("buffers")
  mh.manual_seed(5)
  local source = Waves()
  mh.checkpoint.save(path, {model = source})
  local names = {}
  for i, pair in ipairs((mh.safetensors.load(path .. "/model.safetensors"))) do names[i] = pair[1] end
  testing.assert_equal(names, {"scale"})

  mh.manual_seed(77)
  local net = mh.deferred_init(Waves, {min_numel = 0})
  testing.assert_equal(net.scale:is_deferred(), true)
  mh.checkpoint.load(path, {model = net})
  mh.parallelize_module(net, mesh, {parameter = {scale = {S(0)}}})

  testing.assert_equal(mh.equal(plain(net.frequencies), source.frequencies), true)
  testing.assert_close(plain(net(mh.ones{2, 6})), source(mh.ones{2, 6}))
end

return tests
