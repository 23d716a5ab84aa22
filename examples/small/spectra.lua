-- SPDX-License-Identifier: Apache-2.0
-- The power of a field by wavenumber, and a filter that removes short waves. The rows of the field are cut.
local mh = require "moonhalo"
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"rows"})

local y = mh.arange(32.0):mul(2 * math.pi / 32):reshape{32, 1}
local x = mh.arange(32.0):mul(2 * math.pi / 32):reshape{1, 32}
local field = mh.distribute_tensor((y * 3):sin() + (x * 9):cos() * 0.5, mesh, {mh.Shard(0)})
local power = mh.diagnostics.radial_spectrum(field, {dims = {0, 1}})
print(("%.3f %.3f %.3f"):format(power[3]:item(), power[4]:item(), power[9]:item()))  --> 0.500 0.000 0.125

local modes = mh.fft_rfft2(field)
modes[":, 5:"] = 0
local smooth = mh.fft_irfft2(modes, {s = {32, 32}})
print((smooth:full_tensor() - (y * 3):sin()):abs():max():item() < 1e-5)              --> true
