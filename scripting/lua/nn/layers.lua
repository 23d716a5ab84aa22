-- SPDX-License-Identifier: Apache-2.0
-- Linear layers, embeddings, dropout, and shape layers, with torch.nn's names, options and initial values.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local F = require "moonhalo.functional"
local init = require "moonhalo.nn.init"
local base = require "moonhalo.nn.module"

local Module, Parameter, fail = base.Module, base.Parameter, mh.fail
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local layers = {}

local kMostElements = 2.0 ^ 48

--- An uninitialised parameter of the module `op`, whose options are `values`.
local function new_parameter(op, shape, values)
  local elements = 1.0
  for _, size in ipairs(shape) do elements = elements * arguments.count(op, "a size of its weights", size, 0) end
  if elements > kMostElements then
    fail(("%s: weights of {%s} fit no memory"):format(op, table.concat(shape, ", ")))
  end
  mh._check_place(op, {dtype = values.dtype, device = values.device})
  return Parameter(mh.empty(shape, {dtype = values.dtype, device = values.device}))
end
layers.new_parameter = new_parameter
layers.check_size = arguments.count

--- Initial values of a linear or convolution layer: uniform in +- 1 / sqrt(fan_in) for weight and bias.
function layers.reset_affine(weight, bias)
  init.kaiming_uniform_(weight, {a = math.sqrt(5)})
  if bias then
    local fan_in = init.fans(weight)
    local bound = fan_in > 0 and 1 / math.sqrt(fan_in) or 0
    init.uniform_(bias, -bound, bound)
  end
end

-- ---- Linear -------------------------------------------------------------------------------------------------------

--- mh.nn.Linear(in_features, out_features, {bias = true, device = nil, dtype = nil}) -> Module
---   The affine map x W^T + b over the last dim, as torch.nn.Linear. The module takes x [..., in_features].
---   in_features   integer   size of the last dim of the input
---   out_features   integer   size of the last dim of the result
---   bias        boolean     adds a number for each feature of the result
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters weight [out_features, in_features] and bias [out_features]
---   collective  its calls: over the mesh of a cut input, where numbers of ranks are added
---   errors      ValueError: a call with another size of the last dim
---   example
---     nn.Linear(3, 4)(mh.ones{2, 3}).shape    --> {2, 4}

local kLinear = signature("Linear", {"in_features", "out_features", {"bias", true}, optional "device",
    optional "dtype"})

layers.Linear = Module:extend("Linear")

function layers.Linear:init(...)
  local values = read(kLinear, ...)
  for _, name in ipairs {"in_features", "out_features"} do arguments.count("Linear", name, values[name], 0) end
  self.in_features, self.out_features = values.in_features, values.out_features
  self.weight = new_parameter("Linear", {values.out_features, values.in_features}, values)
  self.bias = values.bias and new_parameter("Linear", {values.out_features}, values) or nil
  self:reset_parameters()
end
function layers.Linear:reset_parameters() layers.reset_affine(self.weight, self.bias) end
function layers.Linear:forward(x) return mh.linear(x, self.weight, self.bias) end
function layers.Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features, self.out_features,
      Module.show(self.bias ~= nil))
end

--- mh.nn.Bilinear(in1_features, in2_features, out_features, {bias = true, device = nil, dtype = nil}) -> Module
---   A bilinear map of two inputs, as torch.nn.Bilinear. The module takes x [..., in1_features] and y [...,
---   in2_features].
---   in1_features   integer   size of the last dim of x
---   in2_features   integer   size of the last dim of y
---   out_features   integer   size of the last dim of the result
---   bias        boolean     adds a number for each feature of the result
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters weight [out_features, in1_features, in2_features] and bias [out_features]
---   collective  its calls: over the mesh of a cut input, where numbers of ranks are added
---   example
---     nn.Bilinear(3, 4, 5)(mh.ones{2, 3}, mh.ones{2, 4}).shape    --> {2, 5}

local kBilinear = signature("Bilinear",
  {"in1_features", "in2_features", "out_features", {"bias", true}, optional "device", optional "dtype"})

layers.Bilinear = Module:extend("Bilinear")

function layers.Bilinear:init(...)
  local values = read(kBilinear, ...)
  for _, name in ipairs {"in1_features", "in2_features", "out_features"} do
    arguments.count("Bilinear", name, values[name], 0)
  end
  self.in1_features, self.in2_features, self.out_features = values.in1_features, values.in2_features,
      values.out_features
  self.weight = new_parameter("Bilinear", {values.out_features, values.in1_features, values.in2_features}, values)
  self.bias = values.bias and new_parameter("Bilinear", {values.out_features}, values) or nil
  self:reset_parameters()
end
function layers.Bilinear:reset_parameters()
  local bound = 1 / math.sqrt(self.in1_features)
  init.uniform_(self.weight, -bound, bound)
  if self.bias then init.uniform_(self.bias, -bound, bound) end
end
function layers.Bilinear:forward(x, y) return mh.bilinear(x, y, self.weight, self.bias) end
function layers.Bilinear:extra_repr()
  return ("in1_features=%d, in2_features=%d, out_features=%d, bias=%s"):format(self.in1_features, self.in2_features,
    self.out_features, Module.show(self.bias ~= nil))
end

-- ---- Embedding ----------------------------------------------------------------------------------------------------

--- mh.nn.Embedding(num_embeddings, embedding_dim, {padding_idx = nil, device = nil, dtype = nil}) -> Module
---   A table of vectors, looked up by their numbers, as torch.nn.Embedding. The module takes int64 numbers of any
---   shape.
---   num_embeddings   integer   rows of the table
---   embedding_dim   integer   size of a vector
---   padding_idx   integer?   a row of zeros that is not trained
---   device      string?     of the parameter
---   dtype       string?     of the parameter
---   returns     Module      parameter weight [num_embeddings, embedding_dim]
---   collective  its calls: over the mesh of a cut table or a cut input
---   errors      ValueError: padding_idx outside of the table
---   example
---     nn.Embedding(10, 4)(mh.tensor{1, 2, 5}).shape    --> {3, 4}

local kEmbedding = signature("Embedding",
  {"num_embeddings", "embedding_dim", optional "padding_idx", optional "device", optional "dtype"})

layers.Embedding = Module:extend("Embedding")

--- The table of the module `self`, called `op`.
local function make_table(self, op, values)
  for _, name in ipairs {"num_embeddings", "embedding_dim"} do arguments.count(op, name, values[name], 0) end
  if values.padding_idx then arguments.count(op, "padding_idx", values.padding_idx, math.mininteger) end
  self.num_embeddings, self.embedding_dim = values.num_embeddings, values.embedding_dim
  local padding = values.padding_idx
  if padding and (padding >= values.num_embeddings or padding < -values.num_embeddings) then
    fail(("%s: padding_idx %d is outside of %d embeddings"):format(op, padding, values.num_embeddings))
  end
  self.padding_idx = padding and padding % values.num_embeddings
  self.weight = new_parameter(op, {values.num_embeddings, values.embedding_dim}, values)
  self:reset_parameters()
end

function layers.Embedding:init(...) make_table(self, "Embedding", read(kEmbedding, ...)) end
function layers.Embedding:reset_parameters()
  init.normal_(self.weight)
  if self.padding_idx then
    mh.no_grad(function() self.weight:select(0, self.padding_idx):zero_() end)
  end
end
function layers.Embedding:forward(indices)
  return mh.embedding(self.weight, indices, self.padding_idx or -1)
end
function layers.Embedding:extra_repr()
  local text = self.num_embeddings .. ", " .. self.embedding_dim
  return self.padding_idx and text .. ", padding_idx=" .. self.padding_idx or text
end

--- mh.nn.EmbeddingBag(num_embeddings, embedding_dim, {mode = "mean", padding_idx = nil, include_last_offset = false,
---     scale_grad_by_freq = false, device = nil, dtype = nil}) -> Module
---   The sum, mean or maximum of the vectors of a bag of integers, as torch.nn.EmbeddingBag. The module takes integers
---   [bags, size], or [n] with offsets, where each bag begins; with "sum" also weights of the shape of the integers:
---   net(indices, offsets, weights).
---   num_embeddings   integer   rows of the table
---   embedding_dim   integer   size of a vector
---   mode        "mean"|"sum"|"max"   how the vectors of a bag are joined
---   padding_idx   integer?   a row of zeros that does not count and is not trained
---   include_last_offset   boolean   whether the last offset is the end of the last bag
---   scale_grad_by_freq   boolean   divides gradients by how often an integer is in the batch
---   device      string?     of the parameter
---   dtype       string?     of the parameter
---   returns     Module      parameter weight [num_embeddings, embedding_dim]
---   collective  its calls: over the mesh of a cut table
---   errors      ValueError: offsets with integers of two dims, or none with one dim
---   example
---     nn.EmbeddingBag(10, 4)(mh.tensor{{1, 2}, {5, 0}}).shape    --> {2, 4}

local kBag = signature("EmbeddingBag", {"num_embeddings", "embedding_dim", {"mode", "mean"}, optional "padding_idx",
  {"include_last_offset", false}, {"scale_grad_by_freq", false}, optional "device", optional "dtype"})
local kBagModes = {sum = 0, mean = 1, max = 2}

layers.EmbeddingBag = Module:extend("EmbeddingBag")
function layers.EmbeddingBag:init(...)
  local values = read(kBag, ...)
  arguments.choice("EmbeddingBag", "mode", values.mode, {"max", "mean", "sum"})
  for _, name in ipairs {"include_last_offset", "scale_grad_by_freq"} do
    arguments.flag("EmbeddingBag", name, values[name])
  end
  for _, name in ipairs {"mode", "include_last_offset", "scale_grad_by_freq"} do self[name] = values[name] end
  make_table(self, "EmbeddingBag", values)
end
layers.EmbeddingBag.reset_parameters = layers.Embedding.reset_parameters
function layers.EmbeddingBag:forward(indices, offsets, weights)
  local ndim = arguments.tensor("EmbeddingBag", "the first argument", indices).ndim
  if ndim ~= 1 and ndim ~= 2 or (ndim == 2) ~= (offsets == nil) then
    fail(("EmbeddingBag: integers of %d dims %s offsets\n" ..
        "  fix   give [bags, size], or [n] and where bags begin"):format(ndim, offsets == nil and "without" or "with"))
  end
  if weights ~= nil and self.mode ~= "sum" then fail("EmbeddingBag: weights are for mode \"sum\"") end
  if ndim == 2 then
    offsets = mh.arange(0, indices:numel(), indices:size(1), {dtype = "int64", device = indices.device})
    if self.include_last_offset then
      offsets = mh.cat({offsets, mh.full({1}, indices:numel(), {dtype = "int64", device = indices.device})}, 0)
    end
    indices, weights = indices:reshape{-1}, weights and weights:reshape{-1}
  end
  return (mh.embedding_bag(self.weight, indices, offsets, self.scale_grad_by_freq, kBagModes[self.mode], false, weights,
      self.include_last_offset, self.padding_idx))
end
function layers.EmbeddingBag:extra_repr()
  return ("%d, %d, mode='%s'"):format(self.num_embeddings, self.embedding_dim, self.mode)
end

-- ---- Dropout ------------------------------------------------------------------------------------------------------

--- mh.nn.Dropout(p = 0.5) -> Module
--- mh.nn.Dropout1d(p = 0.5) -> Module
--- mh.nn.Dropout2d(p = 0.5) -> Module
--- mh.nn.Dropout3d(p = 0.5) -> Module
--- mh.nn.AlphaDropout(p = 0.5) -> Module
--- mh.nn.FeatureAlphaDropout(p = 0.5) -> Module
---   Sets elements to zero with probability p while training and scales the others by 1 / (1 - p). Dropout1d to 3d drop
---   whole channels; AlphaDropout keeps mean and variance after SELU, FeatureAlphaDropout of whole channels. On cut
---   tensors every number of ranks draws the same elements.
---   p           number      probability from 0 to 1
---   returns     Module      it does nothing after eval()
---   collective  no
---   errors      ValueError: p is not within 0 and 1
---   example
---     local drop = nn.Dropout(0.5):eval()
---     drop(mh.ones{3}):tolist()    --> {1.0, 1.0, 1.0}

for name, fn in pairs {Dropout = "dropout", Dropout1d = "dropout1d", Dropout2d = "dropout2d", Dropout3d = "dropout3d",
  AlphaDropout = "alpha_dropout", FeatureAlphaDropout = "feature_alpha_dropout"} do
  local spec = signature(name, {{"p", 0.5}})
  local class = Module:extend(name)
  function class:init(...)
    self.p = read(spec, ...).p
    if type(self.p) ~= "number" or not (self.p >= 0 and self.p <= 1) then
      fail(name .. ": p is " .. mh._describe(self.p) .. ", expected a probability between 0 and 1")
    end
  end
  function class:forward(x) return F[fn](x, self.p, self.training) end
  function class:extra_repr() return "p=" .. self.p end
  layers[name] = class
end

-- ---- Shapes -------------------------------------------------------------------------------------------------------

--- mh.nn.Identity(...) -> Module
---   Returns its input.
---   returns     Module      a module without parameters
---   collective  no
---   example
---     nn.Identity()(mh.ones{2}):tolist()    --> {1.0, 1.0}

layers.Identity = Module:extend("Identity")
function layers.Identity:init(...) end  -- luacheck: ignore
function layers.Identity:forward(x) return x end

--- mh.nn.Flatten(start_dim = 1, end_dim = -1) -> Module
---   Joins dims into one, as x:flatten(start_dim, end_dim).
---   start_dim   integer     the first of them, from 0
---   end_dim     integer     the last of them
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh, where a cut dim is joined behind another one
---   example
---     nn.Flatten()(mh.ones{2, 3, 4}).shape    --> {2, 12}

local kFlatten = signature("Flatten", {{"start_dim", 1}, {"end_dim", -1}})
layers.Flatten = Module:extend("Flatten")
function layers.Flatten:init(...)
  local values = read(kFlatten, ...)
  self.start_dim, self.end_dim = values.start_dim, values.end_dim
end
function layers.Flatten:forward(x) return x:flatten(self.start_dim, self.end_dim) end
function layers.Flatten:extra_repr() return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim) end

--- mh.nn.Unflatten(dim, unflattened_size) -> Module
---   Splits a dim into several.
---   dim         integer     the dim, from 0
---   unflattened_size   {integer}   their sizes; one of them may be -1
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh, where the cut does not fit the new dims
---   example
---     nn.Unflatten(1, {3, 4})(mh.ones{2, 12}).shape    --> {2, 3, 4}

local kUnflatten = signature("Unflatten", {"dim", "unflattened_size"})
layers.Unflatten = Module:extend("Unflatten")
function layers.Unflatten:init(...)
  local values = read(kUnflatten, ...)
  self.dim, self.unflattened_size = values.dim, values.unflattened_size
end
function layers.Unflatten:forward(x) return x:unflatten(self.dim, self.unflattened_size) end
function layers.Unflatten:extra_repr()
  return ("dim=%d, unflattened_size=(%s)"):format(self.dim, table.concat(self.unflattened_size, ", "))
end

--- mh.nn.Upsample({size = nil, scale_factor = nil, mode = "nearest", align_corners = nil}) -> Module
---   Interpolates space to another size, as torch.nn.Upsample. The module takes x [batch, channels, space...].
---   size        integer|{integer}?   size of the result; this or scale_factor
---   scale_factor   number|{number}?   factor for each dim of space
---   mode        "nearest"|"nearest-exact"|"linear"|"bilinear"|"bicubic"|"trilinear"|"area"   how values between are
---     found
---   align_corners   boolean?   whether the corners of input and result coincide; for the linear modes
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   errors      ValueError: both or neither of size and scale_factor
---   example
---     nn.Upsample{scale_factor = 2, mode = "bilinear"}(mh.ones{1, 2, 3, 4}).shape    --> {1, 2, 6, 8}

local kUpsample = signature("Upsample",
  {optional "size", optional "scale_factor", {"mode", "nearest"}, optional "align_corners"})
layers.Upsample = Module:extend("Upsample")
function layers.Upsample:init(...)
  local values = read(kUpsample, ...)
  self.size, self.scale_factor, self.mode = values.size, values.scale_factor, values.mode
  self.align_corners = values.align_corners
end
function layers.Upsample:forward(x)
  return F.interpolate(x, {size = self.size, scale_factor = self.scale_factor, mode = self.mode,
    align_corners = self.align_corners})
end
function layers.Upsample:extra_repr()
  local what = self.size and "size=" .. Module.show(self.size) or "scale_factor=" .. Module.show(self.scale_factor)
  return what .. ", mode='" .. self.mode .. "'"
end

return layers
