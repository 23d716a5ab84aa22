-- SPDX-License-Identifier: Apache-2.0
-- N39, N40, S11: on a grid of ranks, with cuts of two dims, nested cuts, copies and slices of the grid.
local mh = require "moonhalo"
local layouts = require "support.checkpoint_layouts"
local S, R = mh.Shard, mh.Replicate

local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"a", "b"})
local tests = {}

--- `first` where a tensor has dims.
local function placed(first, second)
  return function(x) return #x.shape == 0 and {R(), R()} or {first(x), second(x)} end
end
local function rows() return S(0) end
local function columns(x) return S(#x.shape - 1) end
local function copies() return R() end

function tests.test_N39_N40_S11_grids_nested_cuts_and_slices()
  layouts.check {
    {mesh = mesh, placements = placed(rows, columns)},
    {mesh = mesh, placements = placed(rows, rows)},
    {mesh = mesh, placements = placed(copies, rows)},
    {mesh = mesh, placements = placed(columns, copies)},
    {mesh = mesh["b"], placements = function(x) return {#x.shape == 0 and R() or S(0)} end},
    {mesh = mesh["a"], placements = function() return {R()} end},
  }
end

return tests
