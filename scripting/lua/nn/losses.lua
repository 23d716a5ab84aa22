-- SPDX-License-Identifier: Apache-2.0
-- Losses and distances, with torch.nn's names, options and initial values.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local F = require "moonhalo.functional"

local fail = mh.fail
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local losses = {}
local kReduction = {"reduction", "mean"}

local function reduced(op, value, reduction)
  arguments.choice(op, "reduction", reduction, {"mean", "sum", "none"})
  if reduction == "none" then return value end
  return reduction == "mean" and value:mean() or value:sum()
end

local function check_shapes(op, a, b)
  if table.concat(a.shape, ",") ~= table.concat(b.shape, ",") then
    fail(("%s: input and target have different shapes\n  have  [%s] and [%s]"):format(op, table.concat(a.shape, ", "),
        table.concat(b.shape, ", ")))
  end
end

--- The class of losses with the options `entries`; those that are tensors are buffers.
local function new_class(name, entries)
  local spec = signature(name, entries)
  local class = base.Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    self:_keep(spec, {})
    for key, value in pairs(values) do
      if mh.is_tensor(value) then self:register_buffer(key, value, {persistent = false}) else self[key] = value end
    end
    local reductions = {"mean", "sum", "none", name == "KLDivLoss" and "batchmean" or nil}
    if values.reduction then arguments.choice(name, "reduction", values.reduction, reductions) end
  end
  losses[name] = class
  return class, spec
end

--- A loss whose call is run(self, ...), with `count` arguments. The first `tensors` are tensors, all if it is left out.
local function define(name, entries, count, run, tensors)
  local class = new_class(name, entries)
  function class:forward(...)
    local given = table.pack(...)
    if given.n ~= count then
      fail(("%s: the call has %d arguments, expected %d%s"):format(name, given.n, count, tensors and "" or " tensors"))
    end
    for i = 1, tensors or count do arguments.tensor(name, "argument " .. i, given[i]) end
    return run(self, ...)
  end
end

--- A loss whose call is F[fn](input, target, its options).
local function loss(name, fn, entries)
  local class, spec = new_class(name, entries)
  function class:forward(input, target)
    local options = {}
    for _, key in ipairs(spec.names) do options[key] = self[key] end
    return F[fn](input, target, options)
  end
end

--- mh.nn.MSELoss(reduction = "mean") -> Module
--- mh.nn.L1Loss(reduction = "mean") -> Module
---   The mean of (input - target)^2, or of |input - target|. The module takes input and target of one shape.
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Module      its result is the same on all ranks
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     nn.MSELoss()(mh.ones{2, 3} * 3, mh.ones{2, 3}):item()    --> 4.0
loss("MSELoss", "mse_loss", {kReduction})
loss("L1Loss", "l1_loss", {kReduction})

--- mh.nn.SmoothL1Loss(reduction = "mean", beta = 1.0) -> Module
---   A loss that is quadratic where |input - target| is below beta, and linear above, divided by beta.
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   beta        number      where it becomes linear
---   returns     Module      it takes input and target of one shape
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     nn.SmoothL1Loss()(mh.ones{2} * 3, mh.ones{2}):item()    --> 1.5
loss("SmoothL1Loss", "smooth_l1_loss", {kReduction, {"beta", 1.0}})

--- mh.nn.HuberLoss(reduction = "mean", delta = 1.0) -> Module
---   A loss that is quadratic where |input - target| is below delta, and linear above.
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   delta       number      where it becomes linear
---   returns     Module      it takes input and target of one shape
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     nn.HuberLoss()(mh.ones{2} * 3, mh.ones{2}):item()    --> 1.5
loss("HuberLoss", "huber_loss", {kReduction, {"delta", 1.0}})

--- mh.nn.CrossEntropyLoss(weight = nil, ignore_index = -100, reduction = "mean", label_smoothing = 0.0) -> Module
---   The cross entropy of classes, as torch.nn.CrossEntropyLoss. The module takes input [batch, classes, space...], the
---   logits, and target int64 [batch, space...] with class numbers from 0, or probabilities of the shape of input.
---   weight      Tensor?     [classes], a factor for each class
---   ignore_index   integer   a target that does not count
---   reduction   "mean"|"sum"|"none"   mean or sum over all targets, or all of them
---   label_smoothing   number   0 to 1: the part of the target that is spread over all classes
---   returns     Module      its result is the same on all ranks
---   collective  its calls: over the mesh of cut inputs
---   errors      IndexError: a class that is not there
---   example
---     ("%.4f"):format(nn.CrossEntropyLoss()(mh.zeros{2, 4}, mh.tensor{0, 3}):item())    --> 1.3863
loss("CrossEntropyLoss", "cross_entropy", {optional "weight", {"ignore_index", -100}, kReduction,
    {"label_smoothing", 0.0}})

--- mh.nn.NLLLoss(weight = nil, ignore_index = -100, reduction = "mean") -> Module
---   Minus the log probability of the target class, as torch.nn.NLLLoss. The module takes input [batch, classes,
---   space...] of log probabilities and target int64 [batch, space...].
---   weight      Tensor?     [classes], a factor for each class
---   ignore_index   integer   a target that does not count
---   reduction   "mean"|"sum"|"none"   mean or sum over all targets, or all of them
---   returns     Module      its result is the same on all ranks
---   collective  its calls: over the mesh of cut inputs
---   example
---     nn.NLLLoss()(mh.tensor{{-0.5, -1.5}}, mh.tensor{1}):item()    --> 1.5
loss("NLLLoss", "nll_loss", {optional "weight", {"ignore_index", -100}, kReduction})

--- mh.nn.BCELoss(weight = nil, reduction = "mean") -> Module
---   The binary cross entropy of probabilities, as torch.nn.BCELoss. The module takes input and target of one shape,
---   both from 0 to 1.
---   weight      Tensor?     a factor for each element
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   returns     Module      its result is the same on all ranks
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(nn.BCELoss()(mh.full({4}, 0.5), mh.ones{4}):item())    --> 0.6931
loss("BCELoss", "binary_cross_entropy", {optional "weight", kReduction})

--- mh.nn.BCEWithLogitsLoss(weight = nil, reduction = "mean", pos_weight = nil) -> Module
---   The binary cross entropy of sigmoid(input), computed without overflow. The module takes input and target of one
---   shape.
---   weight      Tensor?     a factor for each element
---   reduction   "mean"|"sum"|"none"   mean or sum over all elements, or all of them
---   pos_weight   Tensor?    a factor for positive targets
---   returns     Module      its result is the same on all ranks
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(nn.BCEWithLogitsLoss()(mh.zeros{4}, mh.ones{4}):item())    --> 0.6931
loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", {optional "weight", kReduction, optional "pos_weight"})

--- mh.nn.KLDivLoss(reduction = "mean", log_target = false) -> Module
---   The Kullback-Leibler divergence of target from exp(input), as torch.nn.KLDivLoss. The module takes log
---   probabilities as input.
---   reduction   "mean"|"batchmean"|"sum"|"none"   "mean" divides by all elements, "batchmean" by the batch
---   log_target   boolean    whether target also is log probabilities
---   returns     Module      its result is the same on all ranks
---   collective  its calls: over the mesh of cut inputs
---   example
---     local p = mh.full({1, 4}, 0.25)
---     nn.KLDivLoss("batchmean")(p:log(), p):item()    --> 0.0
loss("KLDivLoss", "kl_div", {kReduction, {"log_target", false}})

--- mh.nn.CosineSimilarity(dim = 1, eps = 1e-8) -> Module
--- mh.nn.PairwiseDistance(p = 2.0, eps = 1e-6, keepdim = false) -> Module
---   The cosine of the angle, or the p-norm of the difference, of two tensors along a dim (the last one).
---   dim         integer     the dim of the vectors
---   p           number      of the norm
---   eps         number      least divisor; added to the difference
---   keepdim     boolean     keeps a dim of 1
---   returns     Module      of two tensors
---   collective  its calls: where the dim is cut
---   errors      TypeError: arguments that are not tensors
---   example
---     nn.PairwiseDistance{eps = 0.0}(mh.ones{1, 4}, mh.zeros{1, 4}):item()    --> 2.0
define("CosineSimilarity", {{"dim", 1}, {"eps", 1e-8}}, 2, function(self, a, b)
  return mh.cosine_similarity(a, b, self.dim, self.eps)
end)
define("PairwiseDistance", {{"p", 2.0}, {"eps", 1e-6}, {"keepdim", false}}, 2, function(self, a, b)
  return mh.linalg_vector_norm(a - b + self.eps, self.p + 0.0, {dim = {-1}, keepdim = self.keepdim})
end)

--- mh.nn.CosineEmbeddingLoss(margin = 0.0, reduction = "mean") -> Module
--- mh.nn.MarginRankingLoss(margin = 0.0, reduction = "mean") -> Module
---   Losses of two tensors and a target of 1 and -1, as in torch.nn: 1 - cos, or max(0, cos - margin); max(0,
---   -target * (a - b) + margin).
---   margin      number      of pairs of target -1, or of the order
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of three tensors
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.MarginRankingLoss(1.0)(mh.ones{2}, mh.ones{2}, mh.ones{2}):item()    --> 1.0
define("CosineEmbeddingLoss", {{"margin", 0.0}, kReduction}, 3, function(self, a, b, target)
  return F.cosine_embedding_loss(a, b, target, {margin = self.margin, reduction = self.reduction})
end)
define("MarginRankingLoss", {{"margin", 0.0}, kReduction}, 3, function(self, a, b, target)
  return F.margin_ranking_loss(a, b, target, {margin = self.margin, reduction = self.reduction})
end)

--- mh.nn.HingeEmbeddingLoss(margin = 1.0, reduction = "mean") -> Module
---   x where the target is 1, max(0, margin - x) where it is -1.
---   margin      number
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of input and target
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.HingeEmbeddingLoss()(mh.ones{2} * 3, mh.ones{2}):item()    --> 3.0
define("HingeEmbeddingLoss", {{"margin", 1.0}, kReduction}, 2, function(self, x, target)
  check_shapes("HingeEmbeddingLoss", x, target)
  local near, far = target:eq(1):to(x.dtype), target:eq(-1):to(x.dtype)
  return reduced("HingeEmbeddingLoss", x * near + (self.margin - x):clamp_min(0) * far, self.reduction)
end)

--- mh.nn.SoftMarginLoss(reduction = "mean") -> Module
---   log(1 + exp(-target * x)), with a target of 1 and -1.
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of input and target
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(nn.SoftMarginLoss()(mh.zeros{2}, mh.ones{2}):item())    --> 0.6931
define("SoftMarginLoss", {kReduction}, 2, function(self, x, target)
  return F.soft_margin_loss(x, target, {reduction = self.reduction})
end)

--- mh.nn.PoissonNLLLoss(log_input = true, full = false, eps = 1e-8, reduction = "mean") -> Module
---   exp(x) - target * x, or with log_input = false x - target * log(x + eps).
---   log_input   boolean     x is the logarithm of the rate
---   full        boolean     with Stirling's term
---   eps         number      added to the rate
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of input and target
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.PoissonNLLLoss()(mh.zeros{2}, mh.ones{2}):item()    --> 1.0
define("PoissonNLLLoss", {{"log_input", true}, {"full", false}, {"eps", 1e-8}, kReduction}, 2, function(self, x, target)
  return F.poisson_nll_loss(x, target, {log_input = self.log_input, full = self.full, eps = self.eps,
    reduction = self.reduction})
end)

--- mh.nn.GaussianNLLLoss({full = false, eps = 1e-6, reduction = "mean"}) -> Module
---   (log(var) + (x - target)^2 / var) / 2, of three tensors: input, target, variance.
---   full        boolean     with the constant term
---   eps         number      least variance
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of three tensors
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.GaussianNLLLoss()(mh.zeros{2}, mh.ones{2}, mh.ones{2}):item()    --> 0.5
define("GaussianNLLLoss", {{"full", false}, {"eps", 1e-6}, kReduction}, 3, function(self, x, target, var)
  return F.gaussian_nll_loss(x, target, var, {full = self.full, eps = self.eps, reduction = self.reduction})
end)

--- mh.nn.TripletMarginLoss({margin = 1.0, p = 2.0, eps = 1e-6, swap = false, reduction = "mean"}) -> Module
---   max(0, |a - p| - |a - n| + margin) of an anchor, a positive and a negative example.
---   margin      number
---   p           number      of the norm
---   eps         number      added to differences
---   swap        boolean     with the distance of p and n, where it is less
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of three tensors
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.TripletMarginLoss()(mh.zeros{1, 2}, mh.zeros{1, 2}, mh.zeros{1, 2}):item()    --> 1.0
define("TripletMarginLoss", {{"margin", 1.0}, {"p", 2.0}, {"eps", 1e-6}, {"swap", false}, kReduction}, 3,
    function(self, a, p, n)
  return F.triplet_margin_loss(a, p, n, {margin = self.margin, p = self.p, eps = self.eps, swap = self.swap,
    reduction = self.reduction})
end)

--- mh.nn.TripletMarginWithDistanceLoss({distance_function = nil, margin = 1.0, swap = false,
---     reduction = "mean"}) -> Module
---   As nn.TripletMarginLoss, with any function of two tensors for the distance.
---   distance_function   function?   of two tensors, one number for each pair; nil for nn.PairwiseDistance()
---   margin      number
---   swap        boolean     with the distance of p and n, where it is less
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of three tensors
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.TripletMarginWithDistanceLoss()(mh.zeros{1, 2}, mh.zeros{1, 2}, mh.zeros{1, 2}):item()    --> 1.0
define("TripletMarginWithDistanceLoss", {optional "distance_function", {"margin", 1.0}, {"swap", false}, kReduction}, 3,
    function(self, a, p, n)
  return F.triplet_margin_with_distance_loss(a, p, n, {distance_function = self.distance_function,
    margin = self.margin, swap = self.swap, reduction = self.reduction})
end)

--- mh.nn.MultiMarginLoss(p = 1, margin = 1.0, weight = nil, reduction = "mean") -> Module
---   The mean over classes j of max(0, margin - x[target] + x[j])^p, without the target itself.
---   p           integer     1 or 2
---   margin      number
---   weight      Tensor?     of each class
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of scores [batch, classes] and class numbers int64 [batch]
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.MultiMarginLoss()(mh.zeros{1, 4}, mh.tensor{2}):item()    --> 0.75
define("MultiMarginLoss", {{"p", 1}, {"margin", 1.0}, optional "weight", kReduction}, 2, function(self, x, target)
  return F.multi_margin_loss(x, target, {p = self.p, margin = self.margin, weight = self.weight,
    reduction = self.reduction})
end)

--- mh.nn.MultiLabelMarginLoss(reduction = "mean") -> Module
---   The sum over labels i and other classes j of max(0, 1 - x[i] + x[j]), divided by the number of classes.
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of scores [batch, classes] and labels int64 [batch, classes], which end with -1
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: an unknown reduction
---   example
---     nn.MultiLabelMarginLoss()(mh.zeros{1, 4}, mh.tensor{{2, -1, 0, 0}}):item()    --> 0.75
define("MultiLabelMarginLoss", {kReduction}, 2, function(self, x, target)
  return F.multilabel_margin_loss(x, target, {reduction = self.reduction})
end)

--- mh.nn.CTCLoss(blank = 0, reduction = "mean", zero_infinity = false) -> Module
---   The loss of sequences without alignment (Graves et al. 2006), as torch.nn.CTCLoss.
---   blank       integer     the class that stands for no label
---   reduction   "mean"|"sum"|"none"   "mean" divides each loss by the length of its target
---   zero_infinity   boolean   zeros in place of losses of sequences that are too short
---   returns     Module      of log probabilities [time, batch, classes], targets, and the lengths of both, as lists or
---     tensors of integers
---   collective  its calls: over the mesh of cut inputs; only the batch may stay cut
---   errors      ValueError: an unknown reduction
---   example
---     ("%.4f"):format(nn.CTCLoss()(mh.zeros{3, 1, 2}:log_softmax(-1), mh.tensor{{1}}, {3}, {1}):item())    --> 0.2877
define("CTCLoss", {{"blank", 0}, kReduction, {"zero_infinity", false}}, 4, function(self, x, target, times, lengths)
  return F.ctc_loss(x, target, times, lengths, {blank = self.blank, reduction = self.reduction,
    zero_infinity = self.zero_infinity})
end, 2)

--- mh.nn.MultiLabelSoftMarginLoss(weight = nil, reduction = "mean") -> Module
---   The mean over classes of binary cross entropies of logits.
---   weight      Tensor?     of each class
---   reduction   "mean"|"sum"|"none"
---   returns     Module      of logits {batch, classes} and targets of 0 and 1
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(nn.MultiLabelSoftMarginLoss()(mh.zeros{1, 2}, mh.ones{1, 2}):item())    --> 0.6931
define("MultiLabelSoftMarginLoss", {optional "weight", kReduction}, 2, function(self, x, target)
  return F.multilabel_soft_margin_loss(x, target, {weight = self.weight, reduction = self.reduction})
end)

return losses
