-- SPDX-License-Identifier: Apache-2.0
-- A softmax over many classes that spends less on rare ones (Grave et al. 2017), with torch.nn's names of parameters.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local containers = require "moonhalo.nn.containers"
local layers = require "moonhalo.nn.layers"

local fail, optional = mh.fail, arguments.optional
local kName = "AdaptiveLogSoftmaxWithLoss"
local kSignature = arguments.signature(kName, {"in_features", "n_classes", "cutoffs", {"div_value", 4.0},
  {"head_bias", false}, optional "device", optional "dtype"})

--- mh.nn.AdaptiveLogSoftmaxWithLoss(in_features, n_classes, cutoffs, {div_value = 4.0, head_bias = false,
---     device = nil, dtype = nil}) -> Module
---   Log probabilities of many classes, which are sorted so that frequent ones come first: those below the first cutoff
---   have a weight each, the others are in clusters of smaller and smaller weights. net(x, target) gives the log
---   probability of each target, and their mean with a minus, the loss. net:log_prob(x) gives all classes,
---   net:predict(x) the likeliest.
---   in_features   integer   size of the last dim of x [batch, in_features]
---   n_classes   integer     classes, from 0
---   cutoffs     {integer}   where clusters begin, increasing, from 1 to n_classes - 1
---   div_value   number      how much smaller the weights of each further cluster are
---   head_bias   boolean     whether the first layer has a bias
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters head.weight, tail.0.0.weight, tail.0.1.weight, ...
---   collective  its calls: over the mesh of a cut input
---   errors      ValueError: cutoffs that do not increase, or a cluster without weights
---   example
---     local net = nn.AdaptiveLogSoftmaxWithLoss(16, 10, {2, 5})
---     net:log_prob(mh.ones{3, 16}).shape, net.cutoffs    --> {3, 10}  {2, 5, 10}

local Adaptive = base.Module:extend(kName)

function Adaptive:init(...)
  local v = arguments.read(kSignature, ...)
  for _, name in ipairs {"in_features", "n_classes"} do arguments.count(kName, name, v[name], 1) end
  arguments.number(kName, "div_value", v.div_value)
  arguments.flag(kName, "head_bias", v.head_bias)
  local before, good = 0, type(v.cutoffs) == "table" and not getmetatable(v.cutoffs) and #v.cutoffs > 0
  for _, one in ipairs(good and v.cutoffs or {}) do
    good = good and math.type(one) == "integer" and one > before and one < v.n_classes
    before = good and one or before
  end
  if not good then
    fail(("%s: cutoffs are %s, expected integers that increase, from 1 to n_classes - 1"):format(kName,
        mh._describe(v.cutoffs)))
  end
  self.in_features, self.n_classes, self.div_value = v.in_features, v.n_classes, v.div_value
  self.cutoffs = {table.unpack(v.cutoffs)}
  self.cutoffs[#self.cutoffs + 1] = v.n_classes
  self.n_clusters = #self.cutoffs - 1
  local function linear(from, to, bias)
    return layers.Linear(from, to, {bias = bias, device = v.device, dtype = v.dtype})
  end
  self.head = linear(v.in_features, self.cutoffs[1] + self.n_clusters, v.head_bias)
  self.tail = containers.ModuleList()
  for i = 1, self.n_clusters do
    local hidden = math.floor(v.in_features / v.div_value ^ i)
    if hidden < 1 then
      fail(("%s: cluster %d has no weights: in_features is %d, div_value^%d is %s\n" ..
          "  fix   give a smaller div_value, or fewer cutoffs"):format(kName, i, v.in_features, i, v.div_value ^ i))
    end
    local size = self.cutoffs[i + 1] - self.cutoffs[i]
    self.tail:append(containers.Sequential(linear(v.in_features, hidden, false), linear(hidden, size, false)))
  end
end

function Adaptive:log_prob(x)
  if arguments.tensor(kName, "x", x).ndim < 1 or x:size(-1) ~= self.in_features then
    fail(("%s: x has shape [%s], expected [batch, %d]"):format(kName, table.concat(x.shape, ", "), self.in_features))
  end
  local head = mh.log_softmax(self.head(x), -1)
  local parts = {head:narrow(-1, 0, self.cutoffs[1])}
  for i = 1, self.n_clusters do
    parts[i + 1] = mh.log_softmax(self.tail[i - 1](x), -1) + head:narrow(-1, self.cutoffs[1] + i - 1, 1)
  end
  return mh.cat(parts, -1)
end

function Adaptive:predict(x) return self:log_prob(x):argmax(-1) end

function Adaptive:forward(x, target)
  arguments.tensor(kName, "the target", target)
  local chosen = self:log_prob(x):gather(-1, target:unsqueeze(-1)):squeeze(-1)
  return chosen, -chosen:mean()
end

return {AdaptiveLogSoftmaxWithLoss = Adaptive}
