-- SPDX-License-Identifier: Apache-2.0
-- D10, V15: parameters of which two mesh dims cut one dim, on 2 x 2 ranks.
return require "support.nested_cuts"
