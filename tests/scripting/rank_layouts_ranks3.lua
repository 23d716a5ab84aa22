-- SPDX-License-Identifier: Apache-2.0
-- N37-N42: checkpoints of one folder a rank, and states in parts, on 3 ranks.
return require "support.rank_layouts"
