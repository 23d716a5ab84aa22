-- SPDX-License-Identifier: Apache-2.0
-- mh.Function: functions whose derivative a script writes, and mh.gradcheck, which compares derivatives with
-- differences.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local own = {}

-- ---- What forward and backward are given ------------------------------------------------------------------------

local Context = {}
Context.__index, Context.__class = Context, Context

--- Keeps tensors for backward: inputs and results alone are free of charge.
function Context:save(...)
  local list = {...}
  for i = 1, select("#", ...) do arguments.tensor("Function: save", "value " .. i, list[i]) end
  self._saved = list
end

--- The tensors that were saved, in backward.
function Context:saved()
  if not self._given then fail("Function: saved: it is for backward; in forward the tensors are at hand") end
  return table.unpack(self._given)
end

--- Says in forward that results have no derivative.
function Context:non_differentiable(...)
  for _, result in ipairs {...} do
    arguments.tensor("Function: non_differentiable", "result", result)
    self._without[result] = true
  end
end

strict.methods(Context, "Context")

-- ---- Calls --------------------------------------------------------------------------------------------------------

local function check_results(name, results)
  if results.n == 0 then fail(name .. ": forward gives nothing, expected a tensor") end
  for i = 1, results.n do
    if not mh.is_tensor(results[i]) then
      fail(("%s: result %d of forward is %s, expected a tensor"):format(name, i, mh._describe(results[i])))
    end
  end
end

--- The function that the graph calls with saved tensors and the gradients of the results.
local function backward_of(spec, name, context, places, count)
  return function(saved, gradients)
    local again = setmetatable({needs_input_grad = context.needs_input_grad, _given = saved, _kept = context}, {
      __class = Context,
      __index = function(_, key)
        local method = Context[key]
        if method ~= nil then return method end
        return context[key]
      end,
    })
    local found = table.pack(spec.backward(again, table.unpack(gradients, 1, count)))
    if found.n > context.n then
      fail(("%s: backward gives %d gradients for %d inputs"):format(name, found.n, context.n))
    end
    local wanted = {}
    for i, place in ipairs(places) do
      local gradient = found[place]
      if gradient ~= nil and not mh.is_tensor(gradient) then
        fail(("%s: gradient %d of backward is %s, expected a tensor or nil"):format(name, place,
            mh._describe(gradient)))
      end
      wanted[i] = gradient or mh.none
    end
    return table.unpack(wanted, 1, #places)
  end
end

local function apply(spec, name, ...)
  local given = table.pack(...)
  local context = setmetatable({n = given.n, needs_input_grad = {}, _without = {}, _saved = {}}, Context)
  local tensors, places = {}, {}
  for i = 1, given.n do
    if mh.is_tensor(given[i]) then tensors[#tensors + 1], places[#places + 1] = given[i], i end
    context.needs_input_grad[i] = mh.is_tensor(given[i]) and given[i].requires_grad
  end
  local results = table.pack(mh.no_grad(spec.forward, context, ...))
  check_results(name, results)
  local without = {}
  for i = 1, results.n do
    if context._without[results[i]] then without[#without + 1] = i end
  end
  local saved = context._saved
  context._saved = nil
  return mh._own_function(name, tensors, {table.unpack(results, 1, results.n)}, saved, without,
      backward_of(spec, name, context, places, results.n))
end

--- mh.Function({forward, backward, name = "Function"}) -> function
---   A function with a derivative of your own. forward(ctx, ...) runs without a graph and gives tensors. backward(ctx,
---   g1, ...) is given the gradients of its results (nil where there is none) and gives one for each argument of
---   forward, nil for those that are not tensors. With create_graph it is differentiated itself.
---   forward     function    ctx:save(x, y, ...) keeps tensors; ctx.NAME = value keeps others
---   backward    function    ctx:saved() gives them; ctx.needs_input_grad[i] says which gradients are asked for
---   name        string      what errors and traces call it
---   returns     function    of the arguments behind ctx
---   collective  no; calls are as forward and backward are
---   errors      TypeError: results or gradients that are not tensors
---   example
---     local Cube = mh.Function{
---       forward = function(ctx, x)
---         ctx:save(x)
---         return x ^ 3
---       end,
---       backward = function(ctx, g) return g * ctx:saved() ^ 2 * 3 end,
---     }
---     local x = mh.tensor({2.0}, {requires_grad = true})
---     Cube(x):backward()
---     x.grad:item()    --> 12.0
function own.Function(...)
  local spec = ...
  if select("#", ...) ~= 1 or not arguments.is_options(spec) then
    fail("Function: expected {forward = function(ctx, ...), backward = function(ctx, ...)}, got " .. mh._describe(spec))
  end
  for key in pairs(spec) do
    if key ~= "forward" and key ~= "backward" and key ~= "name" then
      fail(("Function: unknown option '%s'%s\n  have  backward, forward, name"):format(tostring(key),
          mh.did_you_mean(tostring(key), {"backward", "forward", "name"})))
    end
  end
  for _, key in ipairs {"forward", "backward"} do
    if type(spec[key]) ~= "function" then
      fail(("Function: %s is %s, expected a function"):format(key, mh._describe(spec[key])))
    end
  end
  local name = arguments.text("Function", "name", spec.name == nil and "Function" or spec.name)
  local kept = {forward = spec.forward, backward = spec.backward}
  return mh._framed(function(...) return apply(kept, name, ...) end)
end

-- ---- Differences --------------------------------------------------------------------------------------------------

local kCheck = arguments.signature("gradcheck", {"fn", "inputs", {"eps", 1e-6}, {"atol", 1e-5}, {"rtol", 1e-3},
  {"second", false}})

local function whole(x) return x:is_shard_tensor() and x:full_tensor() or x end

--- A tensor of the values of `whole`, plain, placed as `like`.
local function placed(values, like)
  if not like:is_shard_tensor() then return values end
  return mh.distribute_tensor(values, like.mesh, like.placements)
end

--- Sum of all results times weights that are drawn once: a number whose derivative concerns all of them.
local function weighted(fn, inputs, weights)
  local results, total = table.pack(fn(table.unpack(inputs))), nil
  for i = 1, results.n do
    local y = results[i]
    if mh.is_tensor(y) and (y:is_floating_point() or y:is_complex()) then
      if y:is_complex() then y = mh.view_as_real(y) end
      weights[i] = weights[i] or mh.rand(y.shape, {dtype = "float64"}) + 0.5
      local part = (y * weights[i]:to(y.dtype)):sum()
      total = total and total + part or part
    end
  end
  if not total then fail("gradcheck: the function gives no tensor of floating-point numbers") end
  return total
end

local function compare(v, fn, what)
  local weights = {}
  local inputs, by = {}, {}
  for i, x in ipairs(v.inputs) do
    inputs[i] = x
    if x.requires_grad then
      inputs[i] = x:detach():requires_grad_(true)
      by[#by + 1] = i
    end
  end
  local wanted = {}
  for j, i in ipairs(by) do wanted[j] = inputs[i] end
  local found = table.pack(mh.grad({weighted(fn, inputs, weights)}, wanted, {allow_unused = true}))
  for j, i in ipairs(by) do
    local x = whole(v.inputs[i]:detach())
    local have = found[j] and whole(found[j]):flatten():tolist() or nil
    for n = 0, x:numel() - 1 do
      local function at(step)
        local moved = x:clone():flatten()
        moved[n] = moved[n] + step
        local others = {table.unpack(inputs)}
        others[i] = placed(moved:reshape(x.shape), v.inputs[i]):requires_grad_(what == "second")
        return mh.enable_grad(function() return weighted(fn, others, weights):item() end)
      end
      local expected, value = (at(v.eps) - at(-v.eps)) / (2 * v.eps), have and have[n + 1] or 0.0
      local is_close = math.abs(value - expected) <= v.atol + v.rtol * math.abs(expected)
      if not is_close and mh.backend() ~= "fake" then
        fail(("gradcheck: the %s derivative by element %d of input %d is wrong\n  have  %.9g\n" ..
            "  difference quotient  %.9g"):format(what, n, i, value, expected))
      end
    end
  end
end

--- mh.gradcheck(fn, inputs, {eps = 1e-6, atol = 1e-5, rtol = 1e-3, second = false}) -> boolean
---   Compares derivatives with difference quotients, element by element.
---   fn          function    of tensors
---   inputs      {Tensor}    float64, plain or cut; those that require gradients are checked
---   eps         number      half the step of the quotients
---   atol, rtol  number      tolerance
---   second      boolean     second derivatives, too
---   returns     boolean     true
---   collective  as fn is
---   errors      ValueError: the first element whose derivative differs
---   example
---     mh.gradcheck(mh.sin, {mh.rand({3}, {dtype = "float64", requires_grad = true})})    --> true
function own.gradcheck(...)
  local v = arguments.read(kCheck, ...)
  if type(v.fn) ~= "function" and not (type(v.fn) == "table" and getmetatable(v.fn)) then
    fail(("gradcheck: the first argument is %s, expected a function"):format(mh._describe(v.fn)))
  end
  if type(v.inputs) ~= "table" or getmetatable(v.inputs) or #v.inputs == 0 then
    fail(("gradcheck: inputs is %s, expected a list of tensors"):format(mh._describe(v.inputs)))
  end
  arguments.list("gradcheck", "a list of tensors", v.inputs)
  for _, name in ipairs {"eps", "atol", "rtol"} do arguments.number("gradcheck", name, v[name]) end
  arguments.flag("gradcheck", "second", v.second)
  local any = false
  for i, x in ipairs(v.inputs) do
    arguments.tensor("gradcheck", "input " .. i, x)
    any = any or x.requires_grad
    if x.requires_grad and x.dtype ~= "float64" then
      fail(("gradcheck: input %d is %s, whose differences are too rough\n  fix   x:double()"):format(i,
          mh._describe(x)))
    end
  end
  if not any then fail("gradcheck: no input requires a gradient\n  fix   x:requires_grad_(true)") end
  compare(v, v.fn, "first")
  if v.second then
    compare(v, function(...)
      local inputs, wanted = {...}, {}
      for _, x in ipairs(inputs) do
        if x.requires_grad then wanted[#wanted + 1] = x end
      end
      local results = table.pack(v.fn(...))
      local total
      for i = 1, results.n do
        local part = (results[i] * results[i]):sum()
        total = total and total + part or part
      end
      return mh.grad({total}, wanted, {create_graph = true})
    end, "second")
  end
  return true
end

return own
