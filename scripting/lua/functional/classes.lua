-- SPDX-License-Identifier: Apache-2.0
-- The part of mh.functional with losses of classes, labels and sequences. Names, options and defaults of
-- torch.nn.functional.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local loss_arguments = require "moonhalo.internal.loss_arguments"

local fail = mh.fail
local optional = arguments.optional
local C = {}

local define = arguments.definer(C, {input = true, target = true, targets = true, log_probs = true, anchor = true,
  positive = true, negative = true})

--- The operators themselves, before functions of the same names take their place in `mh`.
local aten = {}
for _, name in ipairs {"multi_margin_loss", "multilabel_margin_loss", "ctc_loss"} do aten[name] = mh[name] end

local kReduction = {"reduction", "mean"}

--- The operator's number of a reduction, which may be given, too.
local function number_of(op, reduction)
  if math.type(reduction) == "integer" and reduction >= 0 and reduction <= 2 then return reduction end
  return loss_arguments.reduction(op, reduction)
end

local function reduced(op, value, reduction)
  local number = number_of(op, reduction)
  if number == 0 then return value end
  return number == 1 and value:mean() or value:sum()
end

--- mh.multi_margin_loss(input, target, {p = 1, margin = 1.0, weight = nil, reduction = "mean"}) -> Tensor
---   The mean over classes j of max(0, margin - x[target] + x[j])^p, without the target itself.
---   input       Tensor      scores [batch, classes]
---   target      Tensor      class numbers, int64 [batch]
---   p           integer     1 or 2
---   margin      number      the required distance
---   weight      Tensor?     [classes], a factor for each target
---   reduction   "mean"|"sum"|"none"   mean or sum over the batch, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors
---   errors      ValueError: p is neither 1 nor 2
---   example
---     mh.multi_margin_loss(mh.zeros{1, 4}, mh.tensor{2}):item()    --> 0.75
define("multi_margin_loss", {"input", "target", {"p", 1}, {"margin", 1.0}, optional "weight", kReduction},
    function(v, op)
  if v.p ~= 1 and v.p ~= 2 then fail(("%s: p is %s, expected 1 or 2"):format(op, mh._describe(v.p))) end
  arguments.number(op, "margin", v.margin)
  return aten.multi_margin_loss(v.input, v.target, v.p, v.margin, v.weight, number_of(op, v.reduction))
end)

--- mh.multilabel_margin_loss(input, target, reduction = "mean") -> Tensor
---   The sum over labels i and other classes j of max(0, 1 - x[i] + x[j]), divided by the number of classes.
---   input       Tensor      scores [batch, classes]
---   target      Tensor      labels, int64 [batch, classes], which end with -1
---   reduction   "mean"|"sum"|"none"   mean or sum over the batch, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     mh.multilabel_margin_loss(mh.zeros{1, 4}, mh.tensor{{2, -1, 0, 0}}):item()    --> 0.75
define("multilabel_margin_loss", {"input", "target", kReduction}, function(v, op)
  loss_arguments.same_shape(op, v.input, v.target)
  return aten.multilabel_margin_loss(v.input, v.target, number_of(op, v.reduction))
end)

--- mh.multilabel_soft_margin_loss(input, target, {weight = nil, reduction = "mean"}) -> Tensor
---   The mean over classes of binary cross entropies of logits.
---   input       Tensor      logits [batch, classes]
---   target      Tensor      0 and 1, the shape of input
---   weight      Tensor?     [classes], a factor for each class
---   reduction   "mean"|"sum"|"none"   mean or sum over the batch, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors
---   errors      ValueError: the shapes differ
---   example
---     ("%.4f"):format(mh.multilabel_soft_margin_loss(mh.zeros{1, 2}, mh.ones{1, 2}):item())    --> 0.6931
define("multilabel_soft_margin_loss", {"input", "target", optional "weight", kReduction}, function(v, op)
  loss_arguments.same_shape(op, v.input, v.target)
  if v.input.ndim == 0 then fail(op .. ": input has no dim of classes") end
  local loss = -(v.target * mh.log_sigmoid(v.input) + (1 - v.target) * mh.log_sigmoid(-v.input))
  if v.weight ~= nil then loss = loss * arguments.tensor(op, "weight", v.weight) end
  return reduced(op, loss:mean(-1), v.reduction)
end)

--- mh.ctc_loss(log_probs, targets, input_lengths, target_lengths, {blank = 0, reduction = "mean",
---     zero_infinity = false}) -> Tensor
---   The loss of sequences without alignment (Graves et al. 2006).
---   log_probs   Tensor      log probabilities [time, batch, classes]
---   targets     Tensor      labels, int64 [batch, longest], or one after the other
---   input_lengths   {integer}|Tensor   of the sequences
---   target_lengths   {integer}|Tensor   of their targets
---   blank       integer     the class that stands for no label
---   reduction   "mean"|"sum"|"none"   "mean" divides each loss by the length of its target
---   zero_infinity   boolean   zeros in place of losses of sequences that are too short
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors; only the batch may stay cut
---   errors      ValueError: an unknown reduction
---   example
---     local x = mh.zeros{3, 1, 2}:log_softmax(-1)
---     ("%.4f"):format(mh.ctc_loss(x, mh.tensor{{1}}, {3}, {1}):item())    --> 0.2877
define("ctc_loss", {"log_probs", "targets", "input_lengths", "target_lengths", {"blank", 0}, kReduction,
  {"zero_infinity", false}}, function(v, op)
  arguments.count(op, "blank", v.blank, 0)
  arguments.flag(op, "zero_infinity", v.zero_infinity)
  for _, name in ipairs {"input_lengths", "target_lengths"} do
    local good = mh.is_tensor(v[name]) or type(v[name]) == "table" and not getmetatable(v[name])
    if good and not mh.is_tensor(v[name]) then
      for _, one in ipairs(v[name]) do good = good and math.type(one) == "integer" end
    end
    if not good then fail(("%s: %s is %s, expected a list of integers"):format(op, name, mh._describe(v[name]))) end
  end
  return aten.ctc_loss(v.log_probs, v.targets, v.input_lengths, v.target_lengths, v.blank, number_of(op, v.reduction),
      v.zero_infinity)
end)

--- mh.triplet_margin_with_distance_loss(anchor, positive, negative, {distance_function = nil, margin = 1.0,
---     swap = false, reduction = "mean"}) -> Tensor
---   The mean of max(0, margin + distance(anchor, positive) - distance(anchor, negative)), with any distance.
---   anchor      Tensor      [batch, features]
---   positive    Tensor      [batch, features], which should be near
---   negative    Tensor      [batch, features], which should be far
---   distance_function   function?   of two tensors, one number for each pair; nil for mh.pairwise_distance
---   margin      number      the required difference of the distances
---   swap        boolean     uses the distance of positive and negative where it is smaller
---   reduction   "mean"|"sum"|"none"   mean or sum over the batch, or all of them
---   returns     Tensor      one number, the same on all ranks; with "none" [batch]
---   collective  over the mesh of cut tensors
---   errors      ValueError: the distance is not a function, or gives no tensor
---   example
---     local x = mh.zeros{2, 3}
---     local function distance(a, b) return (a - b):abs():sum(-1) end
---     local options = {distance_function = distance, margin = 4.0}
---     mh.triplet_margin_with_distance_loss(x, x, x + 1, options):item()    --> 1.0
define("triplet_margin_with_distance_loss", {"anchor", "positive", "negative", optional "distance_function",
  {"margin", 1.0}, {"swap", false}, kReduction}, function(v, op)
  arguments.number(op, "margin", v.margin)
  arguments.flag(op, "swap", v.swap)
  local of = v.distance_function or mh.pairwise_distance
  local meta = getmetatable(of)
  if type(of) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail(("%s: distance_function is %s, expected a function"):format(op, mh._describe(of)))
  end
  local function distance(a, b) return arguments.tensor(op, "the result of distance_function", of(a, b)) end
  local near, far = distance(v.anchor, v.positive), distance(v.anchor, v.negative)
  if v.swap then far = mh.minimum(far, distance(v.positive, v.negative)) end
  return reduced(op, (near - far + v.margin):clamp_min(0), v.reduction)
end)

return C
