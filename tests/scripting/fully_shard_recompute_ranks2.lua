-- SPDX-License-Identifier: Apache-2.0
-- The tests of fully_shard_recompute_ranks3.lua on two ranks.
return require "fully_shard_recompute_ranks3"
