-- SPDX-License-Identifier: Apache-2.0
-- Puts the functions of mh.functional into `mh` under their names, in front of operators with the same name.

local mh = ...

for name, fn in pairs(require "moonhalo.functional") do
  -- The operator `unfold` slides along one dimension; the function of that name is another thing.
  if name ~= "unfold" then rawset(mh, name, fn) end
end
