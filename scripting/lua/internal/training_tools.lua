-- SPDX-License-Identifier: Apache-2.0
-- mh.summary, mh.find_lr, mh.checkpoint_modules: what a training script asks of a model.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local forward = require "moonhalo.internal.forward"
local recompute = require "moonhalo.internal.recompute"

local fail = mh.fail
local tools = {}

-- ---- Summary ------------------------------------------------------------------------------------------------------

local function with_commas(count)
  local text = tostring(count)
  repeat
    local changed
    text, changed = text:gsub("^(-?%d+)(%d%d%d)", "%1,%2")
  until changed == 0
  return text
end

local function shape_of(result)
  if type(result) == "table" and not getmetatable(result) then result = result[1] end
  if not mh.is_tensor(result) then return "-", "-" end
  local cut = "-"
  if result:is_shard_tensor() then
    local parts = {}
    for i, placement in ipairs(result.placements) do parts[i] = tostring(placement) end
    cut = table.concat(parts, " ")
  end
  return "{" .. table.concat(result.shape, ", ") .. "}", cut
end

--- Bytes of the tensors of a result on this rank, of each once.
local function bytes_of(results)
  local count, seen = 0, {}
  local function add(value)
    if mh.is_tensor(value) then
      local own = value:is_shard_tensor() and value:to_local() or value
      count = count + own:numel() * own:element_size()
    elseif type(value) == "table" and not getmetatable(value) and not seen[value] then
      seen[value] = true
      for _, one in pairs(value) do add(one) end
    end
  end
  for i = 1, results.n do add(results[i]) end
  return count
end

local function own_parameters(module)
  local count = 0
  for _, tensor in rawget(module, "_parameters") do count = count + tensor:numel() end
  return count
end

--- The rows of the table, one for each call of a module, in the order of calls.
local function record(net, inputs)
  local names, rows, undo, depth = {}, {}, {}, 0
  for name, module in net:named_modules() do names[module] = name end
  local modes = {}
  for _, module in net:named_modules() do modes[module] = module.training end
  local _ <close> = at_end(function()
    for i = #undo, 1, -1 do undo[i]() end
    for module, mode in pairs(modes) do rawset(module, "training", mode) end
  end)
  local seen = {}
  for _, module in net:named_modules() do
    undo[#undo + 1] = forward.replace(module, function(inner)
      return function(self, ...)
        local row = {name = names[self], class = self:class_name(), depth = depth,
          parameters = seen[self] and 0 or own_parameters(self)}
        rows[#rows + 1], seen[self], depth = row, true, depth + 1
        local before = mh._call_graph.macs_so_far()
        local results = table.pack(inner(self, ...))
        depth = depth - 1
        row.shape, row.cut = shape_of(results[1])
        row.macs = mh._call_graph.macs_so_far() - before
        row.bytes = bytes_of(results)
        return table.unpack(results, 1, results.n)
      end
    end)
  end
  net:eval()
  return rows, mh.no_grad(mh._call_graph.macs, function() net(table.unpack(inputs)) end)
end

local function table_of(rows)
  local columns = {{"module", "name"}, {"class", "class"}, {"shape", "shape"}, {"cut", "cut"}, {"parameters", "count"},
    {"multiply-adds", "work"}, {"bytes", "memory"}}
  local right = {count = true, work = true, memory = true}
  local lines, widths = {}, {}
  for _, row in ipairs(rows) do
    row.name = ("  "):rep(row.depth) .. (row.name == "" and "(net)" or row.name)
    row.count, row.work, row.memory = with_commas(row.parameters), with_commas(row.macs), with_commas(row.bytes)
  end
  for c, column in ipairs(columns) do
    widths[c] = #column[1]
    for _, row in ipairs(rows) do widths[c] = math.max(widths[c], #row[column[2]]) end
  end
  local function add(value)
    local parts = {}
    for c, column in ipairs(columns) do
      local text = value(column)
      local space = (" "):rep(widths[c] - #text)
      parts[c] = right[column[2]] and space .. text or text .. space
    end
    lines[#lines + 1] = table.concat(parts, "  ")
  end
  add(function(column) return column[1] end)
  for _, row in ipairs(rows) do add(function(column) return row[column[2]] end) end
  return lines
end

--- mh.summary(net, ...) -> string
---   A table of the modules in the order of their calls: name, class, shape of the result, how it is cut, parameters of
---   its own, multiply-adds of this rank in the module and those within, and bytes of the result on this rank. Runs
---   net(...) once in evaluation mode, without gradients.
---   net         Module      the model
---   returns     string      the table, then sums of parameters, of bytes, and multiply-adds of convolutions and
---                           products
---   collective  as net is
---   errors      TypeError: net is not a Module
---   example
---     local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
---     mh.summary(net, mh.ones{2, 3}):match("16 parameters")    --> 16 parameters
function tools.summary(net, ...)
  arguments.module("summary", net)
  mh._check_module_call(net.forward, net:class_name(), net, ...)
  local rows, macs = record(net, {...})
  local lines, trained, bytes = table_of(rows), 0, 0
  for _, parameter in net:named_parameters() do
    if parameter.requires_grad then trained = trained + parameter:numel() end
    bytes = bytes + parameter:numel() * parameter:element_size()
  end
  local count = net:num_parameters()
  lines[#lines + 1] = ("%s parameters (%s trained), %s bytes, %s multiply-adds"):format(with_commas(count),
      with_commas(trained), with_commas(bytes), macs and with_commas(macs) or "unknown")
  return table.concat(lines, "\n")
end

-- ---- Learning rates -----------------------------------------------------------------------------------------------

local kFind = arguments.signature("find_lr", {"net", "opt", "loss", {"least", 1e-7}, {"most", 1.0}, {"steps", 60},
  {"diverged", 4.0}, {"smooth", 0.9}})

local function copies(list)
  local kept = {}
  for i, tensor in ipairs(list) do kept[i] = {tensor, tensor:detach():clone()} end
  return kept
end

local kRounding = 1e-12  -- of a loss: means of equal losses differ by less

--- The place in the lists where the loss falls fastest; an error if it falls nowhere. It is the one in the middle in a
--- dry run, which has no losses.
local function steepest_fall(rates, losses, steps)
  if mh.backend() == "fake" then return math.max(2, #losses // 2) end
  local steepest, fall = nil, 0
  for i = 2, #losses do
    local slope = losses[i] - losses[i - 1]
    if slope < fall and -slope > kRounding * math.abs(losses[i - 1]) then steepest, fall = i, slope end
  end
  if steepest then return steepest end
  fail(("find_lr: the loss falls at none of the rates\n" ..
      "  have  %d of %d steps, losses from %.6g at rate %g to %.6g at %g\n" ..
      "  fix   begin with a smaller rate (least); give the optimizer the parameters that the loss uses"):format(
    #losses, steps, losses[1], rates[1], losses[#losses], rates[#rates]))
end

--- mh.find_lr(net, opt, loss, {least = 1e-7, most = 1.0, steps = 60, diverged = 4.0, smooth = 0.9}) -> table
---   Trains some steps with rates that grow from `least` to `most` (Smith 2017) and puts everything back: parameters,
---   buffers, gradients, the optimizer's state and rates.
---   net         Module      the model
---   opt         Optimizer   of its parameters
---   loss        function    loss(step) gives the loss of a batch, a tensor of one element
---   least       number      first rate
---   most        number      last rate
---   steps       integer     at least 3
---   diverged    number      stops where the loss is this many times the least one
---   smooth      number      weight of the past in the mean of losses
---   returns     table       {suggestion, rates, losses}: the rate where the loss fell fastest, and the curve
---   collective  as loss and the optimizer's step are; all ranks get the same
---   errors      ValueError: rates that do not grow; the loss falls at none of them
---   example
---     local net = nn.Linear(2, 1)
---     local opt = mh.optim.SGD(net:parameters(), {lr = 0.5})
---     local found = mh.find_lr(net, opt, function() return net(mh.ones{4, 2}):square():mean() end, {steps = 20})
---     #found.rates == #found.losses, opt.param_groups[1].lr    --> true  0.5
function tools.find_lr(...)
  local v = arguments.read(kFind, ...)
  arguments.module("find_lr", v.net)
  if not mh._is_optimizer(v.opt) then fail("find_lr: opt is " .. mh._describe(v.opt) .. ", expected an optimizer") end
  if type(v.loss) ~= "function" then fail("find_lr: loss is " .. mh._describe(v.loss) .. ", expected a function") end
  for _, name in ipairs {"least", "most", "diverged", "smooth"} do arguments.number("find_lr", name, v[name]) end
  arguments.count("find_lr", "steps", v.steps, 3)
  if not (v.least > 0 and v.least < v.most) then
    fail(("find_lr: rates go from %s to %s, expected 0 < least < most"):format(v.least, v.most))
  end
  if not (v.smooth >= 0 and v.smooth < 1) then
    fail(("find_lr: smooth is %s, expected 0 <= smooth < 1"):format(v.smooth))
  end
  local kept, state, gradients = copies(v.net:parameters()), {}, {}
  for _, one in ipairs(copies(v.net:buffers())) do kept[#kept + 1] = one end
  -- The tensors of a state share memory with the optimizer: later steps write to them.
  state = arguments.map_tensors(v.opt:state_dict(), function(x) return x:clone() end)
  for _, one in ipairs(kept) do gradients[#gradients + 1] = {one[1], one[1].grad} end
  local rates, losses, mean, best = {}, {}, 0.0, math.huge
  local _ <close> = at_end(function()
    mh.no_grad(function()
      for _, one in ipairs(kept) do one[1]:copy_(one[2]) end
    end)
    v.opt:load_state_dict(state)
    for _, one in ipairs(gradients) do one[1].grad = one[2] end
  end)
  for step = 0, v.steps - 1 do
    local rate = v.least * (v.most / v.least) ^ (step / (v.steps - 1))
    for _, group in ipairs(v.opt.param_groups) do group.lr = rate end
    v.opt:zero_grad()
    local loss = v.loss(step + 1)
    if not mh.is_tensor(loss) or loss:numel() ~= 1 then
      fail("find_lr: loss gives " .. mh._describe(loss) .. ", expected a tensor of one element")
    end
    mean = v.smooth * mean + (1 - v.smooth) * loss:item()
    local smoothed = mean / (1 - v.smooth ^ (step + 1))
    if not (smoothed <= v.diverged * best) and step > 0 then break end
    best = math.min(best, smoothed)
    rates[#rates + 1], losses[#losses + 1] = rate, smoothed
    loss:backward()
    v.opt:step()
  end
  return {suggestion = rates[steepest_fall(rates, losses, v.steps)], rates = rates, losses = losses}
end

-- ---- Gradient checkpointing ---------------------------------------------------------------------------------------

local kCheckpoint = arguments.signature("checkpoint_modules", {"net", "pattern", {"every", 1}})

--- mh.checkpoint_modules(net, pattern, {every = 1}) -> table
---   Computes what is inside of modules again in backward (mh.checkpoint) instead of keeping it, with the buffers and
---   random numbers of the first run. Buffers, such as statistics of batch norms, are written once. Modules return
---   tensors, tables of tensors, numbers, strings and booleans; tensors that they leave in fields get no gradient.
---   net         Module      the model
---   pattern     string      names of modules as mh.patch takes them: "blocks.*"
---   every       integer     only each n-th of them: 2 keeps every other one
---   returns     table       {remove, modules}: remove() undoes it; the names
---   collective  no
---   errors      ValueError: a pattern that matches nothing; calls of the modules: a result that may hide tensors
---   example
---     local net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
---     table.concat(mh.checkpoint_modules(net, "1").modules, " ")    --> 1
function tools.checkpoint_modules(...)
  local v = arguments.read(kCheckpoint, ...)
  arguments.module("checkpoint_modules", v.net)
  arguments.text("checkpoint_modules", "pattern", v.pattern)
  arguments.count("checkpoint_modules", "every", v.every, 1)
  local names, modules = {}, {}
  for name, module in v.net:named_modules() do names[#names + 1], modules[#modules + 1] = name, module end
  local meant = mh._trees.match_modules("checkpoint_modules", {v.pattern}, names)
  local undo, chosen, count = {}, {}, 0
  for i, module in ipairs(modules) do
    if meant[i] == 1 then
      count = count + 1
      if (count - 1) % v.every == 0 then
        chosen[#chosen + 1] = names[i]
        undo[#undo + 1] = recompute.module(module)
      end
    end
  end
  return {
    modules = chosen,
    remove = function()
      for i = #undo, 1, -1 do undo[i]() end
      undo = {}
    end,
  }
end

return tools
