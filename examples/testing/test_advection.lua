-- SPDX-License-Identifier: Apache-2.0
-- The operator of advection.cpp in a script. It must give on blocks what it gives on plain tensors:
--   ADVECTION=build/libadvection.so moonhalo test test_advection.lua --ranks 3
local mh = require "moonhalo"
assert(package.loadlib(os.getenv("ADVECTION"), "*"))  -- "*": loads the library, which registers its operators

local function field(seed) return mh.arange(30 * 20):double():add(seed):sin():reshape{30, 20} end

return {
  test_advection = function()
    mh.testing.same_as_plain(function(u, down, right) return mh["example::advect"](u, down, right, 0.1) end,
      {field(1), field(2), field(3)})
  end,
}
