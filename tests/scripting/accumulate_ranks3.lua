-- SPDX-License-Identifier: Apache-2.0
-- N47: mh.accumulate on 3 ranks.
return require "support.accumulate"
