-- SPDX-License-Identifier: Apache-2.0
-- Complex parameters in scripts; the oracle trains the same numbers as real tensors of shape [..., 2].
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local runs = {}

local folder = require "support.own_path"
local function pairs_of(z) return mh.view_as_real(z) end
local function energy(z) return pairs_of(z):square():sum() end
local function wave(shape, step)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local angle = mh.arange(count, {dtype = "float64"}):reshape(shape) * step + step
  return mh.complex(angle:sin(), (angle * 1.7):cos())
end

local kShape = {6, 5}
local kOptimizers = {
  SGD = {lr = 0.02, momentum = 0.9}, Adam = {lr = 0.1, amsgrad = true}, AdamW = {lr = 0.1, weight_decay = 0.1},
  RMSprop = {lr = 0.05, centered = true, momentum = 0.5}, Adagrad = {lr = 0.3, initial_accumulator_value = 0.1},
LBFGS = {lr = 0.5, max_iter = 4}, }

local function spectral(place)
  local Net = nn.Module:extend("Spectral")
  function Net:init()
    self.weight = nn.Parameter(place(wave(kShape, 0.3)))
    self.gain = nn.Parameter(place((wave(kShape, 0.11)).real:contiguous()))
  end
  function Net:forward(x) return self.weight * x * self.gain end
  return Net()
end

local function data(place) return place(wave(kShape, 0.7)), place(wave(kShape, 0.9)) end

local function train(opt, steps, loss)
  local function closure()
    opt:zero_grad()
    local value = loss()
    value:backward()
    return value
  end
  for _ = 1, steps do
    if opt.name == "LBFGS" then
      opt:step(closure)
    else
      closure()
      mh.clip_grad_norm(opt.param_groups[1].params, 1.5)
      opt:step()
    end
  end
end

local function whole(x)
  x = x:detach()
  return x:is_shard_tensor() and x:full_tensor() or x
end

local function trained_pairs(name, steps)
  local weight = mh.view_as_real(wave(kShape, 0.3)):clone():requires_grad_(true)
  local gain = (wave(kShape, 0.11)).real:clone():requires_grad_(true)
  local x, y = data(function(z) return z end)
  train(optim[name]({weight, gain}, kOptimizers[name]), steps,
    function() return energy(mh.view_as_complex(weight) * x * gain - y) end)
  return weight:detach(), gain:detach()
end

-- Trained, saved in the midst, loaded in another cut, and the same to the last step.
local function check_training_and_loading(name, where, places)
  local place = places[where]
  local net = spectral(place)
  local opt, x, y = optim[name](net:parameters(), kOptimizers[name]), data(place)
  train(opt, 2, function() return energy(net(x) - y) end)
  local path = folder(name .. where)
  mh.checkpoint.save(path, {model = net, optimizer = opt})
  local weight, gain = trained_pairs(name, 4)

  for _, other in ipairs{where, "plain"} do
    local again = spectral(places[other])
    local opt2, x2, y2 = optim[name](again:parameters(), kOptimizers[name]), data(places[other])
    if name ~= "LBFGS" or other == where then  -- LBFGS keeps flat vectors, which are cut as its parameters were
      mh.checkpoint.load(path, {model = again, optimizer = opt2})
      train(opt2, 2, function() return energy(again(x2) - y2) end)

      testing.assert_equal(again.weight.dtype, "complex128")
      testing.assert_close(pairs_of(whole(again.weight)), weight, {rtol = 1e-10, atol = 1e-12})
      testing.assert_close(whole(again.gain), gain, {rtol = 1e-10, atol = 1e-12})
    end
  end
end

local function check_clipping(place)
  for _, norm in ipairs{1.0, 2.0, 3.0, math.huge} do
    local z, r = place(wave(kShape, 0.3)):requires_grad_(true),
        place(mh.ones(kShape, {dtype = "float64"})):requires_grad_(true)
    local g = wave(kShape, 0.8) * 3
    z.grad, r.grad = place(g), place((wave(kShape, 0.2)).real:contiguous())
    local all = mh.cat{g:abs():flatten(), (wave(kShape, 0.2)).real:abs():flatten()}
    local expected = mh.linalg_vector_norm(all, norm):item()

    local found = mh.clip_grad_norm({z, r}, 0.5, {norm_type = norm})

    testing.assert_close(found, expected, {rtol = 1e-10})
    testing.assert_close(pairs_of(whole(z.grad)), pairs_of(g) * (0.5 / (expected + 1e-6)), {rtol = 1e-10})
  end
  local z = place(wave(kShape, 0.3)):requires_grad_(true)
  z.grad = place(wave(kShape, 0.8))
  testing.assert_error(function() mh.clip_grad_value({z}, 0.5) end,
      "clip_grad_value: gradient 1 is complex, and complex numbers have no order")
end

local function check_dtypes(place)
  local net = spectral(place)
  energy(net(data(place))):backward()
  net:float()

  testing.assert_equal({net.weight.dtype, net.weight.grad.dtype, net.gain.dtype, net.gain.grad.dtype},
    {"complex128", "complex128", "float32", "float32"})
  testing.assert_equal(whole(net.weight), wave(kShape, 0.3))
  net:double()
  testing.assert_equal({net.weight.dtype, net.gain.dtype}, {"complex128", "float64"})
  testing.assert_error(function() net:to("float64") end,
    "Spectral: to: 'weight' is complex128, and float64 would drop its imaginary parts")
  testing.assert_equal({net.weight.dtype, net.gain.dtype}, {"complex128", "float64"})
  testing.assert_error(function() net:load_state_dict{weight = wave(kShape, 0.3), gain = wave(kShape, 0.3)} end,
    "'gain' is complex128, the module's float64 has no imaginary parts")
  net:to("complex64")
  testing.assert_equal({net.weight.dtype, net.gain.dtype}, {"complex64", "complex64"})
end

--- Tests on plain tensors and on tensors cut by each of `places`, functions from a plain tensor to a tensor.
function runs.tests(places)
  local tests = {}
  for where, place in pairs(places) do
    for _, name in ipairs{"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS"} do
      tests["test_" .. name .. "_" .. where] = function() check_training_and_loading(name, where, places) end
    end
    tests["test_clipping_" .. where] = function() check_clipping(place) end
    tests["test_dtypes_" .. where] = function() check_dtypes(place) end
  end
  return tests
end

return runs
