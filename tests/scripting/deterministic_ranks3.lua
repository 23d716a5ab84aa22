-- SPDX-License-Identifier: Apache-2.0
-- Y16: the same bits in 20 runs on ranks that are threads; mpi.lua_deterministic has processes.
return require "support.deterministic"
