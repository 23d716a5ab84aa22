-- SPDX-License-Identifier: Apache-2.0
-- The tests of data_loader_ranks3.lua on one rank.
return require "data_loader_ranks3"
