-- SPDX-License-Identifier: Apache-2.0
-- The tests of data_loader_ranks3.lua on eight ranks, also on meshes of three dims.
return require "data_loader_ranks3"
