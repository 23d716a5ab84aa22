-- SPDX-License-Identifier: Apache-2.0
-- X08: a Fourier neural operator on a field that is cut unevenly equals the same on one plain tensor (float64, 1e-10): its
-- transforms run along the cut dims.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local kHeight, kWidth = 11, 9

--- The lowest `modes` x `modes` waves of a field [batch, channels, height, width], mixed over channels.
local SpectralConv2d = nn.Module:extend("SpectralConv2d")
function SpectralConv2d:init(channels, modes)
  self.modes = modes
  for _, name in ipairs{"low", "high"} do  -- real and imaginary parts
    self[name] = nn.Parameter(mh.randn({channels, channels, modes, modes, 2}, kF64) / channels)
  end
end
function SpectralConv2d:forward(x)
  local height, width = x.shape[3], x.shape[4]
  local spectrum = mh.fft_rfft2(x)
  local mixed = mh.zeros_like(spectrum)
  local function mix(first, weight)
    local waves = (":, :, %d:%d, 0:%d"):format(first, first + self.modes, self.modes)
    mixed[waves] = mh.einsum("bixy,ioxy->boxy", {spectrum[waves], mh.view_as_complex(weight)})
  end
  mix(0, self.low)
  mix(height - self.modes, self.high)
  return mh.fft_irfft2(mixed, {height, width})
end

local FourierLayer = nn.Module:extend("FourierLayer")
function FourierLayer:init(channels, modes)
  self.waves, self.points = SpectralConv2d(channels, modes), nn.Conv2d(channels, channels, 1):double()
end
function FourierLayer:forward(x) return (self.waves(x) + self.points(x)):gelu() end

local function network()
  mh.manual_seed(5)
  return nn.Sequential(nn.Conv2d(2, 4, 1):double(), FourierLayer(4, 3), FourierLayer(4, 2), nn.Conv2d(4, 1, 1):double())
end

local function plain(tensor) return tensor:is_shard_tensor() and tensor:full_tensor() or tensor end

--- Losses, first prediction, first gradients and last weights of three steps, and their names in order.
local function train(place)
  mh.manual_seed(6)
  local x, y = mh.randn({2, 2, kHeight, kWidth}, kF64), mh.randn({2, 1, kHeight, kWidth}, kF64)
  local net = network()
  if place then x, y = mh.distribute_tensor(x, mesh, {place[1]}), mh.distribute_tensor(y, mesh, {place[1]}) end
  x:requires_grad_()
  local opt, seen, names = optim.Adam(net:parameters(), {lr = 0.02}), {}, {}
  local function see(name, tensor)
    names[#names + 1] = name
    seen[name] = plain(tensor:detach()):clone()
  end
  for step = 1, 3 do
    opt:zero_grad()
    local prediction = net(x)
    local loss = mh.mse_loss(prediction, y)
    loss:backward()
    if step == 1 then
      if place then
        testing.assert_equal(prediction.placements, x.placements)
        testing.assert_equal(prediction:shard_sizes(place.dim), x:shard_sizes(place.dim))
      end
      see("prediction", prediction)
      see("gradient of the input", x.grad)
      for name, p in net:named_parameters() do see("gradient of " .. name, p.grad) end
    end
    opt:step()
    see("loss " .. step, loss)
  end
  for name, p in net:named_parameters() do see("weight " .. name, p) end
  return seen, names
end

local tests = {}
local expected, names = train()
local cuts = {
  rows = {mh.Shard(2, mh.world_size() == 3 and {1, 7, 3} or nil), dim = 2},
  columns = {mh.Shard(3, mh.world_size() == 3 and {4, 0, 5} or nil), dim = 3},
  batch = {mh.Shard(0), dim = 0},
}
for name, place in pairs(cuts) do
  tests["test_X08_cut_along_" .. name] = function()
    mh.set_fallback("error")  -- nothing is gathered unasked
    local actual = train(place)

    for _, key in ipairs(names) do testing.assert_close(actual[key], expected[key]) end
  end
end

return tests
