-- SPDX-License-Identifier: Apache-2.0
-- mh.optim: LibTorch's optimizers, those of optim/rules.lua, and learning-rate schedules, with PyTorch's names and
-- formulas.
-- `optim.AdamW(net:parameters(), {lr = 1e-3})`, or groups `{{params = a, lr = 1e-2}, {params = b}}`.

local mh = require "moonhalo"

local optim = {lr_scheduler = require "moonhalo.optim.lr_scheduler"}

--- mh.optim.SGD(parameters, {lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false}) -> Optimizer
---   Gradient descent, with momentum if it is asked for. Parameters may be placed in any way; all of mh.optim take
---   groups {{params = list, lr = ...}, ...} in place of parameters.
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   momentum    number      part of the last step in the next one
---   dampening   number      reduces the gradient's part in the momentum
---   weight_decay   number   factor of the parameter that is added to its gradient
---   nesterov    boolean     Nesterov's momentum
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     local w = nn.Parameter(mh.ones{2})
---     local opt = mh.optim.SGD({w}, {lr = 0.1})
---     w:sum():backward()
---     opt:step()
---     ("%.2f"):format(w:sum():item())    --> 1.80

--- mh.optim.Adam(parameters, {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0,
---     amsgrad = false}) -> Optimizer
---   Adam (Kingma and Ba).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   betas       {number}    decay of the averages of gradients and of their squares
---   eps         number      added to the divisor
---   weight_decay   number   factor of the parameter that is added to its gradient
---   amsgrad     boolean     divides by the largest average of squares so far
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     local w = nn.Parameter(mh.ones{2})
---     local opt = mh.optim.Adam({w}, {lr = 0.1})
---     w:sum():backward()
---     opt:step()
---     ("%.2f"):format(w:sum():item())    --> 1.80

--- mh.optim.AdamW(parameters, {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 1e-2,
---     amsgrad = false}) -> Optimizer
---   Adam with decoupled weight decay (Loshchilov and Hutter).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   betas       {number}    decay of the averages of gradients and of their squares
---   eps         number      added to the divisor
---   weight_decay   number   part of the parameter that a step of lr = 1 removes
---   amsgrad     boolean     divides by the largest average of squares so far
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     local net = nn.Linear(3, 1)
---     local opt = mh.optim.AdamW(net:parameters(), {lr = 1e-2})
---     net(mh.ones{2, 3}):square():mean():backward()
---     opt:step()
---     opt.param_groups[1].weight_decay    --> 0.01

--- mh.optim.RMSprop(parameters, {lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0,
---     centered = false}) -> Optimizer
---   Divides gradients by the root of the average of their squares.
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   alpha       number      decay of the average
---   eps         number      added to the divisor
---   weight_decay   number   factor of the parameter that is added to its gradient
---   momentum    number      part of the last step in the next one
---   centered    boolean     divides by the estimated standard deviation
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.RMSprop({nn.Parameter(mh.ones{2})}).param_groups[1].alpha    --> 0.99

--- mh.optim.Adagrad(parameters, {lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0,
---     eps = 1e-10}) -> Optimizer
---   Divides gradients by the root of the sum of their squares so far.
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   lr_decay    number      divides lr by 1 + lr_decay * steps
---   weight_decay   number   factor of the parameter that is added to its gradient
---   initial_accumulator_value   number   where the sums start
---   eps         number      added to the divisor
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Adagrad({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.01

--- mh.optim.LBFGS(parameters, {lr = 1, max_iter = 20, max_eval = nil, tolerance_grad = 1e-7, tolerance_change = 1e-9,
---     history_size = 100, line_search_fn = nil}) -> Optimizer
---   A quasi-Newton method, which evaluates the loss several times in each step: opt:step(closure).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters(); one group
---   lr          number      length of a step without a line search
---   max_iter    integer     iterations of a step
---   max_eval    integer?    evaluations of a step; nil for 5 / 4 of max_iter
---   tolerance_grad   number   ends a step where no gradient is larger
---   tolerance_change   number   ends a step where nothing changes more
---   history_size   integer   steps that approximate the second derivatives
---   line_search_fn   "strong_wolfe"?   the line search
---   returns     Optimizer   its step(closure) changes the parameters
---   collective  no; step() is
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     local w = nn.Parameter(mh.tensor({3.0}, {dtype = "float64"}))
---     local opt = mh.optim.LBFGS({w}, {line_search_fn = "strong_wolfe"})
---     opt:step(function()
---       opt:zero_grad()
---       local loss = (w - 1):square():sum()
---       loss:backward()
---       return loss
---     end)
---     ("%.4f"):format(w:item())    --> 1.0000

--- mh.optim.groups(net, options) -> {table}
---   Groups of parameters for an optimizer, with options of their own for modules that are chosen by name:
---   mh.optim.AdamW(mh.optim.groups(net, {["head"] = {lr = 1e-3}, ["blocks.*"] = {lr = 1e-4}}), {lr = 3e-4}). The
---   parameters of a module belong to the innermost module that a pattern means; those of none are the first group.
---   net         Module      the model
---   options     table       {pattern = options of the group}; patterns as mh.patch takes them. {frozen = true} leaves
---     parameters out
---   returns     {table}     groups {params, lr, ...}, in the order of their first parameter
---   collective  no
---   errors      ValueError: a pattern that matches nothing
---   example
---     local net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
---     local groups = mh.optim.groups(net, {["2"] = {lr = 0.5}})
---     local opt = mh.optim.SGD(groups, {lr = 0.1})
---     #groups, opt.param_groups[1].lr, opt.param_groups[2].lr    --> 2  0.1  0.5
function optim.groups(net, options)
  local op = "groups"
  local arguments = require "moonhalo.internal.arguments"
  arguments.module(op, net)
  if not arguments.is_options(options) then
    mh.fail(("%s: expected a table {pattern = options}, got %s"):format(op, mh._describe(options)))
  end
  local names, modules, patterns = {}, {}, {}
  for name, module in net:named_modules() do names[#names + 1], modules[#modules + 1] = name, module end
  for pattern, one in pairs(options) do
    if not arguments.is_options(one) then
      mh.fail(("%s: the options of '%s' are %s, expected a table such as {lr = 1e-3}"):format(op, pattern,
          mh._describe(one)))
    end
    patterns[#patterns + 1] = pattern
  end
  local meant, pattern_of = mh._trees.match_modules(op, patterns, names), {}
  for i, name in ipairs(names) do
    pattern_of[name] = patterns[meant[i]] or name ~= "" and pattern_of[name:match "^(.*)%.[^.]*$" or ""] or nil
  end
  local groups, group_of, seen, kRest = {}, {}, {}, {}
  for i, module in ipairs(modules) do
    for _, parameter in rawget(module, "_parameters") do
      local own = options[pattern_of[names[i]]] or kRest
      if not seen[parameter] and not own.frozen then
        if not group_of[own] then
          group_of[own] = {params = {}}
          for key, value in pairs(own) do group_of[own][key] = value end
          groups[#groups + 1] = group_of[own]
        end
        table.insert(group_of[own].params, parameter)
      end
      seen[parameter] = true
    end
  end
  return groups
end
optim.groups = mh._framed(optim.groups)

for _, name in ipairs {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS"} do
  optim[name] = mh._framed(function(parameters, options) return mh.make_optimizer(name, parameters, options) end)
end
local own = require "moonhalo.internal.own_optimizer"
for name, rule in pairs(require "moonhalo.optim.rules") do optim[name] = mh._framed(own.maker(name, rule)) end
for name, schedule in pairs(optim.lr_scheduler) do optim[name] = mh._framed(schedule) end

return setmetatable(optim, {
  __index = function(_, key)
    local known = {}
    for name in pairs(optim) do known[#known + 1] = name end
    mh.fail("optim: no optimizer or schedule '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), known))
  end,
})
