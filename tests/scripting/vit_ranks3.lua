-- SPDX-License-Identifier: Apache-2.0
-- X01, X07: a vision transformer whose sequence is cut over three ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.model_runs"
local vit = require "support.vit"

local line = mh.init_device_mesh(mh.device(), {3}, {"domain"})
local function cut(...) return {mesh = line, x = {...}} end
local S = mh.Shard

local tests = runs.tests{
  {"vit", vit.all, {rows = cut(S(2, {7, 9, 4})), empty = cut(S(2, {12, 0, 8})), batch = cut(S(0)),
  columns = cut(S(3, {4, 0, 8}))}}, {"vit_causal", vit.causal, {rows = cut(S(2, {4, 4, 12})), balanced = cut(S(2))}},
}

function tests.test_X07_the_sequence_stays_cut()
  mh.manual_seed(5)
  local net = vit.causal.network()
  local x = mh.distribute_tensor(vit.causal.sample().x, line, {S(2, {4, 4, 12})})
  mh.comm_stats{reset = true}
  net(x)
  local calls = mh.comm_stats().by_operator
  testing.assert_equal(calls["moonhalo::attention"].calls, 2)
  testing.assert_equal(calls["aten::_scaled_dot_product_flash_attention_for_cpu"], nil)
  testing.assert_equal(calls["moonhalo::attention"].bytes > 0, true)
end

return tests
