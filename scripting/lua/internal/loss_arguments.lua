-- SPDX-License-Identifier: Apache-2.0
-- Arguments that losses of mh.functional share.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local loss_arguments = {}

--- The operators' numbers of reductions.
loss_arguments.numbers = {none = 0, mean = 1, sum = 2}

--- The operator's number of a reduction.
function loss_arguments.reduction(op, text)
  return loss_arguments.numbers[arguments.choice(op, "reduction", text, {"mean", "sum", "none"})]
end

--- True if each dim of two shapes, counted from the last, has one size in both, or size 1 in one.
local function broadcast(a, b)
  for i = 0, math.min(#a, #b) - 1 do
    local of_a, of_b = a[#a - i], b[#b - i]
    if of_a ~= of_b and of_a ~= 1 and of_b ~= 1 then return false end
  end
  return true
end

--- A target of another shape would be broadcast and the loss be of something else.
function loss_arguments.same_shape(op, input, target)
  local a, b = table.concat(input.shape, ", "), table.concat(target.shape, ", ")
  if a ~= b then
    mh.fail(("%s: input and target have different shapes\n  have  [%s] and [%s]\n  fix   %s"):format(op, a, b,
        broadcast(input.shape, target.shape) and "expand one of them, if broadcasting is meant"
        or "give a target of the shape of the input"))
  end
end

return loss_arguments
