-- SPDX-License-Identifier: Apache-2.0
-- A Fourier neural operator for moonhalo plan. The field is padded to twice its rows, as for boundaries that are not
-- periodic. --set cut=keep leaves all padding to the last rank, and the plan says so.
--   moonhalo plan examples/plans/fno.lua --ranks 8,64,512,4096 --machine h100 --set cut=keep
local mh = require "moonhalo"
local nn = mh.nn

local cfg = mh.config{rows = 4, columns = 1024, channels = 32, modes = 16, layers = 4, cut = "geometry"}
mh.set_output_cut(cfg.cut)

local Waves = nn.Module:extend("Waves")
function Waves:init(channels, modes)
  self.weight = nn.Parameter(mh.randn{channels, channels, modes, modes, 2} / channels)
  self.points = nn.Conv2d(channels, channels, 1)
end
function Waves:forward(x)
  local rows, columns, modes = x.shape[3], x.shape[4], cfg.modes
  local spectrum = mh.fft_rfft2(nn.functional.pad(x, {0, 0, 0, rows}))
  local waves = (":, :, 0:%d, 0:%d"):format(modes, modes)
  local mixed = mh.zeros_like(spectrum)
  mixed[waves] = mh.einsum("bixy,ioxy->boxy", {spectrum[waves], mh.view_as_complex(self.weight)})
  local back = mh.fft_irfft2(mixed, {2 * rows, columns})[(":, :, 0:%d"):format(rows)]
  return (back + self.points(x)):gelu()
end

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"rows"})
local layers = {nn.Conv2d(4, cfg.channels, 1)}
for _ = 1, cfg.layers do layers[#layers + 1] = Waves(cfg.channels, cfg.modes) end
layers[#layers + 1] = nn.Conv2d(cfg.channels, 4, 1)
local net = nn.Sequential(table.unpack(layers))
mh.distribute_module(net, mesh)
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local own = mh.zeros({1, 4, cfg.rows, cfg.columns}, {device = mesh.device})
local x = mh.from_local(own, mesh, {mh.Shard(2)})
for _ = 1, 3 do
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  loss:backward()
  optimizer:step()
end
