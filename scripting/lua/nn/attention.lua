-- SPDX-License-Identifier: Apache-2.0
-- Attention with several heads, with the parameters and options of torch.nn.MultiheadAttention.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local init = require "moonhalo.nn.init"
local layers = require "moonhalo.nn.layers"

local Module, fail = base.Module, mh.fail
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local attention = {}

--- mh.nn.MultiheadAttention(embed_dim, num_heads, {dropout = 0.0, bias = true, batch_first = false, device = nil, dtype
---     = nil}) -> Module
---   Attention with several heads, as torch.nn.MultiheadAttention. The module takes query, key, value [length, batch,
---   embed_dim] ([batch, length, embed_dim] with batch_first), then key_padding_mask, need_weights = true, attn_mask,
---   average_attn_weights = true, is_causal = false, by position or by name. It returns the output and, unless
---   need_weights is false, the weights.
---   embed_dim   integer     size of the last dim
---   num_heads   integer     divides embed_dim
---   dropout     number      probability that a weight is dropped while training
---   bias        boolean     whether the projections have a bias
---   batch_first   boolean   the batch is dim 0
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters in_proj_weight, in_proj_bias, and the module out_proj
---   collective  its calls: over the mesh of cut inputs
---   errors      ValueError: embed_dim that num_heads does not divide
---   example
---     local x = mh.randn{5, 2, 8}
---     local attention = nn.MultiheadAttention(8, 2)
---     attention(x, x, x, {need_weights = false}).shape    --> {5, 2, 8}

local kInit = signature("MultiheadAttention", {"embed_dim", "num_heads", {"dropout", 0.0}, {"bias", true},
  {"batch_first", false}, optional "device", optional "dtype"})
local kForward = signature("MultiheadAttention", {"query", "key", "value", optional "key_padding_mask",
  {"need_weights", true}, optional "attn_mask", {"average_attn_weights", true}, {"is_causal", false}})

attention.MultiheadAttention = Module:extend("MultiheadAttention")
local Attention = attention.MultiheadAttention

function Attention:init(...)
  local values = read(kInit, ...)
  for _, name in ipairs {"embed_dim", "num_heads"} do layers.check_size("MultiheadAttention", name, values[name], 1) end
  if values.embed_dim % values.num_heads ~= 0 then
    fail(("MultiheadAttention: embed_dim %d is not divisible by num_heads %d"):format(values.embed_dim,
        values.num_heads))
  end
  self.embed_dim, self.num_heads, self.dropout = values.embed_dim, values.num_heads, values.dropout
  self.head_dim, self.batch_first = values.embed_dim // values.num_heads, values.batch_first
  self.in_proj_weight = layers.new_parameter("MultiheadAttention", {3 * values.embed_dim, values.embed_dim}, values)
  self.in_proj_bias = values.bias and layers.new_parameter("MultiheadAttention", {3 * values.embed_dim}, values) or nil
  self.out_proj = layers.Linear(values.embed_dim, values.embed_dim,
    {bias = values.bias, device = values.device, dtype = values.dtype})
  self:reset_parameters()
end

function Attention:reset_parameters()
  init.xavier_uniform_(self.in_proj_weight)
  if self.in_proj_bias then
    init.zeros_(self.in_proj_bias)
    init.zeros_(self.out_proj.bias)
  end
end

--- The tensor that is added to the scores: boolean masks are true where attention is forbidden.
local function additive(mask, like)
  if mask.dtype ~= "bool" then return mask end
  return mh.zeros_like(mask, {dtype = like.dtype}):masked_fill(mask, -math.huge)
end

function Attention:masks(v, like, rows, columns)
  local mask
  if v.attn_mask then
    mask = additive(v.attn_mask, like)
    if mask.ndim == 3 then mask = mask:reshape({-1, self.num_heads, rows, columns}) end
  elseif v.is_causal then
    mask = additive(mh.ones({rows, columns}, {dtype = "bool", device = like.device}):triu(1), like)
  end
  if v.key_padding_mask then
    local padding = additive(v.key_padding_mask, like)
    if padding.ndim == 1 then padding = padding:unsqueeze(0) end
    padding = padding:unsqueeze(1):unsqueeze(1)
    mask = mask and mask + padding or padding
  end
  return mask
end

--- The packed parameters applied to a list of query, key and value. Those that are one tensor share a product, so that
--- parameters that are stored in blocks are fetched whole, and fewer gradients are summed.
function Attention:project(inputs)
  local weight, bias = self.in_proj_weight, self.in_proj_bias
  local q, k, v = table.unpack(inputs)
  if rawequal(k, v) and rawequal(q, k) then return mh.linear(q, weight, bias):chunk(3, -1) end
  local size = self.embed_dim
  local rows = rawequal(k, v) and {size, 2 * size} or {size, size, size}
  local weights, biases = weight:split(rows, 0), bias and bias:split(rows, 0) or {}
  local parts = {}
  for i = 1, #rows do parts[i] = mh.linear(inputs[i], weights[i], biases[i]) end
  if #rows == 3 then return parts end
  local of_key, of_value = table.unpack(parts[2]:chunk(2, -1))
  return {parts[1], of_key, of_value}
end

--- query, key, value of shape [length, batch, embed] ([batch, length, embed] with batch_first, [length, embed] for one
--- sequence). Returns the output, and the weights unless `need_weights = false`.
function Attention:forward(...)
  local v = read(kForward, ...)
  local alone = v.query.ndim == 2
  local heads = {}
  for i, x in ipairs(self:project{v.query, v.key, v.value}) do
    if alone then
      x = x:unsqueeze(0)
    elseif not self.batch_first then
      x = x:transpose(0, 1)
    end
    heads[i] = x:reshape({x:size(0), x:size(1), self.num_heads, self.head_dim}):transpose(1, 2)
  end
  local q, k, value = heads[1], heads[2], heads[3]
  local causal = v.is_causal and not (v.need_weights or v.attn_mask or v.key_padding_mask)
  local mask = not causal and self:masks(v, q, q:size(2), k:size(2)) or nil
  local p = self.training and self.dropout or 0.0
  local output, scores
  if v.need_weights then
    scores = q:matmul(k:transpose(-2, -1)) / math.sqrt(self.head_dim)
    if mask then scores = scores + mask end
    scores = mh.dropout(scores:softmax(-1), p, p > 0)
    output = scores:matmul(value)
  else
    output = mh.scaled_dot_product_attention(q, k, value, mask, p, causal)
  end
  output = output:transpose(1, 2):reshape({q:size(0), q:size(2), self.embed_dim})
  output = self.out_proj(output)
  if alone then
    output = output:squeeze(0)
  elseif not self.batch_first then
    output = output:transpose(0, 1)
  end
  if not v.need_weights then return output end
  if v.average_attn_weights then scores = scores:mean(1) end
  return output, alone and scores:squeeze(0) or scores
end

function Attention:extra_repr() return ("embed_dim=%d, num_heads=%d"):format(self.embed_dim, self.num_heads) end

return attention
