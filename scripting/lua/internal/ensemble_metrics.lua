-- SPDX-License-Identifier: Apache-2.0
-- mh.metrics of ensembles, of events, and of spectra.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local errors = require "moonhalo.internal.field_errors"
local fields = require "moonhalo.internal.field_values"

local fail = mh.fail
local optional = arguments.optional

local function checked(self, op, ensemble, truth)
  local dim = errors.check_ensemble(op, ensemble, truth, self)
  fields.check_weights(op, truth, {weights = self.weights, mask = self.mask})
  return ensemble:double(), truth:double(), dim
end

local function define_scores(define, others)
  --- mh.metrics.crps({ensemble = 1, fair = true, weights = nil, mask = nil, keep = {}}) -> Metric
  ---   The mean of the continuous ranked probability score (mh.losses.crps) over all elements.
  ---   ensemble    integer     the dim of members, which the truth does not have
  ---   fair        boolean     Ferro's fair score; false is the score of the ensemble as it is
  ---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
  ---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
  ---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
  ---   returns     Metric      m:add(ensemble, truth), else as mh.metrics.rmse
  ---   collective  value and state_dict, where fields are cut: one reduction
  ---   errors      ValueError: shapes do not match; one member with fair = true
  ---   example
  ---     local m = mh.metrics.crps{fair = false}
  ---     m:add(mh.tensor{{0.0, 2.0}}, mh.tensor{1.0})
  ---     m:value()    --> 0.5
  define("crps", {{"ensemble", 1}, {"fair", true}, optional "weights", optional "mask"}, {
    check = function(self, op) arguments.flag(op, "fair", self.fair) end,
    sums = function(self, op, ensemble, truth)
      ensemble, truth = checked(self, op, ensemble, truth)
      local score = fields.masked(errors.crps_field(op, ensemble, truth, self), self.mask)
      local dims = others(self, op, truth, 0)
      return {fields.sum(score, dims, self), fields.total(score, dims, self)}
    end,
    finish = function(totals) return totals[1] / totals[2] end,
  })

  --- mh.metrics.spread_skill({ensemble = 1, weights = nil, mask = nil, keep = {}}) -> Metric
  ---   The ratio of the ensemble's spread to the error of its mean, 1 for a reliable ensemble: sqrt((m + 1) / m * mean
  ---   variance) / sqrt(mean (mean of members - truth)^2), with the variance of the sample (Fortin et al. 2014).
  ---   ensemble    integer     the dim of members, which the truth does not have
  ---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
  ---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
  ---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
  ---   returns     Metric      m:add(ensemble, truth), else as mh.metrics.rmse
  ---   collective  value and state_dict, where fields are cut: one reduction
  ---   errors      ValueError: shapes do not match
  ---   example
  ---     local m = mh.metrics.spread_skill{}
  ---     m:add(mh.tensor{{0.0, 2.0}}:double(), mh.tensor{1.0 + math.sqrt(3)}:double())
  ---     math.abs(m:value() - 1) < 1e-6    --> true
  define("spread_skill", {{"ensemble", 1}, optional "weights", optional "mask"}, {
    sums = function(self, op, ensemble, truth)
      local dim
      ensemble, truth, dim = checked(self, op, ensemble, truth)
      local members = ensemble:size(dim)
      if members < 2 then fail(op .. ": the ensemble has one member, a spread needs two") end
      local mean = ensemble:mean{dim = {dim}}
      local around = ensemble - mean:unsqueeze(dim)
      local variance = (around * around):sum{dim = {dim}} / (members - 1)
      local error, dims = mean - truth, others(self, op, truth, 0)
      return {fields.sum(fields.masked(variance, self.mask), dims, self) * ((members + 1) / members),
        fields.sum(fields.masked(error * error, self.mask), dims, self)}
    end,
    finish = function(totals) return (totals[1] / totals[2]):sqrt() end,
  })
end

local function define_histogram(define)
  --- mh.metrics.rank_histogram({ensemble = 1, mask = nil}) -> Metric
  ---   How often the truth has rank 0, 1, ... m among the m members, as parts of 1 (Hamill 2001). A truth that equals
  ---   some members is divided equally among the ranks that it may have.
  ---   ensemble    integer     the dim of members, which the truth does not have
  ---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
  ---   returns     Metric      m:add(ensemble, truth); m:value() is a tensor [m + 1]
  ---   collective  value and state_dict, where fields are cut: one reduction
  ---   errors      ValueError: shapes do not match
  ---   example
  ---     local m = mh.metrics.rank_histogram{}
  ---     m:add(mh.tensor{{0.0, 2.0}, {0.0, 2.0}}, mh.tensor{1.0, 3.0})
  ---     m:value():tolist()    --> {0.0, 0.5, 0.5}
  define("rank_histogram", {{"ensemble", 1}, optional "mask"}, {
    check = function(self, op)
      if #self.keep > 0 then fail(op .. ": keep has no meaning, the histogram is of all elements") end
    end,
    sums = function(self, op, ensemble, truth)
      local dim
      ensemble, truth, dim = checked(self, op, ensemble, truth)
      local members, at = ensemble:size(dim), truth:unsqueeze(dim)
      local below = ensemble:lt(at):double():sum{dim = {dim}}
      local upto = ensemble:le(at):double():sum{dim = {dim}}
      local share, all, counts = (upto - below + 1):reciprocal(), {}, {}
      for d = 0, truth.ndim - 1 do all[d + 1] = d end
      for rank = 0, members do
        local here = below:le(rank):logical_and(upto:ge(rank)):double() * share
        counts[rank + 1] = fields.sum(fields.masked(here, self.mask), all, {})
      end
      return {mh.stack(counts)}
    end,
    finish = function(totals) return totals[1] / totals[1]:sum() end,
  })
end

local function define_events(define, others)
  --- mh.metrics.brier({threshold, ensemble = 1, weights = nil, mask = nil, keep = {}}) -> Metric
  ---   The mean of (p - o)^2, with p the part of the members above the threshold and o 1 where the truth is, else 0.
  ---   threshold   number      of the event
  ---   ensemble    integer     the dim of members, which the truth does not have
  ---   weights     Tensor?     broadcast to the fields, as mh.metrics.latitude_weights(lat)
  ---   mask        Tensor?     bool, broadcast to the fields: true where elements count; others may be NaN
  ---   keep        {integer}   dims that are not averaged: {1} gives a value for each channel
  ---   returns     Metric      m:add(ensemble, truth), else as mh.metrics.rmse
  ---   collective  value and state_dict, where fields are cut: one reduction
  ---   errors      ValueError: shapes do not match
  ---   example
  ---     local m = mh.metrics.brier{threshold = 0.5}
  ---     m:add(mh.tensor{{0.0, 1.0}}, mh.tensor{1.0})
  ---     m:value()    --> 0.25
  define("brier", {"threshold", {"ensemble", 1}, optional "weights", optional "mask"}, {
    check = function(self, op) arguments.number(op, "threshold", self.threshold) end,
    sums = function(self, op, ensemble, truth)
      local dim
      ensemble, truth, dim = checked(self, op, ensemble, truth)
      local p = ensemble:gt(self.threshold):double():mean{dim = {dim}}
      local error = fields.masked(p - truth:gt(self.threshold):double(), self.mask)
      local dims = others(self, op, truth, 0)
      return {fields.sum(error * error, dims, self), fields.total(error, dims, self)}
    end,
    finish = function(totals) return totals[1] / totals[2] end,
  })
end

local function define_spectra(define)
  --- mh.metrics.spectrum({dims = {2, ...}, shells = nil, eps = 1e-12}) -> Metric
  ---   Radial spectra of guess and truth (mh.diagnostics.radial_spectrum), averaged over samples.
  ---   dims        {integer}   dims of space; all from 2 if left out
  ---   shells      integer?    number of shells of wave numbers
  ---   eps         number      added to both powers
  ---   returns     Metric      m:value() is {guess = [channels, shells], truth, distance}: the distance is sqrt of the
  ---     mean over channels and shells 1, 2, ... of (10 log10(guess / truth))^2, in decibel
  ---   collective  value and state_dict, where fields are cut: one reduction; add transforms, which sends where a dim
  ---     of space is cut
  ---   errors      ValueError: the shapes differ
  ---   example
  ---     local m, x = mh.metrics.spectrum{}, mh.ones({1, 1, 4, 4})
  ---     m:add(x, x)
  ---     m:value().truth:tolist()    --> {{1.0, 0.0, 0.0}}
  define("spectrum", {optional "dims", optional "shells", {"eps", 1e-12}}, {
    check = function(self, op)
      arguments.number(op, "eps", self.eps)
      if self.shells ~= nil then arguments.count(op, "shells", self.shells, 2) end
      if #self.keep > 0 then
        fail(op .. ": keep has no meaning, all dims but the samples and those of space are kept")
      end
    end,
    sums = function(self, op, guess, truth)
      fields.real(op, "guess", guess)
      fields.real(op, "truth", truth)
      fields.same_shape(op, guess, truth, {"guess", "truth"})
      local options = {dims = fields.space(op, guess, self.dims), shells = self.shells}
      local function total(x) return mh.diagnostics.radial_spectrum(x:double(), options):sum{dim = {0}} end
      return {total(guess), total(truth), guess:size(0)}
    end,
    finish = function(totals, self)
      local guess, truth = totals[1] / totals[3], totals[2] / totals[3]
      local function decibel(x) return (x:narrow(-1, 1, x:size(-1) - 1) + self.eps):log10() * 10 end
      return {guess = guess, truth = truth, distance = (decibel(guess) - decibel(truth)):square():mean():sqrt():item()}
    end,
  })
end

return function(define, others)
  define_scores(define, others)
  define_histogram(define)
  define_events(define, others)
  define_spectra(define)
end
