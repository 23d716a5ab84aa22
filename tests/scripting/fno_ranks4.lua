-- SPDX-License-Identifier: Apache-2.0
-- X08: a Fourier neural operator on 2 x 2 ranks: both transformed dims are cut.
local mh = require "moonhalo"
local runs = require "support.model_runs"

local grid = mh.init_device_mesh(mh.device(), {2, 2}, {"rows", "columns"})
local function cut(...) return {mesh = grid, x = {...}, y = {...}} end
local R, S = mh.Replicate, mh.Shard

return runs.tests{
  {"X08_fno", require "support.fno", {
    plane = cut(S(2, {8, 3}), S(3, {2, 7})), crossed = cut(S(3, {9, 0}), S(2, {1, 10})),
    one_dim_twice = cut(S(2), S(2)),
    replicated_and_columns = cut(R(), S(3, {2, 7})), batch_and_rows = cut(S(0), S(2, {4, 7})),
  }},
}
