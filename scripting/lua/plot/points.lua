-- SPDX-License-Identifier: Apache-2.0
-- Points and histograms of mh.plot, which are drawn as lines are.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local axis = require "moonhalo.plot.axis"
local lines = require "moonhalo.plot.lines"
local parts = require "moonhalo.plot.parts"

local fail, numbers = mh.fail, parts.numbers
local points = {}

function points.scatter(path, given, options)
  options = parts.check_call("plot.scatter", path, given, options, "{{x = values, y = values}, ...}")
  local series, low, high = {}, math.huge, -math.huge
  for i, one in ipairs(given) do
    parts.check_options("plot.scatter", one, {"x", "y", "label", "color"})
    if one.x == nil or one.y == nil then fail("plot.scatter: series " .. i .. " needs x and y") end
    series[i] = {x = numbers("plot.scatter", one.x), y = numbers("plot.scatter", one.y), label = one.label,
      color = one.color, line = false}
    for _, value in ipairs(series[i].x) do
      if parts.finite(value) then low, high = math.min(low, value), math.max(high, value) end
    end
  end
  local rest = {}
  for key, value in pairs(options) do rest[key] = key ~= "diagonal" and value or nil end
  if options.diagonal and low <= high then
    series[#series + 1] = {x = {low, high}, y = {low, high}, color = parts.soft}
  end
  lines.draw(path, series, rest)
end

function points.histogram(path, given, options)
  local op = "plot.histogram"
  options = parts.check_call(op, path, given, options, "{{values = tensor, label = text}, ...}")
  local bins = arguments.bins(op, options.bins or 40)
  local fields, rest = {}, {}
  for i, one in ipairs(given) do
    parts.check_options(op, one, {"values", "label", "color"})
    if one.values == nil then fail(op .. ": series " .. i .. " has no values") end
    local x = one.values
    if not mh.is_tensor(x) then x = mh.tensor(numbers(op, x), {dtype = "float64"}) end
    x = x:detach():full_tensor():cpu():double():flatten()
    fields[i] = x:masked_select(x:isfinite())
  end
  local own = {bins = true, density = true, range = true}
  for key, value in pairs(options) do rest[key] = not own[key] and value or nil end
  local low, high = axis.range_of(fields, false)
  if options.range ~= nil then
    if type(options.range) ~= "table" or not (math.type(options.range[1]) and math.type(options.range[2]))
        or not (options.range[1] < options.range[2]) then
      fail(op .. ": range is not {low, high}")
    end
    low, high = options.range[1], options.range[2]
  end
  local series, width = {}, (high - low) / bins
  for i, x in ipairs(fields) do
    local counts = mh.histc(x, bins, low, high)
    if options.density then counts = counts / math.max(1, x:numel()) / width end
    local xs, ys = {low}, {0}
    for b, count in ipairs(counts:tolist()) do
      xs[#xs + 1], ys[#ys + 1] = low + (b - 1) * width, count
      xs[#xs + 1], ys[#ys + 1] = low + b * width, count
    end
    xs[#xs + 1], ys[#ys + 1] = high, 0
    series[i] = {x = xs, y = ys, label = given[i].label, color = given[i].color}
  end
  lines.draw(path, series, rest)
end

return points
