-- SPDX-License-Identifier: Apache-2.0
-- Y16: what torch.nn, torch.optim and its schedules have (golden/torch_names.py) is here, or on this list with the
-- reason.
local mh = require "moonhalo"
local golden = require "golden.torch_names"

local kLazy = "no: sizes are given, or made by a first call of the script; parameters must exist before plans place " ..
    "them"
local kBase = "no: a base class; nn.Module:extend, or a function, takes its place"
local kOld = "no: PyTorch itself advises against it"
local kYet = "not yet"

local kMissing = {
  nn = {
    Container = kOld, DataParallel = "no: mh.replicate and mh.fully_shard divide batches", NLLLoss2d = kOld,
    RNNBase = kBase, RNNCellBase = kBase, UninitializedParameter = kLazy,
    SyncBatchNorm = "no: nn.BatchNorm on blocks has the statistics of all ranks",
    Softmax2d = "no: nn.Softmax(1)", ParameterList = "no: self:register_parameter(name, tensor)",
    ParameterDict = "no: self:register_parameter(name, tensor)",
    AdaptiveLogSoftmaxWithLoss = kYet, CTCLoss = kYet .. ": mh.ctc_loss is there", CrossMapLRN2d = kYet,
    EmbeddingBag = kYet .. ": mh.embedding_bag is there", FeatureAlphaDropout = kYet, MultiLabelMarginLoss = kYet
        .. ": mh.multilabel_margin_loss is there", MultiMarginLoss = kYet .. ": mh.multi_margin_loss is there",
    RReLU = kYet, TripletMarginWithDistanceLoss = kYet,
  },
  optim = {Optimizer = kBase, SparseAdam = "no: gradients are dense"},
  lr_scheduler = {LRScheduler = kBase},
}
for _, kind in ipairs {"BatchNorm", "Conv", "ConvTranspose", "InstanceNorm"} do
  for dims = 1, 3 do kMissing.nn[("Lazy%s%dd"):format(kind, dims)] = kLazy end
end
kMissing.nn.LazyLinear = kLazy

local tests = {}

for kind, names in pairs(golden) do
  tests["test_Y16_names_of_" .. kind] = function()
    local here, known, wrong = kind == "nn" and mh.nn or mh.optim, {}, {}
    for _, name in ipairs(names) do
      known[name] = true
      local there, reason = rawget(here, name) ~= nil, kMissing[kind][name]
      if not there and not reason then wrong[#wrong + 1] = name .. " is missing, without a reason" end
      if there and reason then wrong[#wrong + 1] = name .. " is there, and on the list of what is missing" end
    end
    for name in pairs(kMissing[kind]) do
      if not known[name] then wrong[#wrong + 1] = name .. " is on the list, but PyTorch has no such name" end
    end
    assert(#names > 10, "the names were not read")
    if #wrong > 0 then error(table.concat(wrong, "\n"), 0) end
  end
end

return tests
