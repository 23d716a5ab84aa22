-- SPDX-License-Identifier: Apache-2.0
-- Plans and weights of mh.parallelize on 4 ranks: V10, N04, N06-N09, N12, N15, N16, N20-N29, N36.
return require "support.parallel_plans"
