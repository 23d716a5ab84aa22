-- SPDX-License-Identifier: Apache-2.0
-- mh.metrics of events in neighbourhoods.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local fields = require "moonhalo.internal.field_values"

local optional = arguments.optional

--- The mean over windows of `window` elements in each dim of space; beyond the domain there are zeros, or its other
--- end.
local function mean_of_windows(x, window, periodic)
  local dims, half = x.ndim - 2, window // 2
  if window == 1 then return x end
  if periodic then
    local pads = {}
    for d = 1, 2 * dims do pads[d] = half end
    x, half = mh.pad(x, pads, "circular"), 0
  end
  return mh["avg_pool" .. dims .. "d"](x, window, 1, half)
end

return function(define, others, pair_of)
  --- mh.metrics.fss({threshold, window = 3, periodic = false, weights = nil, mask = nil, keep = {}}) -> Metric
  ---   The fractions skill score (Roberts & Lean 2008): 1 - sum (p - o)^2 / (sum p^2 + sum o^2), with p and o the
  ---   fractions of events, guess >= threshold and truth >= threshold, in the window around each element. The sums are
  ---   over all elements of all batches. 1 is a perfect forecast.
  ---   threshold   number      where an event begins
  ---   window      integer     odd: elements of a window in each dim of space
  ---   periodic    boolean     windows continue at the other end of the field; false has no events beyond the domain
  ---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
  ---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others have no events
  ---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
  ---   returns     Metric      of fields [batch, channels, space...] of 1 to 3 dims of space, else as mh.metrics.rmse
  ---   collective  value and state_dict, where fields are cut: one reduction; add sends neighbouring rows
  ---   errors      ValueError: the shapes differ, the window is even or larger than the field
  ---   example
  ---     local m = mh.metrics.fss{threshold = 1.0}
  ---     m:add(mh.tensor{{{0.0, 2.0, 0.0, 0.0}}}, mh.tensor{{{0.0, 0.0, 2.0, 0.0}}})
  ---     ("%.4f"):format(m:value())    --> 0.6667
  define("fss", {"threshold", {"window", 3}, {"periodic", false}, optional "weights", optional "mask"}, {
    check = function(self, op)
      arguments.number(op, "threshold", self.threshold)
      fields.check_window(op, self)
    end,
    sums = function(self, op, guess, truth)
      guess, truth = pair_of(op, guess, truth)
      fields.check_weights(op, guess, self)
      fields.dims_of_windows(op, guess, self.window)
      local function fractions(x)
        return mean_of_windows(fields.masked(x:ge(self.threshold):double(), self.mask), self.window, self.periodic)
      end
      local p, o = fractions(guess), fractions(truth)
      local dims = others(self, op, guess, 0)
      local function sum(x) return fields.sum(fields.masked(x, self.mask), dims, self) end
      return {sum((p - o):square()), sum(p * p + o * o)}
    end,
    finish = function(totals) return 1 - totals[1] / totals[2] end,
  })
end
