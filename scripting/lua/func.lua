-- SPDX-License-Identifier: Apache-2.0
-- mh.func: derivatives of functions, with the names of torch.func. Plain tensors and blocks.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local func = {}

local function check_function(op, fn) arguments.callable(op, "the first argument", fn) end

--- Tensors that are differentiated by: of one that has a graph a part of that graph, so that derivatives of derivatives
--- go through.
local function begin(op, list)
  if #list == 0 then fail(op .. ": no tensor to differentiate by") end
  local inputs, nested = {}, false
  for i, x in ipairs(list) do
    arguments.tensor(op, "input " .. i, x)
    if not (x:is_floating_point() or x:is_complex()) then
      fail(("%s: input %d is %s, which has no derivative\n  fix   x:float()"):format(op, i, mh._describe(x)))
    end
    nested = nested or x.requires_grad
    inputs[i] = x.requires_grad and x:view_as(x) or x:detach():requires_grad_(true)
  end
  return inputs, nested
end

local function check_output(op, y)
  if not mh.is_tensor(y) then fail(("%s: the function gives %s, expected a tensor"):format(op, mh._describe(y))) end
  return y
end

--- Derivatives of y, as a list; zeros where y does not depend on an input.
local function gradients(y, inputs, cotangent, create_graph)
  if not y.requires_grad then
    local zeros = {}
    for i, x in ipairs(inputs) do zeros[i] = mh.zeros_like(x) end
    return zeros
  end
  local options = {allow_unused = true, create_graph = create_graph, retain_graph = true,
    grad_outputs = cotangent and {cotangent} or nil}
  local found = table.pack(mh.grad({y}, inputs, options))
  for i, x in ipairs(inputs) do found[i] = found[i] or mh.zeros_like(x) end
  return {table.unpack(found, 1, #inputs)}
end

local function cotangent_of(op, y, given)
  arguments.tensor(op, "the vector", given)
  if table.concat(y.shape, ",") ~= table.concat(given.shape, ",") then
    fail(("%s: the vector has shape [%s], the result [%s]"):format(op, table.concat(given.shape, ", "),
        table.concat(y.shape, ", ")))
  end
  return given
end

--- mh.func.vjp(fn, ...) -> Tensor, function
---   The result of fn(...), and a function that gives the products of a vector with the Jacobian, one for each input.
---   fn          function    of tensors, which gives one tensor
---   returns     Tensor, function   fn(...); products(v) with v of the shape of the result gives a tensor for each
---     input
---   collective  as fn is
---   errors      ValueError: v has another shape
---   example
---     local y, products = mh.func.vjp(function(x) return x * x end, mh.tensor{1.0, 2.0})
---     products(mh.ones{2}):tolist()    --> {2.0, 4.0}
function func.vjp(fn, ...)
  check_function("vjp", fn)
  local inputs, nested = begin("vjp", {...})
  local y = mh.enable_grad(function() return check_output("vjp", fn(table.unpack(inputs))) end)
  return nested and y or y:detach(), function(v)
    return table.unpack(gradients(y, inputs, cotangent_of("vjp", y, v), nested))
  end
end

--- mh.func.jvp(fn, primals, tangents) -> Tensor, Tensor
---   The result of fn, and the product of its Jacobian with a vector, by differentiating twice.
---   fn          function    of tensors, which gives one tensor
---   primals     {Tensor}    its inputs
---   tangents    {Tensor}    the vector: one for each input, of its shape
---   returns     Tensor, Tensor   fn(...) and the product, of the same shape
---   collective  as fn is
---   errors      ValueError: a tangent has another shape than its input
---   example
---     local _, product = mh.func.jvp(function(x) return x * x end, {mh.tensor{1.0, 2.0}}, {mh.tensor{1.0, 10.0}})
---     product:tolist()    --> {2.0, 40.0}
function func.jvp(fn, primals, tangents)
  check_function("jvp", fn)
  for name, list in pairs {primals = primals or false, tangents = tangents or false} do
    if type(list) ~= "table" or getmetatable(list) then
      fail(("jvp: %s are %s, expected a list of tensors"):format(name, mh._describe(list)))
    end
  end
  if #primals ~= #tangents then fail(("jvp: %d primals, %d tangents"):format(#primals, #tangents)) end
  local inputs, nested = begin("jvp", primals)
  for i, x in ipairs(inputs) do cotangent_of("jvp", x, tangents[i]) end
  return mh.enable_grad(function()
    local y = check_output("jvp", fn(table.unpack(inputs)))
    -- The product with u is linear in u; its derivative by u, times the tangents, is the one that is required.
    local u = mh.zeros_like(y):detach():requires_grad_(true)
    local products, outputs, weights = gradients(y, inputs, u, true), {}, {}
    for i, product in ipairs(products) do
      if product.requires_grad then outputs[#outputs + 1], weights[#weights + 1] = product, tangents[i] end
    end
    local value = nested and y or y:detach()
    if #outputs == 0 then return value, mh.zeros_like(y):detach() end
    local result = mh.grad(outputs, {u}, {grad_outputs = weights, allow_unused = true, create_graph = nested,
      retain_graph = true})
    return value, result or mh.zeros_like(y):detach()
  end)
end

--- mh.func.grad_and_value(fn) -> function
---   A function that gives the gradients of fn, a number, and its value.
---   fn          function    of tensors, which gives a tensor of one element
---   returns     function    of the same inputs: a gradient for each, then the value
---   collective  no; calls are as fn is
---   errors      ValueError: fn gives more than one element
---   example
---     local g, value = mh.func.grad_and_value(function(x) return (x * x):sum() end)(mh.tensor{1.0, 2.0})
---     g:tolist(), value:item()    --> {2.0, 4.0}  5.0
function func.grad_and_value(fn)
  check_function("grad_and_value", fn)
  return mh._framed(function(...)
    local inputs, nested = begin("grad_and_value", {...})
    local y = mh.enable_grad(function() return check_output("grad_and_value", fn(table.unpack(inputs))) end)
    if y:numel() ~= 1 then
      fail(("grad_and_value: the function gives %d elements, expected one\n  fix   reduce it: sum() or mean()"):format(
          y:numel()))
    end
    local results = gradients(y, inputs, nil, nested)
    results[#inputs + 1] = nested and y or y:detach()
    return table.unpack(results, 1, #inputs + 1)
  end)
end

--- mh.func.grad(fn) -> function
---   A function that gives the gradients of fn, a number.
---   fn          function    of tensors, which gives a tensor of one element
---   returns     function    of the same inputs: a gradient for each
---   collective  no; calls are as fn is
---   errors      ValueError: fn gives more than one element
---   example
---     mh.func.grad(function(x) return (x * x):sum() end)(mh.tensor{1.0, 2.0}):tolist()    --> {2.0, 4.0}
function func.grad(fn)
  check_function("grad", fn)
  local both = func.grad_and_value(fn)
  return mh._framed(function(...)
    local results = table.pack(both(...))
    return table.unpack(results, 1, results.n - 1)
  end)
end

--- The Jacobian of y, a row for each element.
local function rows_of(y, x, create_graph)
  local rows, count = {}, y:numel()
  local shape = {table.unpack(y.shape)}
  for _, n in ipairs(x.shape) do shape[#shape + 1] = n end
  if count == 0 then return mh.zeros(shape, {dtype = y.dtype}) end
  for i = 0, count - 1 do
    -- One element as a sum, which every cut of y has.
    local pick = mh.zeros({count}, {dtype = y.dtype})
    pick[i] = 1
    rows[i + 1] = gradients((y * pick:reshape(y.shape)):sum(), {x}, nil, create_graph)[1]
  end
  return mh.stack(rows, 0):reshape(shape)
end

--- mh.func.jacobian(fn, x) -> Tensor
---   All derivatives of the elements of fn(x) by those of x: one backward pass for each element of the result.
---   fn          function    of one tensor, which gives one tensor
---   x           Tensor      real
---   returns     Tensor      the shape of the result, then that of x
---   collective  as fn is
---   errors      ValueError: x is complex
---   example
---     mh.func.jacobian(function(x) return x * x end, mh.tensor{1.0, 2.0}):tolist()    --> {{2.0, 0.0}, {0.0, 4.0}}
function func.jacobian(fn, x)
  check_function("jacobian", fn)
  local inputs, nested = begin("jacobian", {x})
  if inputs[1]:is_complex() then fail("jacobian: x is complex\n  fix   give mh.view_as_real(x)") end
  return mh.enable_grad(function()
    return rows_of(check_output("jacobian", fn(inputs[1])), inputs[1], nested)
  end)
end

--- mh.func.jacrev(fn) -> function
--- mh.func.jacfwd(fn) -> function
---   A function that gives the Jacobian of fn, by mh.func.jacobian: jacfwd by backward passes, too.
---   fn          function    of one tensor, which gives one tensor
---   returns     function    of the same input: all derivatives, of the shape of the result, then that of the input
---   collective  no; calls are as fn is
---   errors      TypeError: fn is not a function
---   example
---     mh.func.jacrev(function(x) return x * x end)(mh.tensor{1.0, 2.0}):tolist()    --> {{2.0, 0.0}, {0.0, 4.0}}
for _, name in ipairs {"jacrev", "jacfwd"} do
  func[name] = function(fn)
    check_function(name, fn)
    return mh._framed(function(x) return func.jacobian(fn, x) end)
  end
end

--- mh.func.hessian(fn, x) -> Tensor
---   All second derivatives of a number.
---   fn          function    of one tensor, which gives a tensor of one element
---   x           Tensor      real
---   returns     Tensor      the shape of x twice
---   collective  as fn is
---   errors      ValueError: fn gives more than one element
---   example
---     mh.func.hessian(function(x) return x:prod() end, mh.tensor{1.0, 2.0}):tolist()    --> {{0.0, 1.0}, {1.0, 0.0}}
function func.hessian(fn, x)
  check_function("hessian", fn)
  local inputs, nested = begin("hessian", {x})
  if inputs[1]:is_complex() then fail("hessian: x is complex\n  fix   give mh.view_as_real(x)") end
  return mh.enable_grad(function()
    local y = check_output("hessian", fn(inputs[1]))
    if y:numel() ~= 1 then fail(("hessian: the function gives %d elements, expected one"):format(y:numel())) end
    return rows_of(gradients(y, inputs, nil, true)[1], inputs[1], nested)
  end)
end

--- mh.func.functional_call(net, tensors, ...) -> ...
---   net(...) with other tensors in the place of parameters and buffers, for this call alone.
---   net         Module      the model
---   tensors     table       by name, such as {["fc.weight"] = w}; the others stay
---   returns     ...         what net(...) gives
---   collective  as net is
---   errors      ValueError: net has no such name, or the shape is another
---   example
---     local net = nn.Linear(2, 1, {bias = false})
---     mh.func.functional_call(net, {weight = mh.tensor{{3.0, 4.0}}}, mh.ones{2}):item()    --> 7.0
function func.functional_call(net, tensors, ...)
  local op = "functional_call"
  arguments.module(op, net)
  if type(tensors) ~= "table" or getmetatable(tensors) then
    fail(("%s: tensors are %s, expected a table by name"):format(op, mh._describe(tensors)))
  end
  local places, known = {}, {}
  for prefix, module in net:named_modules() do
    for _, registry in ipairs {"_parameters", "_buffers"} do
      for name, tensor in rawget(module, registry) do
        local full = prefix == "" and name or prefix .. "." .. name
        places[full], known[#known + 1] = {rawget(module, registry), name, tensor}, full
      end
    end
  end
  local changed = {}
  for name, tensor in pairs(tensors) do
    local place = places[name]
    if not place then
      fail(("%s: net has no '%s'%s"):format(op, tostring(name), mh.did_you_mean(tostring(name), known)))
    end
    arguments.tensor(op, "'" .. name .. "'", tensor)
    if table.concat(tensor.shape, ",") ~= table.concat(place[3].shape, ",") then
      fail(("%s: '%s' has shape [%s], expected [%s]"):format(op, name, table.concat(tensor.shape, ", "),
          table.concat(place[3].shape, ", ")))
    end
    changed[#changed + 1] = {place, tensor}
  end
  local _ <close> = at_end(function()
    for _, one in ipairs(changed) do one[1][1][one[1][2]] = one[1][3] end
  end)
  for _, one in ipairs(changed) do one[1][1][one[1][2]] = one[2] end
  return net(...)
end

for name, fn in pairs(func) do func[name] = mh._framed(fn) end

return strict.table("func", func)
