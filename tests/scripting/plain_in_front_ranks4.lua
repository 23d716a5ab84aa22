-- SPDX-License-Identifier: Apache-2.0
-- Plain layers in front of divided parts on 4 ranks: N12, N36.
return require "support.plain_in_front"
