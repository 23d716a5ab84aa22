-- SPDX-License-Identifier: Apache-2.0
-- The tests of parallelize_ranks3.lua on two ranks.
return require "parallelize_ranks3"
