-- SPDX-License-Identifier: Apache-2.0
-- A Fourier neural operator for support/model_runs.lua: 11 x 9 points, two layers.
local mh = require "moonhalo"
local nn = mh.nn

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
  self.waves = SpectralConv2d(channels, modes)
  self.points = nn.Conv2d(channels, channels, 1)
end
function FourierLayer:forward(x) return (self.waves(x) + self.points(x)):gelu() end

return {
  keeps_blocks = true,
  network = function()
    return nn.Sequential(nn.Conv2d(2, 4, 1), FourierLayer(4, 3), FourierLayer(4, 2), nn.Conv2d(4, 1, 1)):double()
  end,
  sample = function()
    return {x = mh.randn({2, 2, kHeight, kWidth}, kF64), y = mh.randn({2, 1, kHeight, kWidth}, kF64)}
  end,
  predict = function(net, samples) return net(samples.x) end,
}
