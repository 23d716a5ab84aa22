-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: plans that recompute, on 2 ranks.
return require "support.autodist_recompute"
