-- SPDX-License-Identifier: Apache-2.0
-- X01, X07: a vision transformer whose sequence is cut, on 2 x 2 ranks.
local mh = require "moonhalo"
local runs = require "support.model_runs"
local vit = require "support.vit"

local grid = mh.init_device_mesh(mh.device(), {2, 2}, {"outer", "inner"})
local function cut(...) return {mesh = grid, x = {...}} end
local R, S = mh.Replicate, mh.Shard

local cuts = {
  plane = cut(S(2, {12, 8}), S(3)), batch_and_columns = cut(S(0), S(3, {3, 9})),
  batch_and_rows = cut(S(0), S(2, {12, 8})), rows_twice = cut(S(2), S(2)),
replicated_and_rows = cut(R(), S(2, {4, 16})), }
return runs.tests{{"vit", vit.all, cuts}, {"vit_causal", vit.causal, cuts}}
