-- SPDX-License-Identifier: Apache-2.0
-- mh.rollout: a network that is applied to its own results.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local optional = arguments.optional
local kSignature = arguments.signature("rollout", {"net", "x", "steps", optional "next", optional "gradients",
  {"recompute", false}, {"dim", 1}, optional "each"})

local function check(v)
  if not arguments.is_callable(v.net) then
    fail(("rollout: net is %s, expected a module or a function"):format(mh._describe(v.net)))
  end
  arguments.tensor("rollout", "x", v.x)
  arguments.count("rollout", "steps", v.steps, 1)
  arguments.flag("rollout", "recompute", v.recompute)
  for _, name in ipairs {"next", "each"} do
    if v[name] ~= nil then arguments.callable("rollout", name, v[name]) end
  end
  if v.gradients ~= nil then
    arguments.count("rollout", "gradients", v.gradients, 0)
    if v.gradients > v.steps then
      fail(("rollout: gradients is %d, more than the %d steps"):format(v.gradients, v.steps))
    end
  end
end

--- The next input, where the script does not say how it is made: the result itself.
local function result_itself(y, input, step)
  if table.concat(y.shape, ",") ~= table.concat(input.shape, ",") then
    fail(("rollout: step %d gives shape [%s] from shape [%s]\n" ..
        "  fix   say how the next input is made, {next = function(y, input, step) return ... end}"):format(step,
            table.concat(y.shape, ", "), table.concat(input.shape, ", ")))
  end
  return y
end

local function checked_tensor(what, value)
  if not mh.is_tensor(value) then
    fail(("rollout: %s gives %s, expected a tensor"):format(what, mh._describe(value)))
  end
  return value
end

--- mh.rollout(net, x, steps, {next = nil, gradients = nil, recompute = false, dim = 1, each = nil}) -> Tensor
---   The results of `steps` steps, y1 = net(x), y2 = net(y1), ..., stacked along a new dim.
---   net         module or function of one tensor
---   x           Tensor      the first input
---   steps       integer     at least 1
---   next        function?   next(y, input, step) gives the input of step + 1: for inputs with forcing or with several
---                           past states. If left out it is y, which has the shape of the input then
---   gradients   integer?    the number of last steps that are differentiated. Those before run without a graph:
---                           the push-forward of Brandstetter et al. 2022. All if left out
---   recompute   boolean     true: a step's inner tensors are computed again in backward (mh.checkpoint)
---   dim         integer     where the steps stand in the result
---   each        function?   each(y, step) sees every result; what it returns, if anything, is stacked in its place
---                           (false: nothing is stacked). Keeps long forecasts small
---   returns     Tensor      {batch, steps, ...} of the results that were kept; nil if there are none
---   collective  as net is
---   errors      ValueError: the result has another shape than the input and `next` is left out
---   example
---     mh.rollout(function(x) return x * 2 end, mh.tensor{{1.0}}, 3):tolist()    --> {{{2.0}, {4.0}, {8.0}}}
local function rollout(...)
  local v = arguments.read(kSignature, ...)
  check(v)
  local input, kept, free = v.x, {}, v.gradients and v.steps - v.gradients or 0
  local function step_of(x)
    if v.recompute then return mh.checkpoint(v.net, x) end
    return v.net(x)
  end
  for step = 1, v.steps do
    local function advance()
      local y = checked_tensor("net", step_of(input))
      if step < v.steps then
        input = v.next and checked_tensor("next", v.next(y, input, step)) or result_itself(y, input, step)
      end
      return y
    end
    local y
    if step <= free then
      y = mh.no_grad(advance)
    else
      y = advance()
    end
    local seen = nil
    if v.each then seen = v.each(y, step) end
    if seen == nil then seen = y end
    if seen then kept[#kept + 1] = checked_tensor("each", seen) end
  end
  if #kept == 0 then return nil end
  local ndim = kept[1].ndim
  if math.type(v.dim) ~= "integer" or v.dim < 0 or v.dim > ndim then
    fail(("rollout: dim is %s, expected 0 to %d for results of %d dims"):format(mh._describe(v.dim), ndim, ndim))
  end
  return mh.stack(kept, v.dim)
end

return {rollout = rollout}
