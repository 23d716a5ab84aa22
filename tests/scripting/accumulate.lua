-- SPDX-License-Identifier: Apache-2.0
-- N47: mh.accumulate on one rank.
return require "support.accumulate"
