-- SPDX-License-Identifier: Apache-2.0
-- The tests of plan_zoo_ranks3.lua on two ranks.
return require "plan_zoo_ranks3"
