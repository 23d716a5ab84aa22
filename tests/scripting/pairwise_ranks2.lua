-- SPDX-License-Identifier: Apache-2.0
-- The tests of pairwise_ranks3.lua on two ranks.
return require "pairwise_ranks3"
