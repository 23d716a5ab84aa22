-- SPDX-License-Identifier: Apache-2.0
-- moonhalo plan --png: how the time of a step and the memory of a rank go with the number of ranks.

local mh = require "moonhalo"
local lines = require "moonhalo.plot.lines"
local parts = require "moonhalo.plot.parts"

local plan_picture = {}

local kSize = {760, 560}
local kLeastRange = 4
local kMost, kLeast, kIdeal = parts.series[1], parts.series[7], parts.series[8]

--- The values of one kind from all plans, divided by `unit`.
local function values_of(plans, unit, read)
  local values = {}
  for i, plan in ipairs(plans) do values[i] = read(plan) / unit end
  return values
end

--- The range of the values of all curves, of at least a factor of kLeastRange: small differences look small.
local function range_of(curves)
  local low, high = math.huge, 0
  for _, curve in ipairs(curves) do
    for _, value in ipairs(curve[1]) do
      if value > 0 then low, high = math.min(low, value), math.max(high, value) end
    end
  end
  if high == 0 then return nil end
  local wider = math.max(1.1, (kLeastRange * low / high) ^ 0.5)
  return {low / wider, high * wider}
end

--- One picture of the curves {values, label, color} over the numbers of ranks.
local function panel(ranks, curves, title, unit)
  local series = {}
  for i, curve in ipairs(curves) do
    series[i] = {x = ranks, y = curve[1], label = curve[2], color = curve[3], points = curve[3] ~= kIdeal}
  end
  return lines.picture(series, {title = title, xlabel = "ranks", ylabel = unit, xscale = "log", yscale = "log",
      size = kSize, xticks = ranks, yrange = range_of(curves)})
end

--- The unit in which the longest step has the fewest digits above 1, and its seconds.
local function time_unit(plans)
  local longest = 0
  for _, plan in ipairs(plans) do longest = math.max(longest, plan.time.step) end
  for _, unit in ipairs {{"h", 3600}, {"min", 60}, {"s", 1}} do
    if longest >= unit[2] then return unit[1], unit[2] end
  end
  return "ms", 1e-3
end

--- The largest and the smallest peak of memory of all kinds of ranks.
local function peaks_of(plan)
  local most, least = 0, math.huge
  for _, kind in ipairs(plan.kinds) do most, least = math.max(most, kind.peak), math.min(least, kind.peak) end
  return most, least
end

--- The picture of a report that was read from JSON, uint8 [height, width, 3], and the places of values in its panels.
function plan_picture.of(report)
  local plans, panels, frames = report.plans, {}, {}
  local name, ranks = report.script:match("[^/]*$"), values_of(report.plans, 1, function(plan) return plan.ranks end)
  local function add(...)
    local canvas, frame = panel(ranks, ...)
    panels[#panels + 1], frames[#frames + 1] = canvas:picture(), frame
  end
  if report.machine then
    local unit, seconds = time_unit(plans)
    add({
        {values_of(plans, seconds, function(plan) return plan.ideal.step end), "ideal", kIdeal},
        {values_of(plans, seconds, function(plan) return plan.time.step end), "step", kMost},
      }, ("%s on %s: time of a step"):format(name, report.machine), unit)
  end
  local curves = {
    {values_of(plans, 1e6, function(plan) return plan.ideal.memory end), "ideal", kIdeal},
    {values_of(plans, 1e6, function(plan) return (select(2, peaks_of(plan))) end), "smallest", kLeast},
    {values_of(plans, 1e6, function(plan) return (peaks_of(plan)) end), "largest", kMost},
  }
  local ranks_differ = false
  for i, least in ipairs(curves[2][1]) do ranks_differ = ranks_differ or least < curves[3][1][i] end
  if not ranks_differ then
    table.remove(curves, 2)
    curves[2][2] = "all ranks"
  end
  add(curves, name .. ": memory of a rank", "MB")
  return #panels > 1 and mh.cat(panels, 1) or panels[1], frames
end

--- Writes the picture of the report `json` into the file `path`.
function plan_picture.main(wanted)
  mh.files.write_png(wanted.path, (plan_picture.of(mh.json.decode(wanted.json))))
end

return plan_picture
