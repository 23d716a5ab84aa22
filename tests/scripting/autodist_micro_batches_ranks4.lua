-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: numbers of micro-batches in plans by the time of their steps, and use_zero, on 4 ranks.
return require "support.autodist_micro_batches"
