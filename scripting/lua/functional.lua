-- SPDX-License-Identifier: Apache-2.0
-- mh.functional: the functions of torch.nn.functional that are not single operators, or whose options are texts there
-- and numbers in the operator. Other names are the operators themselves.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local optional, choice = arguments.optional, arguments.choice
local F = {}

local define = arguments.definer(F, {input = true, target = true, var = true, input1 = true, input2 = true,
  anchor = true, positive = true, negative = true, logits = true})

-- ---- Losses -------------------------------------------------------------------------------------------------------

local kReductions = {none = 0, mean = 1, sum = 2}

local function reduction_of(op, text)
  return kReductions[choice(op, "reduction", text, {"mean", "sum", "none"})]
end

--- The operators themselves, before functions of the same names take their place in `mh`.
local aten = {}
for _, name in ipairs {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy_loss", "nll_loss_nd",
  "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "margin_ranking_loss",
  "cosine_embedding_loss", "triplet_margin_loss", "poisson_nll_loss"} do
  aten[name] = mh[name]
end

--- A target of another shape would be broadcast and the loss be of something else.
local function check_same_shape(op, input, target)
  local a, b = table.concat(input.shape, ", "), table.concat(target.shape, ", ")
  if a ~= b then
    fail(("%s: input and target have different shapes\n  have  [%s] and [%s]\n" ..
        "  fix   expand one of them, if broadcasting is meant")
      :format(op, a, b))
  end
end

local kPair = {"input", "target"}
local kReduction = {"reduction", "mean"}

local function pairwise(name, extra)
  local entries = {"input", "target"}
  if extra then
    entries[3], entries[4] = kReduction, extra
  else
    entries[3] = kReduction
  end
  define(name, entries, function(v)
    check_same_shape(name, v.input, v.target)
    local reduction = reduction_of(name, v.reduction)
    if extra then return aten[name](v.input, v.target, reduction, v[extra[1]]) end
    return aten[name](v.input, v.target, reduction)
  end)
end

pairwise("mse_loss")
pairwise("l1_loss")
pairwise("smooth_l1_loss", {"beta", 1.0})
pairwise("huber_loss", {"delta", 1.0})
pairwise("soft_margin_loss")

define("cross_entropy", {kPair[1], kPair[2], optional "weight", {"ignore_index", -100}, kReduction,
  {"label_smoothing", 0.0}}, function(v, op)
    return aten.cross_entropy_loss(v.input, v.target, v.weight, reduction_of(op, v.reduction), v.ignore_index,
        v.label_smoothing)
  end)

define("nll_loss", {kPair[1], kPair[2], optional "weight", {"ignore_index", -100}, kReduction}, function(v, op)
  return aten.nll_loss_nd(v.input, v.target, v.weight, reduction_of(op, v.reduction), v.ignore_index)
end)

define("binary_cross_entropy", {kPair[1], kPair[2], optional "weight", kReduction}, function(v, op)
  check_same_shape(op, v.input, v.target)
  return aten.binary_cross_entropy(v.input, v.target, v.weight, reduction_of(op, v.reduction))
end)

define("binary_cross_entropy_with_logits", {kPair[1], kPair[2], optional "weight", kReduction, optional "pos_weight"},
  function(v, op)
    check_same_shape(op, v.input, v.target)
    return aten.binary_cross_entropy_with_logits(v.input, v.target, v.weight, v.pos_weight,
        reduction_of(op, v.reduction))
  end)

--- The reduction "mean" divides by all elements, as in PyTorch; "batchmean" by the batch, as the mathematics does.
define("kl_div", {kPair[1], kPair[2], kReduction, {"log_target", false}}, function(v, op)
  local options = {log_target = v.log_target}
  if choice(op, "reduction", v.reduction, {"mean", "batchmean", "sum", "none"}) == "batchmean" then
    return aten.kl_div(v.input, v.target, kReductions.sum, options) / v.input:size(0)
  end
  return aten.kl_div(v.input, v.target, kReductions[v.reduction], options)
end)

define("poisson_nll_loss", {kPair[1], kPair[2], {"log_input", true}, {"full", false}, {"eps", 1e-8}, kReduction},
    function(v, op)
  return aten.poisson_nll_loss(v.input, v.target, v.log_input, v.full, v.eps, reduction_of(op, v.reduction))
end)

define("gaussian_nll_loss", {"input", "target", "var", {"full", false}, {"eps", 1e-6}, kReduction}, function(v, op)
  local var = v.var:clamp{min = v.eps}
  local loss = (var:log() + (v.input - v.target):square() / var) * 0.5
  if v.full then loss = loss + 0.5 * math.log(2 * math.pi) end
  reduction_of(op, v.reduction)
  if v.reduction == "none" then return loss end
  return v.reduction == "mean" and loss:mean() or loss:sum()
end)

define("margin_ranking_loss", {"input1", "input2", "target", {"margin", 0.0}, kReduction}, function(v, op)
  return aten.margin_ranking_loss(v.input1, v.input2, v.target, v.margin, reduction_of(op, v.reduction))
end)

define("cosine_embedding_loss", {"input1", "input2", "target", {"margin", 0.0}, kReduction}, function(v, op)
  return aten.cosine_embedding_loss(v.input1, v.input2, v.target, v.margin, reduction_of(op, v.reduction))
end)

define("triplet_margin_loss", {"anchor", "positive", "negative", {"margin", 1.0}, {"p", 2.0}, {"eps", 1e-6},
  {"swap", false}, kReduction}, function(v, op)
  return aten.triplet_margin_loss(v.anchor, v.positive, v.negative, v.margin, v.p, v.eps, v.swap,
      reduction_of(op, v.reduction))
end)

-- ---- Interpolation ------------------------------------------------------------------------------------------------

local kLinearOf = {linear = 1, bilinear = 2, trilinear = 3, bicubic = 2}
local kModes = {"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"}

define("interpolate", {"input", optional "size", optional "scale_factor", {"mode", "nearest"}, optional "align_corners",
  optional "recompute_scale_factor", {"antialias", false}}, function(v, op)
  local x, mode = v.input, choice(op, "mode", v.mode, kModes)
  local dims = x.ndim - 2
  if dims < 1 or dims > 3 then
    fail(op .. ": the input has " .. x.ndim .. " dimensions, wanted 3 to 5 (batch, channel, ...)")
  end
  if (v.size == nil) == (v.scale_factor == nil) then fail(op .. ": give either size or scale_factor") end
  if v.align_corners ~= nil and not kLinearOf[mode] then
    fail(op .. ": align_corners has no meaning for mode '" .. mode .. "'")
  end
  if kLinearOf[mode] and kLinearOf[mode] ~= dims then
    fail(("%s: mode '%s' is for %d spatial dimensions, the input has %d"):format(op, mode, kLinearOf[mode], dims))
  end
  local size = v.size and arguments.tuple(op, "size", v.size, dims)
  local scale = v.scale_factor and arguments.tuple(op, "scale_factor", v.scale_factor, dims)
  if scale and (v.recompute_scale_factor or mode == "area") then
    size = {}
    for d = 1, dims do size[d] = math.floor(x:size(d + 1) * scale[d]) end
    scale = nil
  end
  if scale then
    for d = 1, dims do scale[d] = scale[d] + 0.0 end
  end
  local align = v.align_corners or false
  if mode == "area" then return mh["adaptive_avg_pool" .. dims .. "d"](x, size) end
  if v.antialias then
    if mode ~= "bilinear" and mode ~= "bicubic" then fail(op .. ": antialias needs mode 'bilinear' or 'bicubic'") end
    return mh["_upsample_" .. mode .. "2d_aa"](x, size, align, {scale_factors = scale or mh.none})
  end
  if mode == "nearest" then
    return mh["upsample_nearest" .. dims .. "d"](x, size, {scale_factors = scale or mh.none})
  end
  if mode == "nearest-exact" then
    return mh["_upsample_nearest_exact" .. dims .. "d"](x, size, {scale_factors = scale or mh.none})
  end
  return mh["upsample_" .. mode .. dims .. "d"](x, size, align, {scale_factors = scale or mh.none})
end)

-- ---- Dropout ------------------------------------------------------------------------------------------------------

local drop, alpha_drop, feature_drop = mh.dropout, mh.alpha_dropout, mh.feature_dropout

local function check_drop(op, v)
  if not (arguments.number(op, "p", v.p) >= 0 and v.p <= 1) then
    fail(("%s: p is %s, wanted a probability between 0 and 1"):format(op, mh._describe(v.p)))
  end
  arguments.flag(op, "training", v.training)
end

define("dropout", {"input", {"p", 0.5}, {"training", true}}, function(v, op)
  check_drop(op, v)
  return drop(v.input, v.p, v.training)
end)
define("alpha_dropout", {"input", {"p", 0.5}, {"training", false}}, function(v, op)
  check_drop(op, v)
  return alpha_drop(v.input, v.p, v.training)
end)
for dims = 1, 3 do
  -- An input without batch dimension drops whole channels too.
  define("dropout" .. dims .. "d", {"input", {"p", 0.5}, {"training", true}}, function(v, op)
    check_drop(op, v)
    if v.input.ndim < 2 then
      fail(("%s: input is %s, wanted at least 2 dims (batch, channel)"):format(op, mh._describe(v.input)))
    end
    if v.input.ndim == dims + 1 then return feature_drop(v.input:unsqueeze(0), v.p, v.training):squeeze(0) end
    return feature_drop(v.input, v.p, v.training)
  end)
end

-- ---- The rest -----------------------------------------------------------------------------------------------------

--- Divides by the p-norm along `dim`, of at least eps.
define("normalize", {"input", {"p", 2.0}, {"dim", 1}, {"eps", 1e-12}}, function(v, op)
  if not (v.input:is_floating_point() or v.input:is_complex()) then
    fail(("%s: input is %s, whose quotients are no %s numbers\n  fix   input:float()"):format(op, mh._describe(v.input),
        v.input.dtype))
  end
  for _, name in ipairs {"p", "eps"} do arguments.number(op, name, v[name]) end
  if math.type(v.dim) ~= "integer" then
    fail(("%s: dim is %s, wanted a whole number"):format(op, mh._describe(v.dim)))
  end
  local norm = mh.linalg_vector_norm(v.input, v.p, {dim = {v.dim}, keepdim = true})
  return v.input / norm:clamp_min(v.eps)
end)

define("gumbel_softmax", {"logits", {"tau", 1.0}, {"hard", false}, {"dim", -1}}, function(v, op)
  if not v.logits:is_floating_point() then
    fail(("%s: logits is %s, wanted floating point numbers\n  fix   logits:float()"):format(op, mh._describe(v.logits)))
  end
  arguments.number(op, "tau", v.tau)
  arguments.number(op, "dim", v.dim)
  local noise = -mh.empty_like(v.logits):exponential_():log()
  local soft = ((v.logits + noise) / v.tau):softmax(v.dim)
  if not v.hard then return soft end
  local index = soft:argmax(v.dim, true)
  local hard = mh.zeros_like(soft):scatter(v.dim, index, 1.0)
  return hard - soft:detach() + soft
end)

local function parameters_of(op, parameters)
  if mh.is_tensor(parameters) then return {parameters} end
  if type(parameters) ~= "table" or getmetatable(parameters) then
    fail(op .. ": wanted a list of parameters, got " .. mh._describe(parameters))
  end
  return parameters
end

local function gradients_of(op, parameters)
  local gradients = {}
  for _, parameter in ipairs(parameters_of(op, parameters)) do
    local gradient = parameter.grad
    if gradient then gradients[#gradients + 1] = gradient end
  end
  return gradients
end

--- Scales all gradients, in place, so that their joint norm is at most max_norm. Returns the norm before, a tensor.
define("clip_grad_norm", {"parameters", "max_norm", {"norm_type", 2.0}, {"error_if_nonfinite", false}}, function(v, op)
  local parameters = parameters_of(op, v.parameters)
  return mh._training.clip_grad_norm(parameters, v.max_norm, v.norm_type, v.error_if_nonfinite)
end)

--- Limits every element of every gradient to +- clip_value, in place.
define("clip_grad_value", {"parameters", "clip_value"}, function(v, op)
  mh.no_grad(function()
    local gradients = gradients_of(op, v.parameters)
    for i, gradient in ipairs(gradients) do
      if gradient:is_complex() then
        fail(("%s: gradient %d is complex, and complex numbers have no order\n  have  shape [%s]\n" ..
            "  fix   mh.clip_grad_norm")
          :format(op, i, table.concat(gradient.shape, ", ")))
      end
    end
    arguments.number(op, "clip_value", v.clip_value)
    for _, gradient in ipairs(gradients) do gradient:clamp_(-v.clip_value, v.clip_value) end
  end)
end)

for name, fn in pairs(require "moonhalo.functional.windows") do F[name] = fn end

for name, fn in pairs(F) do F[name] = mh._framed(fn) end

return setmetatable(F, {__index = function(_, name) return mh[name] end})
