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

--- A target of another shape would be broadcast and the loss be of something else.
function loss_arguments.same_shape(op, input, target)
  local a, b = table.concat(input.shape, ", "), table.concat(target.shape, ", ")
  if a ~= b then
    mh.fail(("%s: input and target have different shapes\n  have  [%s] and [%s]\n" ..
        "  fix   expand one of them, if broadcasting is meant"):format(op, a, b))
  end
end

return loss_arguments
