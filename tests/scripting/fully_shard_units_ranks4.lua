-- SPDX-License-Identifier: Apache-2.0
-- The tests of fully_shard_units_ranks3.lua on four ranks.
return require "fully_shard_units_ranks3"
