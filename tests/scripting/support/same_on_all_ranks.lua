-- SPDX-License-Identifier: Apache-2.0
-- A string that every rank made must be the same one; an error shows this rank's where it differs from rank 0's.
-- Collective.

local mh = require "moonhalo"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"all"})

--- The values of rank 0: others give zeros to the sum.
local function of_rank_0(values)
  local mine = mh.tensor(values, {dtype = "float64"})
  if mh.rank() ~= 0 then mine = mine * 0 end
  return mh.from_local(mine, mesh, {mh.Partial()}):full_tensor():tolist()
end

local function sum_over_ranks(value)
  return mh.from_local(mh.tensor({value}, {dtype = "float64"}), mesh, {mh.Partial()}):full_tensor():tolist()[1]
end

return function(text)
  local length = #text
  local longest = -mh.from_local(mh.tensor({-length}), mesh, {mh.Partial("min")}):full_tensor():tolist()[1]
  local mine = {text:byte(1, -1)}
  for i = length + 1, longest do mine[i] = 0 end
  local first = of_rank_0(mine)
  local where
  for i = 1, longest do
    if mine[i] ~= first[i] then where = where or i end
  end
  local differing = sum_over_ranks(where and 1 or 0)
  if where then
    error(("rank %d differs from rank 0 at byte %d of %d: '%s'"):format(mh.rank(), where, longest,
      text:sub(math.max(1, where - 60), where + 60)), 2)
  end
  if differing > 0 then error("the text differs on other ranks", 2) end
end
