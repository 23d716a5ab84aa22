-- SPDX-License-Identifier: Apache-2.0
-- The diffusion transformer of examples/climate for support/model_runs.lua: 25 x 17 points, 13 x 9 tokens; the noise is
-- drawn on the blocks, by global index.
local mh = require "moonhalo"
local DiffusionTransformer = require "examples.climate.diffusion_transformer"

local kShape = {2, 2, 25, 17}
local kF64 = {dtype = "float64"}

local function model(window)
  return {
    network = function()
      local net = DiffusionTransformer{channels = 2, out_channels = 2, size = {25, 17}, patch = 2, dim = 8, heads = 2,
        depth = 2, window = window}:double()
      -- Gates and last layer start at zero: gradients would be, too.
      for name, p in net:named_parameters() do
        if name:find("modulation", 1, true) or name:find("leave", 1, true) then
          mh.no_grad(function() p:copy_(mh.randn(p.shape, kF64) * 0.3) end)
        end
      end
      return net
    end,
    sample = function() return {x = mh.randn(kShape, kF64), levels = mh.tensor({0.2, 0.7}, kF64)} end,
    predict = function(net, samples)
      local keep = (1 - samples.levels):sqrt():reshape{2, 1, 1, 1}
      samples.noise = mh.randn_like(samples.x:detach())
      local noisy = samples.x * keep + samples.noise * samples.levels:sqrt():reshape{2, 1, 1, 1}
      return net(noisy, samples.levels * 1000)
    end,
    loss = function(prediction, samples) return mh.mse_loss(prediction, samples.noise) end,
  }
end

return {odd = model{5, 3}, whole_width = model{7, 9}}
