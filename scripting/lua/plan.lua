-- SPDX-License-Identifier: Apache-2.0
-- mh.plan: plans as objects. tostring(plan) is JSON that mh.plan.load reads.

local mh = require "moonhalo"

local plan = {}

--- Reads a plan from a JSON file; what may stand in it is what a plan in Lua may hold, placements being texts: "R",
--- "S(0)", "S(0, {5, 4})", "P".
function plan.load(file) return mh._plans.load_plan(file) end

--- The plan object of a table, for printing or saving.
function plan.new(table_or_style)
  if type(table_or_style) ~= "table" and type(table_or_style) ~= "userdata" or table_or_style == mh.none then
    mh.fail("plan.new: wanted a table {name = style}, or one style, got " .. mh._describe(table_or_style))
  end
  local made, custom = require("moonhalo.internal.parallel_styles").read_plan("plan.new", table_or_style)
  if #custom > 0 then mh.fail("plan.new: a style that is written in Lua cannot be put into a plan object") end
  return made
end

plan.zoo = mh._framed(require "moonhalo.internal.plan_zoo")
for name, fn in pairs(require "moonhalo.internal.plan_report") do plan[name] = mh._framed(fn) end

return plan
