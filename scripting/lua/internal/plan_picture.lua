-- SPDX-License-Identifier: Apache-2.0
-- moonhalo plan --png: how the time of a step and the memory of a rank go with the number of ranks.

local mh = require "moonhalo"
local lines = require "moonhalo.plot.lines"
local parts = require "moonhalo.plot.parts"

local plan_picture = {}

local kSize = {760, 560}
local kMost, kLeast, kIdeal = parts.series[1], parts.series[7], parts.series[8]

--- The values of one kind from all plans, divided by `unit`.
local function values_of(plans, unit, read)
  local values = {}
  for i, plan in ipairs(plans) do values[i] = read(plan) / unit end
  return values
end

--- One picture of the curves {values, label, color} over the numbers of ranks.
local function panel(ranks, curves, title, unit)
  local series = {}
  for i, curve in ipairs(curves) do
    series[i] = {x = ranks, y = curve[1], label = curve[2], color = curve[3], points = curve[3] ~= kIdeal}
  end
  return lines.picture(series, {title = title, xlabel = "ranks", ylabel = unit, xscale = "log", yscale = "log",
      size = kSize})
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
    add({
        {values_of(plans, 1e-3, function(plan) return plan.ideal.step end), "ideal", kIdeal},
        {values_of(plans, 1e-3, function(plan) return plan.time.step end), "step", kMost},
      }, ("%s on %s: time of a step"):format(name, report.machine), "ms")
  end
  add({
      {values_of(plans, 1e6, function(plan) return plan.ideal.memory end), "ideal", kIdeal},
      {values_of(plans, 1e6, function(plan) return (select(2, peaks_of(plan))) end), "smallest", kLeast},
      {values_of(plans, 1e6, function(plan) return (peaks_of(plan)) end), "largest", kMost},
    }, name .. ": memory of a rank", "MB")
  return #panels > 1 and mh.cat(panels, 1) or panels[1], frames
end

--- Writes the picture of the report `json` into the file `path`.
function plan_picture.main(wanted)
  mh.files.write_png(wanted.path, (plan_picture.of(mh.json.decode(wanted.json))))
end

return plan_picture
