-- SPDX-License-Identifier: Apache-2.0
-- mh.accumulate: gradients of several batches for one step of the optimizer.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"
local strict = require "moonhalo.internal.strict"

local fail, is_module = mh.fail, base.is_module

--- One batch of a step: `index` in it (from 1), `last`.
local Micro = {}
Micro.__index, Micro.__class = Micro, Micro

local function scale(modules, factor)
  mh.no_grad(function()
    local seen = {}
    for _, module in ipairs(modules) do
      for _, parameter in ipairs(module:parameters()) do
        if parameter.grad and not seen[parameter] then parameter.grad:mul_(factor) end
        seen[parameter] = true
      end
    end
  end)
end

--- Backward of this batch's share in the mean of the step's losses. Returns the loss, detached. Collective as a
--- backward is.
function Micro:backward(loss)
  if not mh.is_tensor(loss) or loss:numel() ~= 1 then
    fail("accumulate: backward takes the loss of a batch, one number\n  fix   reduce it first: mean() or sum()")
  end
  local share = loss / self._of
  share:backward()
  if self.last and self.index < self._of then scale(self._modules, self._of / self.index) end
  return loss:detach()
end

strict.methods(Micro, "Micro-batch")

--- The values of a batch as the script's own loop would have them: of a list its element, else what the iterator gives.
local function reader_of(source, state, control)
  if type(source) == "table" then
    local position = 0
    return function()
      position = position + 1
      return source[position]
    end
  end
  return function()
    local values = table.pack(source(state, control))
    control = values[1]
    return table.unpack(values, 1, values.n)
  end
end

local function check(n, of, source)
  if math.type(n) ~= "integer" or n < 1 then
    fail(("accumulate: expected the number of batches for a step, got %s\n" ..
        "  fix   mh.accumulate(4, net, loader:batches())"):format(mh._describe(n)))
  end
  local modules = is_module(of) and {of} or of
  for i, module in ipairs(type(modules) == "table" and modules or {}) do
    if not is_module(module) then fail(("accumulate: module %d is %s"):format(i, mh._describe(module))) end
  end
  if type(modules) ~= "table" or #modules == 0 then
    fail(("accumulate: expected the module that is trained, or a list of them, got %s\n" ..
        "  fix   mh.accumulate(4, net, loader:batches()); "
      .. "a pipeline has micro-batches of its own"):format(mh._describe(of)))
  end
  if type(source) ~= "function" and (type(source) ~= "table" or getmetatable(source)) then
    fail(("accumulate: expected what `for` goes through, or a list of batches, got %s\n" ..
      "  fix   mh.accumulate(4, net, loader:batches())"):format(mh._describe(source)))
  end
  return modules
end

local accumulate = {}

--- mh.accumulate(n, net, source, ...) -> function
---   Gradients of n batches for one step of the optimizer: for micro, batch in mh.accumulate(4, net, loader:batches()).
---   micro:backward(loss) adds this batch's part of the mean of the n losses and returns the loss; micro.last is true
---   where the optimizer's step follows; micro.index counts from 1. Sums over ranks of mh.fully_shard and mh.replicate
---   are made with the last batch alone.
---   n           integer     batches of a step; fewer that remain at the end make a last step of their own mean
---   net         Module|{Module}   what is trained
---   source      function|table   what `for` takes, or a list of batches
---   returns     function    an iterator of (micro, batch)
---   collective  every rank goes through the same number of batches
---   errors      ValueError: another kind of argument
---   example
---     local w = nn.Linear(1, 1, {bias = false})
---     for micro, batch in mh.accumulate(2, w, {mh.ones{1, 1}, mh.ones{1, 1} * 3}) do
---       micro:backward(w(batch):sum())
---     end
---     w.weight.grad:item()    --> 2.0
function accumulate.accumulate(n, net, source, state, control, closing)
  local modules = check(n, net, source)
  local read, ahead, index = reader_of(source, state, control), nil, 0
  local function next_batch()
    local values = ahead or table.pack(read())
    ahead = nil
    if values[1] == nil then return nil end
    index = index % n + 1
    if index < n then ahead = table.pack(read()) end
    local last = index == n or ahead[1] == nil
    for _, module in ipairs(modules) do module:set_requires_gradient_sync(last) end
    local micro = setmetatable({index = index, last = last, _of = n, _modules = modules}, Micro)
    return micro, table.unpack(values, 1, values.n)
  end
  return next_batch, nil, nil, closing
end

return accumulate
