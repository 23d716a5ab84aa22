-- SPDX-License-Identifier: Apache-2.0
-- Modules whose parameters and inputs are sines, as in golden/nn_modules.py.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local modules = {}

function modules.sines(shape, start)
  local count = 1
  for _, n in ipairs(shape) do count = count * n end
  return ((mh.arange(0, count, kF64) * 0.7 + start):sin() * 0.4):reshape(shape)
end

function modules.filled(make)
  local net, i = make(mh.nn):double():eval(), 0
  mh.no_grad(function()
    for _, parameter in net:named_parameters() do
      parameter:copy_(modules.sines(parameter.shape, i))
      i = i + 1
    end
  end)
  return net
end

local function joined(results)
  local list = {}
  local function add(value)
    if mh.is_tensor(value) then
      list[#list + 1] = value:full_tensor():flatten()
    else
      for _, one in ipairs(value) do add(one) end
    end
  end
  for i = 1, results.n do add(results[i]) end
  return mh.cat(list, 0)
end

local function made(shape, start)
  local x = modules.sines({table.unpack(shape)}, start)
  if shape.kind == "sign" then return (x + 0.01):sign() end
  return shape.kind == "positive" and x + 0.5 or x
end

--- Compares a case of golden/nn_modules.py, its first input cut by `placement` of `mesh`, or plain.
function modules.check(case, mesh, placement)
  local net = modules.filled(case[1])
  local inputs = {}
  for i, shape in ipairs(case[2]) do
    local x = made(shape, 9 + i)
    inputs[i] = (placement and mh.distribute_tensor(x, mesh, {placement}) or x):detach():requires_grad_(i == 1)
  end
  local all = joined(table.pack(net(table.unpack(inputs))))
  testing.assert_close(all:detach(), mh.tensor(case[3], kF64), {rtol = 1e-11, atol = 1e-13})
  local loss = (all * mh.arange(0, all:numel(), kF64):cos()):sum()
  loss:backward()
  testing.assert_close(inputs[1].grad:full_tensor():flatten(), mh.tensor(case[4], kF64), {rtol = 1e-11, atol = 1e-13})
  local squares = 0.0
  for _, parameter in net:named_parameters() do
    squares = squares + parameter.grad:full_tensor():square():sum():item()
  end
  testing.assert_close(squares, case[5], {rtol = 1e-11})
end

return modules
