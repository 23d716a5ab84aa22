-- SPDX-License-Identifier: Apache-2.0
-- Transformer layers with the names, options and parameters of torch.nn.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local attention = require "moonhalo.nn.attention"
local base = require "moonhalo.nn.module"
local containers = require "moonhalo.nn.containers"
local init = require "moonhalo.nn.init"
local layers = require "moonhalo.nn.layers"
local norm = require "moonhalo.nn.norm"

local Module, fail = base.Module, mh.fail
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local transformer = {}

local kLayer = {"d_model", "nhead", {"dim_feedforward", 2048}, {"dropout", 0.1}, {"activation", "relu"},
  {"layer_norm_eps", 1e-5}, {"batch_first", false}, {"norm_first", false}, {"bias", true}, optional "device",
  optional "dtype"}

local function check(name, v)
  for _, key in ipairs {"d_model", "nhead", "dim_feedforward"} do arguments.count(name, key, v[key], 1) end
  if v.d_model >= 2 ^ 24 then fail(("%s: weights of d_model %d fit no memory"):format(name, v.d_model)) end
  if v.d_model % v.nhead ~= 0 then
    fail(("%s: d_model %d is not divisible by nhead %d"):format(name, v.d_model, v.nhead))
  end
  for _, key in ipairs {"dropout", "layer_norm_eps"} do arguments.number(name, key, v[key]) end
  if not (v.dropout >= 0 and v.dropout <= 1) then
    fail(("%s: dropout is %s, expected a probability between 0 and 1"):format(name, v.dropout))
  end
  for _, key in ipairs {"batch_first", "norm_first", "bias"} do arguments.flag(name, key, v[key]) end
  arguments.choice(name, "activation", v.activation, {"relu", "gelu"})
  mh._check_place(name, {dtype = v.dtype, device = v.device})
end

--- Makes what encoder and decoder layers share: attention to itself, two linear layers, norms, dropouts.
local function start(self, name, values, norms)
  local place = {bias = values.bias, device = values.device, dtype = values.dtype}
  check(name, values)
  self.norm_first, self.activation = values.norm_first, values.activation
  local function attend()
    return attention.MultiheadAttention(values.d_model, values.nhead, {dropout = values.dropout, bias = values.bias,
      batch_first = values.batch_first, device = values.device, dtype = values.dtype})
  end
  self.self_attn = attend()
  if norms == 3 then self.multihead_attn = attend() end
  self.linear1 = layers.Linear(values.d_model, values.dim_feedforward, place)
  self.dropout = layers.Dropout(values.dropout)
  self.linear2 = layers.Linear(values.dim_feedforward, values.d_model, place)
  for i = 1, norms do
    self["norm" .. i] = norm.LayerNorm(values.d_model, {eps = values.layer_norm_eps, bias = values.bias,
      device = values.device, dtype = values.dtype})
  end
  for i = 1, norms do self["dropout" .. i] = layers.Dropout(values.dropout) end
end

local function attended(module, q, kv, options)
  return (module(q, kv, kv, {attn_mask = options.mask, key_padding_mask = options.padding,
    is_causal = options.is_causal or false, need_weights = false}))
end

local function feed_forward(self, x)
  return self.linear2(self.dropout(mh[self.activation](self.linear1(x))))
end

--- Adds the results of parts to x, with a norm before each part or behind it.
local function run_parts(self, x, parts)
  for i, part in ipairs(parts) do
    local norm_of, drop = self["norm" .. i], self["dropout" .. i]
    if self.norm_first then
      x = x + drop(part(norm_of(x)))
    else
      x = norm_of(x + drop(part(x)))
    end
  end
  return x
end

--- mh.nn.TransformerEncoderLayer(d_model, nhead, {dim_feedforward = 2048, dropout = 0.1, activation = "relu",
---     layer_norm_eps = 1e-5, batch_first = false, norm_first = false, bias = true, device = nil,
---     dtype = nil}) -> Module
---   Attention to itself and two linear layers, as torch.nn's: layer(src, {src_mask, src_key_padding_mask, is_causal}).
---   src is {length, batch, d_model}. Batch and length may be cut.
---   d_model     integer     size of the last dim
---   nhead       integer     heads, which divide d_model
---   dim_feedforward   integer   size between the linear layers
---   dropout     number      probability, while training
---   activation   "relu"|"gelu"
---   layer_norm_eps   number   of the norms
---   batch_first   boolean   src is {batch, length, d_model}
---   norm_first   boolean    norms before each part instead of behind it
---   bias        boolean     of linear layers and norms
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      submodules self_attn, linear1, linear2, norm1, norm2, ...
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: heads that do not divide d_model
---   example
---     nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16})(mh.ones{5, 2, 8}).shape    --> {5, 2, 8}
local kEncoderLayer = signature("TransformerEncoderLayer", kLayer)
local kEncoderCall = signature("TransformerEncoderLayer", {"src", optional "src_mask", optional "src_key_padding_mask",
  {"is_causal", false}})
transformer.TransformerEncoderLayer = Module:extend("TransformerEncoderLayer")
local EncoderLayer = transformer.TransformerEncoderLayer
function EncoderLayer:init(...) start(self, "TransformerEncoderLayer", read(kEncoderLayer, ...), 2) end
function EncoderLayer:forward(...)
  local v = read(kEncoderCall, ...)
  arguments.tensor("TransformerEncoderLayer", "src", v.src)
  local options = {mask = v.src_mask, padding = v.src_key_padding_mask, is_causal = v.is_causal}
  return run_parts(self, v.src, {
    function(x) return attended(self.self_attn, x, x, options) end,
    function(x) return feed_forward(self, x) end,
  })
end

--- mh.nn.TransformerDecoderLayer(d_model, nhead, {dim_feedforward = 2048, dropout = 0.1, activation = "relu",
---     layer_norm_eps = 1e-5, batch_first = false, norm_first = false, bias = true, device = nil,
---     dtype = nil}) -> Module
---   Attention to itself, to a memory, and two linear layers, as torch.nn's: layer(tgt, memory, {tgt_mask, memory_mask,
---   tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal}).
---   d_model     integer     size of the last dim
---   nhead       integer     heads, which divide d_model
---   dim_feedforward   integer   size between the linear layers
---   dropout     number      probability, while training
---   activation   "relu"|"gelu"
---   layer_norm_eps   number   of the norms
---   batch_first   boolean   tgt is {batch, length, d_model}
---   norm_first   boolean    norms before each part instead of behind it
---   bias        boolean     of linear layers and norms
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      submodules self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3, ...
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: heads that do not divide d_model
---   example
---     local layer = nn.TransformerDecoderLayer(8, 2, {dim_feedforward = 16})
---     layer(mh.ones{5, 2, 8}, mh.ones{3, 2, 8}).shape    --> {5, 2, 8}
local kDecoderLayer = signature("TransformerDecoderLayer", kLayer)
local kDecoderCall = signature("TransformerDecoderLayer", {"tgt", "memory", optional "tgt_mask", optional "memory_mask",
  optional "tgt_key_padding_mask", optional "memory_key_padding_mask", {"tgt_is_causal", false},
  {"memory_is_causal", false}})
transformer.TransformerDecoderLayer = Module:extend("TransformerDecoderLayer")
local DecoderLayer = transformer.TransformerDecoderLayer
function DecoderLayer:init(...) start(self, "TransformerDecoderLayer", read(kDecoderLayer, ...), 3) end
function DecoderLayer:forward(...)
  local v = read(kDecoderCall, ...)
  for _, name in ipairs {"tgt", "memory"} do arguments.tensor("TransformerDecoderLayer", name, v[name]) end
  local own = {mask = v.tgt_mask, padding = v.tgt_key_padding_mask, is_causal = v.tgt_is_causal}
  local other = {mask = v.memory_mask, padding = v.memory_key_padding_mask, is_causal = v.memory_is_causal}
  return run_parts(self, v.tgt, {
    function(x) return attended(self.self_attn, x, x, own) end,
    function(x) return attended(self.multihead_attn, x, v.memory, other) end,
    function(x) return feed_forward(self, x) end,
  })
end

--- Modules of `count` layers that `make` makes. Unlike torch.nn's, which copy one layer, each begins with its own
--- draws.
local function stack_of(name, call, layer_class)
  local spec = signature(name, {"layer", "num_layers", optional "norm"})
  local class = Module:extend(name)
  function class:init(...)
    local v = read(spec, ...)
    if type(v.layer) ~= "function" then
      fail(("%s: layer is %s, expected a function that makes one\n  fix   %s(function() return nn.%s(512, 8) end, 6)")
          :format(name, mh._describe(v.layer), name, layer_class))
    end
    local list = {}
    for i = 1, arguments.count(name, "num_layers", v.num_layers, 1) do
      list[i] = v.layer()
      if not base.is_module(list[i]) then
        fail(("%s: layer gives %s, expected an nn.Module"):format(name, mh._describe(list[i])))
      end
    end
    self.layers = containers.ModuleList(list)
    self.num_layers = v.num_layers
    if v.norm ~= nil and not base.is_module(v.norm) then
      fail(("%s: norm is %s, expected an nn.Module"):format(name, mh._describe(v.norm)))
    end
    self.norm = v.norm
  end
  class.forward = call
  transformer[name] = class
end

--- mh.nn.TransformerEncoder(layer, num_layers, {norm = nil}) -> Module
--- mh.nn.TransformerDecoder(layer, num_layers, {norm = nil}) -> Module
---   Layers one after the other; they are called as one layer is.
---   layer       function    makes a layer: function() return nn.TransformerEncoderLayer(512, 8) end. torch.nn takes a
---     layer and copies it
---   num_layers   integer    at least 1
---   norm        Module?     of the result
---   returns     Module      submodules layers, norm
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: layer is not a function
---   example
---     local net = nn.TransformerEncoder(function() return nn.TransformerEncoderLayer(8, 2) end, 3)
---     net(mh.ones{5, 2, 8}).shape    --> {5, 2, 8}
stack_of("TransformerEncoder", function(self, src, ...)
  for _, layer in ipairs(self.layers:children()) do src = layer(src, ...) end
  return self.norm and self.norm(src) or src
end, "TransformerEncoderLayer")
stack_of("TransformerDecoder", function(self, tgt, memory, ...)
  for _, layer in ipairs(self.layers:children()) do tgt = layer(tgt, memory, ...) end
  return self.norm and self.norm(tgt) or tgt
end, "TransformerDecoderLayer")

--- mh.nn.Transformer(d_model = 512, nhead = 8, num_encoder_layers = 6, num_decoder_layers = 6, {dim_feedforward = 2048,
---     dropout = 0.1, activation = "relu", layer_norm_eps = 1e-5, batch_first = false, norm_first = false, bias = true,
---     device = nil, dtype = nil}) -> Module
---   Encoder and decoder, as torch.nn's: net(src, tgt, {src_mask, tgt_mask, memory_mask, src_key_padding_mask,
---   tgt_key_padding_mask, memory_key_padding_mask, src_is_causal, tgt_is_causal, memory_is_causal}).
---   d_model     integer     size of the last dim
---   nhead       integer     heads, which divide d_model
---   num_encoder_layers   integer   at least 1
---   num_decoder_layers   integer   at least 1
---   dim_feedforward   integer   size between the linear layers
---   dropout     number      probability, while training
---   activation   "relu"|"gelu"
---   layer_norm_eps   number   of the norms
---   batch_first   boolean   inputs are {batch, length, d_model}
---   norm_first   boolean    norms before each part instead of behind it
---   bias        boolean     of linear layers and norms
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      submodules encoder, decoder
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: heads that do not divide d_model
---   example
---     local net = nn.Transformer(8, 2, 1, 1, {dim_feedforward = 16})
---     net(mh.ones{5, 2, 8}, mh.ones{3, 2, 8}).shape    --> {3, 2, 8}
local kTransformer = signature("Transformer", {{"d_model", 512}, {"nhead", 8}, {"num_encoder_layers", 6},
  {"num_decoder_layers", 6}, {"dim_feedforward", 2048}, {"dropout", 0.1}, {"activation", "relu"},
  {"layer_norm_eps", 1e-5}, {"batch_first", false}, {"norm_first", false}, {"bias", true}, optional "device",
  optional "dtype"})
local kCall = signature("Transformer", {"src", "tgt", optional "src_mask", optional "tgt_mask", optional "memory_mask",
  optional "src_key_padding_mask", optional "tgt_key_padding_mask", optional "memory_key_padding_mask",
  {"src_is_causal", false}, {"tgt_is_causal", false}, {"memory_is_causal", false}})
transformer.Transformer = Module:extend("Transformer")
function transformer.Transformer:init(...)
  local v = read(kTransformer, ...)
  check("Transformer", v)
  for _, key in ipairs {"num_encoder_layers", "num_decoder_layers"} do
    arguments.count("Transformer", key, v[key], 1)
  end
  local options = {dim_feedforward = v.dim_feedforward, dropout = v.dropout, activation = v.activation,
    layer_norm_eps = v.layer_norm_eps, batch_first = v.batch_first, norm_first = v.norm_first, bias = v.bias,
    device = v.device, dtype = v.dtype}
  local function last_norm()
    return norm.LayerNorm(v.d_model, {eps = v.layer_norm_eps, bias = v.bias, device = v.device, dtype = v.dtype})
  end
  self.encoder = transformer.TransformerEncoder(function() return EncoderLayer(v.d_model, v.nhead, options) end,
      v.num_encoder_layers, {norm = last_norm()})
  self.decoder = transformer.TransformerDecoder(function() return DecoderLayer(v.d_model, v.nhead, options) end,
      v.num_decoder_layers, {norm = last_norm()})
  self.d_model, self.nhead, self.batch_first = v.d_model, v.nhead, v.batch_first
  for _, parameter in self:named_parameters() do
    if parameter.ndim > 1 then init.xavier_uniform_(parameter) end
  end
end
function transformer.Transformer:forward(...)
  local v = read(kCall, ...)
  local memory = self.encoder(v.src, {src_mask = v.src_mask, src_key_padding_mask = v.src_key_padding_mask,
    is_causal = v.src_is_causal})
  return self.decoder(v.tgt, memory, {tgt_mask = v.tgt_mask, memory_mask = v.memory_mask,
    tgt_key_padding_mask = v.tgt_key_padding_mask, memory_key_padding_mask = v.memory_key_padding_mask,
    tgt_is_causal = v.tgt_is_causal, memory_is_causal = v.memory_is_causal})
end

return transformer
