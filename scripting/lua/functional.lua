-- SPDX-License-Identifier: Apache-2.0
-- mh.functional: the functions of torch.nn.functional that are not single operators, or whose options are strings
-- there and numbers in the operator. Other names are the operators themselves.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local loss_arguments = require "moonhalo.internal.loss_arguments"

local fail = mh.fail
local optional, choice = arguments.optional, arguments.choice
local reduction_of, check_same_shape = loss_arguments.reduction, loss_arguments.same_shape
local F = {}

local define = arguments.definer(F, {input = true, target = true, var = true, input1 = true, input2 = true,
  anchor = true, positive = true, negative = true, logits = true})

-- ---- Losses -------------------------------------------------------------------------------------------------------

--- The operators themselves, before functions of the same names take their place in `mh`.
local aten = {}
for _, name in ipairs {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy_loss", "nll_loss_nd",
  "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "margin_ranking_loss",
  "cosine_embedding_loss", "triplet_margin_loss", "poisson_nll_loss"} do
  aten[name] = mh[name]
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

--- mh.mse_loss(input, target, reduction = "mean") -> Tensor
--- mh.l1_loss(input, target, reduction = "mean") -> Tensor
--- mh.soft_margin_loss(input, target, reduction = "mean") -> Tensor
---   The mean of (input - target)^2, of |input - target|, or of log(1 + exp(-target * input)).
---   input       Tensor      any shape
---   target      Tensor      the shape of input
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     local x = mh.distribute_tensor(mh.arange(6):float(), mesh, {mh.Shard(0)})
---     mh.mse_loss(x, x + 2):item()    --> 4.0
pairwise("mse_loss")
pairwise("l1_loss")
--- mh.smooth_l1_loss(input, target, reduction = "mean", beta = 1.0) -> Tensor
---   A loss that is quadratic where |input - target| is below beta, and linear above, divided by beta.
---   input       Tensor      any shape
---   target      Tensor      the shape of input
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   beta        number      where it becomes linear
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     mh.smooth_l1_loss(mh.zeros{2}, mh.ones{2} * 3):item()    --> 2.5
pairwise("smooth_l1_loss", {"beta", 1.0})
--- mh.huber_loss(input, target, reduction = "mean", delta = 1.0) -> Tensor
---   A loss that is quadratic where |input - target| is below delta, and linear above.
---   input       Tensor      any shape
---   target      Tensor      the shape of input
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   delta       number      where it becomes linear
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     mh.huber_loss(mh.zeros{2}, mh.ones{2} * 3):item()    --> 2.5
pairwise("huber_loss", {"delta", 1.0})
pairwise("soft_margin_loss")

--- mh.cross_entropy(input, target, {weight = nil, ignore_index = -100, reduction = "mean",
---     label_smoothing = 0.0}) -> Tensor
---   The cross entropy of classes.
---   input       Tensor      logits [batch, classes, space...]
---   target      Tensor      int64 [batch, space...], class numbers from 0; or probabilities of the shape of input
---   weight      Tensor?     [classes], a factor for each class
---   ignore_index   integer   a target that does not count
---   reduction   "mean"|"sum"|"none"   mean or sum over all targets, or all of them
---   label_smoothing   number   0 to 1: the part of the target that is spread over all classes
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of target
---   collective  over the mesh of cut tensors
---   errors      IndexError: a class that is not there
---   example
---     ("%.4f"):format(mh.cross_entropy(mh.zeros{2, 4}, mh.tensor{0, 3}):item())    --> 1.3863
define("cross_entropy", {kPair[1], kPair[2], optional "weight", {"ignore_index", -100}, kReduction,
  {"label_smoothing", 0.0}}, function(v, op)
    return aten.cross_entropy_loss(v.input, v.target, v.weight, reduction_of(op, v.reduction), v.ignore_index,
        v.label_smoothing)
  end)

--- mh.nll_loss(input, target, {weight = nil, ignore_index = -100, reduction = "mean"}) -> Tensor
---   Minus the log probability of the target class.
---   input       Tensor      log probabilities [batch, classes, space...]
---   target      Tensor      int64 [batch, space...], class numbers from 0
---   weight      Tensor?     [classes], a factor for each class
---   ignore_index   integer   a target that does not count
---   reduction   "mean"|"sum"|"none"   mean or sum over all targets, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of target
---   collective  over the mesh of cut tensors
---   errors      IndexError: a class that is not there
---   example
---     mh.nll_loss(mh.tensor{{-0.5, -1.5}}, mh.tensor{1}):item()    --> 1.5
define("nll_loss", {kPair[1], kPair[2], optional "weight", {"ignore_index", -100}, kReduction}, function(v, op)
  return aten.nll_loss_nd(v.input, v.target, v.weight, reduction_of(op, v.reduction), v.ignore_index)
end)

--- mh.binary_cross_entropy(input, target, {weight = nil, reduction = "mean"}) -> Tensor
---   The binary cross entropy of probabilities.
---   input       Tensor      probabilities from 0 to 1
---   target      Tensor      the shape of input, from 0 to 1
---   weight      Tensor?     a factor for each element
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(mh.binary_cross_entropy(mh.full({4}, 0.5), mh.ones{4}):item())    --> 0.6931
define("binary_cross_entropy", {kPair[1], kPair[2], optional "weight", kReduction}, function(v, op)
  check_same_shape(op, v.input, v.target)
  return aten.binary_cross_entropy(v.input, v.target, v.weight, reduction_of(op, v.reduction))
end)

--- mh.binary_cross_entropy_with_logits(input, target, {weight = nil, reduction = "mean", pos_weight = nil}) -> Tensor
---   The binary cross entropy of sigmoid(input), computed without overflow.
---   input       Tensor      logits
---   target      Tensor      the shape of input, from 0 to 1
---   weight      Tensor?     a factor for each element
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   pos_weight   Tensor?    a factor for positive targets
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(mh.binary_cross_entropy_with_logits(mh.zeros{4}, mh.ones{4}):item())    --> 0.6931
define("binary_cross_entropy_with_logits", {kPair[1], kPair[2], optional "weight", kReduction, optional "pos_weight"},
  function(v, op)
    check_same_shape(op, v.input, v.target)
    return aten.binary_cross_entropy_with_logits(v.input, v.target, v.weight, v.pos_weight,
        reduction_of(op, v.reduction))
  end)

--- mh.kl_div(input, target, {reduction = "mean", log_target = false}) -> Tensor
---   The Kullback-Leibler divergence of target from exp(input).
---   input       Tensor      log probabilities
---   target      Tensor      probabilities, or log probabilities with log_target
---   reduction   "mean"|"batchmean"|"sum"|"none"   "mean" divides by all elements, "batchmean" by the batch
---   log_target   boolean    whether target also is log probabilities
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   example
---     local p = mh.full({1, 4}, 0.25)
---     mh.kl_div(p:log(), p, "batchmean"):item()    --> 0.0
define("kl_div", {kPair[1], kPair[2], kReduction, {"log_target", false}}, function(v, op)
  local options = {log_target = v.log_target}
  if choice(op, "reduction", v.reduction, {"mean", "batchmean", "sum", "none"}) == "batchmean" then
    return aten.kl_div(v.input, v.target, loss_arguments.numbers.sum, options) / v.input:size(0)
  end
  return aten.kl_div(v.input, v.target, loss_arguments.numbers[v.reduction], options)
end)

--- mh.poisson_nll_loss(input, target, {log_input = true, full = false, eps = 1e-8, reduction = "mean"}) -> Tensor
---   Minus the log likelihood of counts under a Poisson distribution.
---   input       Tensor      the expected counts, or their logarithms
---   target      Tensor      counts
---   log_input   boolean     whether input is logarithms
---   full        boolean     adds the term of Stirling's formula
---   eps         number      added to input within the logarithm
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" the shape of input
---   collective  over the mesh of cut tensors
---   example
---     mh.poisson_nll_loss(mh.zeros{3}, mh.ones{3}):item()    --> 1.0
define("poisson_nll_loss", {kPair[1], kPair[2], {"log_input", true}, {"full", false}, {"eps", 1e-8}, kReduction},
    function(v, op)
  return aten.poisson_nll_loss(v.input, v.target, v.log_input, v.full, v.eps, reduction_of(op, v.reduction))
end)

--- mh.gaussian_nll_loss(input, target, var, {full = false, eps = 1e-6, reduction = "mean"}) -> Tensor
---   Minus the log likelihood under normal distributions of mean input and variance var.
---   input       Tensor      means
---   target      Tensor      values
---   var         Tensor      variances, of at least eps
---   full        boolean     adds the constant term
---   eps         number      the least variance
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" all elements
---   collective  over the mesh of cut tensors
---   example
---     mh.gaussian_nll_loss(mh.zeros{3}, mh.ones{3} * 2, mh.ones{3}):item()    --> 2.0
define("gaussian_nll_loss", {"input", "target", "var", {"full", false}, {"eps", 1e-6}, kReduction}, function(v, op)
  local var = v.var:clamp{min = v.eps}
  local loss = (var:log() + (v.input - v.target):square() / var) * 0.5
  if v.full then loss = loss + 0.5 * math.log(2 * math.pi) end
  reduction_of(op, v.reduction)
  if v.reduction == "none" then return loss end
  return v.reduction == "mean" and loss:mean() or loss:sum()
end)

--- mh.margin_ranking_loss(input1, input2, target, {margin = 0.0, reduction = "mean"}) -> Tensor
---   The mean of max(0, margin - target * (input1 - input2)).
---   input1      Tensor      scores
---   input2      Tensor      scores, the shape of input1
---   target      Tensor      1 where input1 should be larger, -1 where input2 should
---   margin      number      the required distance
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" all elements
---   collective  over the mesh of cut tensors
---   example
---     mh.margin_ranking_loss(mh.zeros{2}, mh.ones{2}, mh.ones{2}):item()    --> 1.0
define("margin_ranking_loss", {"input1", "input2", "target", {"margin", 0.0}, kReduction}, function(v, op)
  return aten.margin_ranking_loss(v.input1, v.input2, v.target, v.margin, reduction_of(op, v.reduction))
end)

--- mh.cosine_embedding_loss(input1, input2, target, {margin = 0.0, reduction = "mean"}) -> Tensor
---   A loss of the cosine between vectors: 1 - cos where target is 1, max(0, cos - margin) where it is -1.
---   input1      Tensor      [batch, features]
---   input2      Tensor      [batch, features]
---   target      Tensor      [batch], 1 or -1
---   margin      number      below it vectors count as different
---   reduction   "mean"|"sum"|"none"   mean or sum over the batch, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors
---   example
---     ("%.4f"):format(mh.cosine_embedding_loss(mh.ones{2, 3}, mh.ones{2, 3}, -mh.ones{2}):item())    --> 1.0000
define("cosine_embedding_loss", {"input1", "input2", "target", {"margin", 0.0}, kReduction}, function(v, op)
  return aten.cosine_embedding_loss(v.input1, v.input2, v.target, v.margin, reduction_of(op, v.reduction))
end)

--- mh.triplet_margin_loss(anchor, positive, negative, {margin = 1.0, p = 2.0, eps = 1e-6, swap = false,
---     reduction = "mean"}) -> Tensor
---   The mean of max(0, margin + distance(anchor, positive) - distance(anchor, negative)).
---   anchor      Tensor      [batch, features]
---   positive    Tensor      [batch, features], which should be near
---   negative    Tensor      [batch, features], which should be far
---   margin      number      the required difference of the distances
---   p           number      of the p-norm that measures distances
---   eps         number      added to differences
---   swap        boolean     uses the distance of positive and negative where it is smaller
---   reduction   "mean"|"sum"|"none"   mean or sum over the batch, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors
---   example
---     mh.triplet_margin_loss(mh.zeros{2, 3}, mh.zeros{2, 3}, mh.zeros{2, 3}):item()    --> 1.0
define("triplet_margin_loss", {"anchor", "positive", "negative", {"margin", 1.0}, {"p", 2.0}, {"eps", 1e-6},
  {"swap", false}, kReduction}, function(v, op)
  return aten.triplet_margin_loss(v.anchor, v.positive, v.negative, v.margin, v.p, v.eps, v.swap,
      reduction_of(op, v.reduction))
end)

-- ---- Interpolation ------------------------------------------------------------------------------------------------

local kLinearOf = {linear = 1, bilinear = 2, trilinear = 3, bicubic = 2}
local kModes = {"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"}

--- mh.interpolate(input, {size = nil, scale_factor = nil, mode = "nearest", align_corners = nil,
---     recompute_scale_factor = nil, antialias = false}) -> Tensor
---   Interpolates space to another size.
---   input       Tensor      [batch, channels, space...], 1 to 3 dims of space
---   size        integer|{integer}?   size of the result; this or scale_factor
---   scale_factor   number|{number}?   factor for each dim of space
---   mode        "nearest"|"nearest-exact"|"linear"|"bilinear"|"bicubic"|"trilinear"|"area"   how values between are
---     found
---   align_corners   boolean?   whether the corners of input and result coincide; for the linear modes
---   recompute_scale_factor   boolean?   computes with the factor that the rounded size has
---   antialias   boolean     for bilinear and bicubic: smooths where the result is smaller
---   returns     Tensor      [batch, channels, space...]
---   collective  over the mesh of an input whose space is cut
---   errors      ValueError: both or neither of size and scale_factor, or a mode for another number of dims
---   example
---     mh.interpolate(mh.ones{1, 2, 3, 4}, {scale_factor = 2, mode = "bilinear"}).shape    --> {1, 2, 6, 8}
define("interpolate", {"input", optional "size", optional "scale_factor", {"mode", "nearest"}, optional "align_corners",
  optional "recompute_scale_factor", {"antialias", false}}, function(v, op)
  local x, mode = v.input, choice(op, "mode", v.mode, kModes)
  local dims = x.ndim - 2
  if dims < 1 or dims > 3 then
    fail(op .. ": the input has " .. x.ndim .. " dimensions, expected 3 to 5 (batch, channel, ...)")
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
    fail(("%s: p is %s, expected a probability between 0 and 1"):format(op, mh._describe(v.p)))
  end
  arguments.flag(op, "training", v.training)
end

--- mh.dropout(input, p = 0.5, training = true) -> Tensor
--- mh.dropout1d(input, p = 0.5, training = true) -> Tensor
--- mh.dropout2d(input, p = 0.5, training = true) -> Tensor
--- mh.dropout3d(input, p = 0.5, training = true) -> Tensor
---   Sets elements, or whole channels with dropout1d to 3d, to zero with probability p and scales the others by 1 / (1
---   - p).
---   input       Tensor      floating point; of dropout1d to 3d [batch, channels, ...]
---   p           number      probability from 0 to 1
---   training    boolean     false returns input
---   returns     Tensor      shape, dtype and placements of input
---   collective  no
---   errors      ValueError: p is not within 0 and 1
---   example
---     mh.dropout(mh.ones{3}, 0.5, false):tolist()    --> {1.0, 1.0, 1.0}
define("dropout", {"input", {"p", 0.5}, {"training", true}}, function(v, op)
  check_drop(op, v)
  return drop(v.input, v.p, v.training)
end)
--- mh.alpha_dropout(input, p = 0.5, training = false) -> Tensor
---   Dropout that keeps mean and variance after SELU.
---   input       Tensor      floating point
---   p           number      probability from 0 to 1
---   training    boolean     false returns input
---   returns     Tensor      shape, dtype and placements of input
---   collective  no
---   errors      ValueError: p is not within 0 and 1
---   example
---     mh.alpha_dropout(mh.ones{3}):tolist()    --> {1.0, 1.0, 1.0}
define("alpha_dropout", {"input", {"p", 0.5}, {"training", false}}, function(v, op)
  check_drop(op, v)
  return alpha_drop(v.input, v.p, v.training)
end)
for dims = 1, 3 do
  -- An input without batch dimension drops whole channels too.
  define("dropout" .. dims .. "d", {"input", {"p", 0.5}, {"training", true}}, function(v, op)
    check_drop(op, v)
    if v.input.ndim < 2 then
      fail(("%s: input is %s, expected at least 2 dims (batch, channel)"):format(op, mh._describe(v.input)))
    end
    if v.input.ndim == dims + 1 then return feature_drop(v.input:unsqueeze(0), v.p, v.training):squeeze(0) end
    return feature_drop(v.input, v.p, v.training)
  end)
end

-- ---- The rest -----------------------------------------------------------------------------------------------------

--- mh.normalize(input, {p = 2.0, dim = 1, eps = 1e-12}) -> Tensor
---   Divides by the p-norm along a dim.
---   input       Tensor      floating point or complex
---   p           number      of the norm
---   dim         integer     the dim, from 0
---   eps         number      the least divisor
---   returns     Tensor      the shape of input
---   collective  over the mesh of an input that is cut along the dim
---   errors      ValueError: a tensor of integers
---   example
---     mh.normalize(mh.tensor{{3.0, 4.0}}):mul(10):round():tolist()    --> {{6.0, 8.0}}
define("normalize", {"input", {"p", 2.0}, {"dim", 1}, {"eps", 1e-12}}, function(v, op)
  if not (v.input:is_floating_point() or v.input:is_complex()) then
    fail(("%s: input is %s, whose quotients are no %s numbers\n  fix   input:float()"):format(op, mh._describe(v.input),
        v.input.dtype))
  end
  for _, name in ipairs {"p", "eps"} do arguments.number(op, name, v[name]) end
  if math.type(v.dim) ~= "integer" then
    fail(("%s: dim is %s, expected an integer"):format(op, mh._describe(v.dim)))
  end
  local norm = mh.linalg_vector_norm(v.input, v.p, {dim = {v.dim}, keepdim = true})
  return v.input / norm:clamp_min(v.eps)
end)

--- mh.gumbel_softmax(logits, {tau = 1.0, hard = false, dim = -1}) -> Tensor
---   Samples of a categorical distribution through which gradients flow.
---   logits      Tensor      floating point
---   tau         number      temperature: small values come near to one class
---   hard        boolean     one class alone, with the gradient of the soft sample
---   dim         integer     the dim of the classes
---   returns     Tensor      the shape of logits
---   collective  over the mesh of logits that are cut along the dim
---   errors      ValueError: a tensor of integers
---   example
---     mh.gumbel_softmax(mh.zeros{2, 3}, {hard = true}):sum(1):tolist()    --> {1.0, 1.0}
define("gumbel_softmax", {"logits", {"tau", 1.0}, {"hard", false}, {"dim", -1}}, function(v, op)
  if not v.logits:is_floating_point() then
    fail(("%s: logits is %s, expected floating point numbers\n  fix   logits:float()"):format(op,
        mh._describe(v.logits)))
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
    fail(op .. ": expected a list of parameters, got " .. mh._describe(parameters))
  end
  for i, one in ipairs(parameters) do arguments.tensor(op, "parameter " .. i, one) end
  return arguments.list(op, "a list of parameters", parameters)
end

local function gradients_of(op, parameters)
  local gradients = {}
  for _, parameter in ipairs(parameters_of(op, parameters)) do
    local gradient = parameter.grad
    if gradient then gradients[#gradients + 1] = gradient end
  end
  return gradients
end

--- mh.clip_grad_norm(parameters, max_norm, {norm_type = 2.0, error_if_nonfinite = false}) -> Tensor
---   Scales all gradients in place so that their joint norm is at most max_norm. Sums over ranks that are not made yet
---   are made first.
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   max_norm    number      the largest norm
---   norm_type   number      2 for the Euclidean norm, math.huge for the largest element
---   error_if_nonfinite   boolean   whether a norm that is not finite is an error
---   returns     Tensor      the norm before, one element, the same on all ranks
---   collective  over the meshes of the parameters
---   example
---     local w = nn.Parameter(mh.zeros{4})
---     w.grad = mh.ones{4}
---     mh.clip_grad_norm({w}, 10):item()    --> 2.0
define("clip_grad_norm", {"parameters", "max_norm", {"norm_type", 2.0}, {"error_if_nonfinite", false}}, function(v, op)
  local parameters = parameters_of(op, v.parameters)
  return mh._training.clip_grad_norm(parameters, v.max_norm, v.norm_type, v.error_if_nonfinite)
end)

--- mh.clip_grad_value(parameters, clip_value) -> nothing
---   Limits every element of every gradient to +- clip_value, in place.
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   clip_value   number     the largest element
---   returns     nothing
---   collective  no
---   errors      ValueError: a complex gradient
---   example
---     local w = nn.Parameter(mh.zeros{2})
---     w.grad = mh.tensor{5.0, -0.25}
---     mh.clip_grad_value({w}, 1)
---     w.grad:tolist()    --> {1.0, -0.25}
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

for _, part in ipairs {"windows", "classes"} do
  for name, fn in pairs(require("moonhalo.functional." .. part)) do F[name] = fn end
end
require "moonhalo.functional.shorthands"(F)

for name, fn in pairs(F) do F[name] = mh._framed(fn) end

return setmetatable(F, {__index = function(_, name) return mh[name] end})
