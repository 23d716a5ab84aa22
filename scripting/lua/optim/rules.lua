-- SPDX-License-Identifier: Apache-2.0
-- Optimizers that LibTorch's C++ lacks, by PyTorch's formulas. Each has its options with defaults, the state of a
-- parameter before its first step, and a step: p and g are the parameter and its gradient, real, plain or cut; s the
-- state; o the options of the group. All is elementwise but in Adafactor and Muon, so blocks need no message.

local mh = require "moonhalo"

local rules = {}

local function zeros(p) return mh.zeros_like(p) end

--- Adds weight_decay * p to the gradient, or shrinks p where the decay is decoupled.
local function decayed(p, g, o)
  if o.weight_decay == 0 then return g end
  if o.decoupled_weight_decay then
    p:mul_(1 - o.lr * o.weight_decay)
    return g
  end
  return g:add(p, {alpha = o.weight_decay})
end

local function moments(g, s, o)
  s.exp_avg:lerp_(g, 1 - o.betas[1])
  s.exp_avg_sq:mul_(o.betas[2]):addcmul_(g, g, {value = 1 - o.betas[2]})
end

--- mh.optim.NAdam(parameters, {lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.0,
---     momentum_decay = 4e-3, decoupled_weight_decay = false, maximize = false}) -> Optimizer
---   Adam with Nesterov's momentum (Dozat 2016).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   betas       {number}    decay of the averages of gradients and of their squares
---   eps         number      added to the divisor
---   weight_decay   number   factor of the parameter that is added to its gradient
---   momentum_decay   number   how the momentum grows with steps
---   decoupled_weight_decay   boolean   weight_decay shrinks the parameter instead
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.NAdam({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.002
rules.NAdam = {
  options = {lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.0, momentum_decay = 4e-3,
    decoupled_weight_decay = false, maximize = false},
  start = function(p) return {step = 0, mu_product = 1.0, exp_avg = zeros(p), exp_avg_sq = zeros(p)} end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    g = decayed(p, g, o)
    local mu = o.betas[1] * (1 - 0.5 * 0.96 ^ (s.step * o.momentum_decay))
    local mu_next = o.betas[1] * (1 - 0.5 * 0.96 ^ ((s.step + 1) * o.momentum_decay))
    s.mu_product = s.mu_product * mu
    moments(g, s, o)
    local denom = (s.exp_avg_sq / (1 - o.betas[2] ^ s.step)):sqrt_():add_(o.eps)
    p:addcdiv_(g, denom, {value = -o.lr * (1 - mu) / (1 - s.mu_product)})
    p:addcdiv_(s.exp_avg, denom, {value = -o.lr * mu_next / (1 - s.mu_product * mu_next)})
  end,
}

--- mh.optim.RAdam(parameters, {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.0,
---     decoupled_weight_decay = false, maximize = false}) -> Optimizer
---   Adam with a rectified rate in its first steps (Liu et al. 2020).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   betas       {number}    decay of the averages of gradients and of their squares
---   eps         number      added to the divisor
---   weight_decay   number   factor of the parameter that is added to its gradient
---   decoupled_weight_decay   boolean   weight_decay shrinks the parameter instead
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.RAdam({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.001
rules.RAdam = {
  options = {lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.0, decoupled_weight_decay = false,
    maximize = false},
  start = function(p) return {step = 0, exp_avg = zeros(p), exp_avg_sq = zeros(p)} end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    g = decayed(p, g, o)
    moments(g, s, o)
    local beta1, beta2 = o.betas[1], o.betas[2]
    local correction = 1 - beta2 ^ s.step
    local update = s.exp_avg / (1 - beta1 ^ s.step)
    local longest = 2 / (1 - beta2) - 1
    local length = longest - 2 * s.step * beta2 ^ s.step / correction
    local factor = o.lr
    if length > 5 then
      factor = factor * math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
          * math.sqrt(correction)
      update = update / (s.exp_avg_sq:sqrt() + o.eps)
    end
    p:add_(update, {alpha = -factor})
  end,
}

--- mh.optim.Adamax(parameters, {lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.0,
---     maximize = false}) -> Optimizer
---   Adam by the largest gradient (Kingma and Ba 2015, section 7.1).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   betas       {number}    decay of the averages of gradients and of their squares
---   eps         number      added to the divisor
---   weight_decay   number   factor of the parameter that is added to its gradient
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Adamax({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.002
rules.Adamax = {
  options = {lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.0, maximize = false},
  start = function(p) return {step = 0, exp_avg = zeros(p), exp_inf = zeros(p)} end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    g = decayed(p, g, o)
    s.exp_avg:lerp_(g, 1 - o.betas[1])
    s.exp_inf:copy_(mh.maximum(s.exp_inf * o.betas[2], g:abs() + o.eps))
    p:addcdiv_(s.exp_avg, s.exp_inf, {value = -o.lr / (1 - o.betas[1] ^ s.step)})
  end,
}

--- mh.optim.Adadelta(parameters, {lr = 1.0, rho = 0.9, eps = 1e-6, weight_decay = 0.0,
---     maximize = false}) -> Optimizer
---   Steps in the units of the parameters (Zeiler 2012).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   rho         number      decay of the averages
---   eps         number      added to the divisor
---   weight_decay   number   factor of the parameter that is added to its gradient
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Adadelta({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 1.0
rules.Adadelta = {
  options = {lr = 1.0, rho = 0.9, eps = 1e-6, weight_decay = 0.0, maximize = false},
  start = function(p) return {step = 0, square_avg = zeros(p), acc_delta = zeros(p)} end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    g = decayed(p, g, o)
    s.square_avg:mul_(o.rho):addcmul_(g, g, {value = 1 - o.rho})
    local delta = (s.acc_delta + o.eps):sqrt_() / (s.square_avg + o.eps):sqrt_() * g
    s.acc_delta:mul_(o.rho):addcmul_(delta, delta, {value = 1 - o.rho})
    p:add_(delta, {alpha = -o.lr})
  end,
}

--- mh.optim.Rprop(parameters, {lr = 1e-2, etas = {0.5, 1.2}, step_sizes = {1e-6, 50.0},
---     maximize = false}) -> Optimizer
---   Steps by the signs of gradients alone (Riedmiller and Braun 1993).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   etas        {number}    factors of the step size where signs differ, and where they agree
---   step_sizes  {number}    least and largest step size
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Rprop({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.01
rules.Rprop = {
  options = {lr = 1e-2, etas = {0.5, 1.2}, step_sizes = {1e-6, 50.0}, maximize = false},
  start = function(p, o) return {step = 0, prev = zeros(p), step_size = mh.full_like(p, o.lr)} end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    local sign = (g * s.prev):sign()
    local grows, shrinks = sign:gt(0):to(p.dtype), sign:lt(0):to(p.dtype)
    s.step_size:mul_(grows * (o.etas[2] - 1) + shrinks * (o.etas[1] - 1) + 1):clamp_(o.step_sizes[1], o.step_sizes[2])
    g = g * (1 - shrinks)
    p:addcmul_(g:sign(), s.step_size, {value = -1})
    s.prev:copy_(g)
  end,
}

--- mh.optim.ASGD(parameters, {lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0.0,
---     maximize = false}) -> Optimizer
---   SGD whose average, `ax` of its state, is the result (Polyak and Juditsky 1992).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   lambd       number      factor of the decay of parameters
---   alpha       number      power of the decay of the rate
---   t0          number      step at which the average begins
---   weight_decay   number   factor of the parameter that is added to its gradient
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.ASGD({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.01
rules.ASGD = {
  options = {lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0.0, maximize = false},
  start = function(p, o) return {step = 0, eta = o.lr, mu = 1.0, ax = zeros(p)} end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    g = decayed(p, g, o)
    p:mul_(1 - o.lambd * s.eta):add_(g, {alpha = -s.eta})
    if s.mu == 1 then
      s.ax:copy_(p)
    else
      s.ax:add_((p - s.ax):mul_(s.mu))
    end
    s.eta = o.lr / (1 + o.lambd * o.lr * s.step) ^ o.alpha
    s.mu = 1 / math.max(1, s.step - o.t0)
  end,
}

--- mh.optim.Lion(parameters, {lr = 1e-4, betas = {0.9, 0.99}, weight_decay = 0.0, maximize = false}) -> Optimizer
---   Steps by the sign of the momentum (Chen et al. 2023). Not in PyTorch.
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   betas       {number}    weights of the momentum in a step, and its decay
---   weight_decay   number   part of the parameter that a step of lr = 1 removes
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is, as gradients may be sums
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Lion({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.0001
rules.Lion = {
  options = {lr = 1e-4, betas = {0.9, 0.99}, weight_decay = 0.0, maximize = false},
  start = function(p) return {exp_avg = zeros(p)} end,
  step = function(p, g, s, o)
    if o.weight_decay ~= 0 then p:mul_(1 - o.lr * o.weight_decay) end
    p:add_(s.exp_avg:lerp(g, 1 - o.betas[1]):sign(), {alpha = -o.lr})
    s.exp_avg:lerp_(g, 1 - o.betas[2])
  end,
}

local function whole(x) return x:is_shard_tensor() and x:full_tensor() or x end

local kEpsilon = {float64 = 2.0 ^ -52, float32 = 2.0 ^ -23, bfloat16 = 2.0 ^ -7, float16 = 2.0 ^ -10}

local function root_mean_square(x) return math.sqrt((x * x):mean():item()) end

--- mh.optim.Adafactor(parameters, {lr = 1e-2, beta2_decay = -0.8, eps1 = false, eps2 = 1e-3, d = 1.0,
---     weight_decay = 0.0, maximize = false}) -> Optimizer
---   Adam that keeps the means of squares over rows and columns alone (Shazeer and Stern 2018).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters()
---   lr          number      learning rate
---   beta2_decay   number   power of the step that the newest square weighs
---   eps1        number|boolean  least square of gradients; false: the type's epsilon
---   eps2        number      least scale of a parameter
---   d           number      largest root mean square of an update
---   weight_decay   number   part of the parameter that a step of lr = 1 removes
---   maximize    boolean     climbs instead
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is: two vectors and two numbers of each parameter that is cut
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Adafactor({nn.Parameter(mh.ones{2})}).param_groups[1].lr    --> 0.01
rules.Adafactor = {
  real = true,
  options = {lr = 1e-2, beta2_decay = -0.8, eps1 = false, eps2 = 1e-3, d = 1.0, weight_decay = 0.0, maximize = false},
  start = function(p)
    if p.ndim < 2 then return {step = 0, variance = zeros(p)} end
    local rows, columns = {table.unpack(p.shape)}, {table.unpack(p.shape)}
    rows[#rows], columns[#columns - 1] = 1, 1
    local options = {dtype = p.dtype, device = p.device}
    return {step = 0, row_var = mh.zeros(rows, options), col_var = mh.zeros(columns, options)}
  end,
  step = function(p, g, s, o)
    s.step = s.step + 1
    local part = s.step ^ o.beta2_decay
    local eps1 = o.eps1 or kEpsilon[p.dtype]
    local alpha = math.max(o.eps2, root_mean_square(p)) * math.min(o.lr, 1 / math.sqrt(s.step))
    if o.weight_decay ~= 0 then p:mul_(1 - o.lr * o.weight_decay) end
    local estimate
    if g.ndim > 1 then
      local square = g * g
      s.row_var:lerp_(whole(square:mean{dim = {-1}, keepdim = true}), part)
      s.col_var:lerp_(whole(square:mean{dim = {-2}, keepdim = true}), part)
      -- The product of both vectors, made in the blocks of the gradient.
      local scale = s.row_var:mean{dim = {-2}, keepdim = true}:clamp_min(eps1)
      estimate = mh.ones_like(g) * s.row_var * (s.col_var / scale)
    else
      s.variance:lerp_(g * g, part)
      estimate = s.variance
    end
    local update = estimate:clamp_min(eps1 * eps1):rsqrt() * g
    local denom = math.max(1.0, root_mean_square(update) / o.d)
    p:add_(update, {alpha = -alpha / denom})
  end,
}

--- The orthogonal factor of a matrix by Newton and Schulz's iteration, in bfloat16 as in PyTorch.
local function orthogonal(matrix, o)
  local x = matrix:to("bfloat16")
  local tall = matrix:size(0) > matrix:size(1)
  if tall then x = x:t() end
  x = x / x:norm():clamp_min(o.eps)
  local a, b, c = table.unpack(o.ns_coefficients)
  for _ = 1, o.ns_steps do
    local gram = x:matmul(x:t())
    local update = mh.addmm(gram, gram, gram, {beta = b, alpha = c})
    x = mh.addmm(x, update, x, {beta = a})
  end
  return tall and x:t() or x
end

--- mh.optim.Muon(parameters, {lr = 1e-3, weight_decay = 0.1, momentum = 0.95, nesterov = true,
---     ns_coefficients = {3.4445, -4.775, 2.0315}, eps = 1e-7, ns_steps = 5, adjust_lr_fn = "original"}) -> Optimizer
---   Steps by the orthogonal factor of the momentum of a matrix (Jordan et al. 2024).
---   parameters   Tensor|{Tensor}|{table}   such as net:parameters(); matrices alone
---   lr          number      learning rate
---   weight_decay   number   part of the parameter that a step of lr = 1 removes
---   momentum    number      decay of the average of gradients
---   nesterov    boolean     Nesterov's momentum
---   ns_coefficients   {number}   of Newton and Schulz's iteration
---   eps         number      added to the divisor
---   ns_steps    number      iterations
---   adjust_lr_fn   "original"|"match_rms_adamw"   factor of lr by the shape of the matrix
---   returns     Optimizer   its step() changes the parameters
---   collective  no; step() is: each matrix that is cut is collected
---   errors      ValueError: no parameters, one that is given twice, or an unknown option
---   example
---     mh.optim.Muon({nn.Parameter(mh.ones{2, 2})}).param_groups[1].lr    --> 0.001
rules.Muon = {
  real = true, matrices = true,
  options = {lr = 1e-3, weight_decay = 0.1, momentum = 0.95, nesterov = true,
    ns_coefficients = {3.4445, -4.775, 2.0315}, eps = 1e-7, ns_steps = 5, adjust_lr_fn = "original"},
  choices = {adjust_lr_fn = {"original", "match_rms_adamw"}},
  start = function(p) return {momentum_buffer = zeros(p)} end,
  step = function(p, g, s, o)
    s.momentum_buffer:lerp_(g, 1 - o.momentum)
    local update = o.nesterov and g:lerp(s.momentum_buffer, o.momentum) or s.momentum_buffer
    local rows, columns = p:size(0), p:size(1)
    local ratio = o.adjust_lr_fn == "original" and math.sqrt(math.max(1, rows / columns))
        or 0.2 * math.sqrt(math.max(rows, columns))
    p:mul_(1 - o.lr * o.weight_decay)
    p:add_(orthogonal(whole(update), o):to(p.dtype), {alpha = -o.lr * ratio})
  end,
}

return rules
