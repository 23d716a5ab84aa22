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
