-- SPDX-License-Identifier: Apache-2.0
-- One order of keys, one sequence of random numbers on all ranks: C1, C2, C3.

return require "support.shared_order"
