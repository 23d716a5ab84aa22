-- SPDX-License-Identifier: Apache-2.0
-- Shared by fully_shard_ranks3.lua, parallelize_ranks3.lua and their kin: models that start in the same way, steps
-- of training.
local mh = require "moonhalo"

local runs = {}

function runs.new(make)
  mh.manual_seed(1)
  return make():double()
end

function runs.whole(tensor) return tensor:is_shard_tensor() and tensor:detach():full_tensor() or tensor:detach() end

--- Clips gradients of plain tensors as mh.clip_grad_norm is defined. Returns the norm.
function runs.clipped_by_hand(parameters, most, options)
  local p, sum, largest = options and options.norm_type or 2.0, 0, 0
  for _, parameter in ipairs(parameters) do
    local sizes = parameter.grad:abs()
    if p ~= math.huge then sum = sum + sizes:pow(p):sum():item() end
    largest = math.max(largest, sizes:max():item())
  end
  local norm = p == math.huge and largest or sum ^ (1 / p)
  for _, parameter in ipairs(parameters) do
    if norm > most then parameter.grad = parameter.grad * (most / (norm + 1e-6)) end
  end
  return mh.tensor(norm, {dtype = "float64"})
end

--- Returns losses, norms of gradients if they are clipped to `most`, in the end parameters, and what
--- `look(step, seen)` adds after each backward pass.
function runs.train(net, x, most, look)
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.05})
  local seen = {}
  for step = 1, 3 do
    opt:zero_grad()
    local loss = net(x):square():mean()
    loss:backward()
    seen["norm " .. step] = most and opt:clip_gnorm(most)
    seen["loss " .. step] = runs.whole(loss)
    if look then look(step, seen) end
    opt:step()
  end
  for name, p in net:named_parameters() do seen[name] = runs.whole(p) end
  return seen
end

--- Three steps: the output and gradients of the first, and the parameters after the last, by name and whole.
--- `loss_of(y)` makes the loss of the output; `sync(net)`, if there is one, runs after backward.
function runs.three_steps(net, x, opt, loss_of, sync)
  local seen = {}
  for step = 1, 3 do
    opt:zero_grad()
    local input = x:detach():requires_grad_()
    local y = net(input)
    loss_of(y):backward()
    if sync then sync(net) end
    if step == 1 then
      seen.output, seen.input = runs.whole(y), runs.whole(input.grad)
      for name, p in net:named_parameters() do seen["gradient of " .. name] = runs.whole(p.grad) end
    end
    opt:step()
  end
  for name, p in net:named_parameters() do seen[name] = runs.whole(p) end
  return seen
end

--- `steps` more steps of an optimizer on the same input; the last loss.
function runs.go_on(net, opt, x, steps)
  local loss
  for _ = 1, steps do
    opt:zero_grad()
    loss = net(x):square():mean()
    loss:backward()
    opt:step()
  end
  return loss:item()
end

return runs
