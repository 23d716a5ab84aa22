-- SPDX-License-Identifier: Apache-2.0
-- moonhalo run compare_losses.lua -- STEPS TOLERANCE LOG LOG...: every log must have the losses of the first.

local mh = require "moonhalo"

local steps, tolerance = tonumber(arg[1]), tonumber(arg[2])

local function losses(path)
  local found = {}
  for line in io.lines(path) do
    local record = mh.json.decode(line)
    if record.loss then found[#found + 1] = record.loss end
  end
  assert(#found == steps, ("%s has %d losses, not %d"):format(path, #found, steps))
  return found
end

local first = losses(arg[3])
for i = 4, #arg do
  local worst = 0
  for step, loss in ipairs(losses(arg[i])) do
    worst = math.max(worst, math.abs(loss - first[step]) / math.abs(first[step]))
  end
  print(("%-60s differs by at most %.1e"):format(arg[i], worst))
  assert(worst <= tolerance, ("%s differs by %g, more than %g"):format(arg[i], worst, tolerance))
end
