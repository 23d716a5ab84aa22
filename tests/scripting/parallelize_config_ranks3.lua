-- SPDX-License-Identifier: Apache-2.0
-- mh.parallelize on 3 ranks: N01-N03, V10, N08, N10, N13, N17-N19, N28, N30.
return require "support.parallel_models"
