-- SPDX-License-Identifier: Apache-2.0
-- mh.plan: plans as objects. tostring(plan) is JSON that mh.plan.load reads.

local mh = require "moonhalo"

local plan = {}

--- mh.plan.load(file) -> ParallelPlan
---   Reads a plan from a file of JSON: what a plan in Lua may have, with placements as strings "R", "S(0)", "S(0, {5,
---   4})", "P".
---   file        string      path
---   returns     ParallelPlan   for mh.parallelize_module
---   collective  no
---   errors      ValueError: the file cannot be read, or has no plan
---   example
---     local path = ("%s/plan%d.json"):format(folder, mh.rank())
---     local file <close> = io.open(path, "w")
---     assert(file:write(mh.plan.new{parameter = {weight = {mh.Shard(0)}}}:to_json()) and file:flush())
---     local net = mh.parallelize_module(nn.Linear(2, 6), mesh, mh.plan.load(path))
---     net.weight.placements[1].dim    --> 0
function plan.load(file) return mh._plans.load_plan(file) end

--- mh.plan.new(plan) -> ParallelPlan
---   A plan of a table as an object, to print or to save.
---   plan        table|Style   as of mh.parallelize_module
---   returns     ParallelPlan   tostring(plan) is JSON
---   collective  no
---   errors      ValueError: a style that is written in Lua
---   example
---     mh.plan.new{fc = mh.ColwiseParallel()}:has_styles()    --> true
function plan.new(table_or_style)
  if type(table_or_style) ~= "table" and type(table_or_style) ~= "userdata" or table_or_style == mh.none then
    mh.fail("plan.new: expected a table {name = style}, or one style, got " .. mh._describe(table_or_style))
  end
  local made, custom = require("moonhalo.internal.parallel_styles").read_plan("plan.new", table_or_style)
  if #custom > 0 then mh.fail("plan.new: a style that is written in Lua cannot be put into a plan object") end
  return made
end

--- mh.make_optimizer(kind, parameters, options = nil) -> Optimizer
---   Makes the optimizer of mh.optim that a string names; mh.optim[kind](parameters, options) does the same.
---   kind        "SGD"|"Adam"|"AdamW"|"RMSprop"|"Adagrad"|"LBFGS"   the algorithm
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   options     table?      those of the algorithm
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is
---   errors      ValueError: an unknown name, with the nearest one
---   example
---     mh.make_optimizer("SGD", {nn.Parameter(mh.ones{1})}, {lr = 0.5}).name    --> SGD

plan.zoo = mh._framed(require "moonhalo.internal.plan_zoo")
for name, fn in pairs(require "moonhalo.internal.plan_report") do plan[name] = mh._framed(fn) end

return plan
