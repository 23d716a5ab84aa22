-- SPDX-License-Identifier: Apache-2.0
-- Recurrent layers with the names, options, parameters and initial values of torch.nn.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local F = require "moonhalo.functional"
local init = require "moonhalo.nn.init"
local layers = require "moonhalo.nn.layers"

local Module, fail = base.Module, mh.fail
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local recurrent = {}

local kGates = {RNN = 1, LSTM = 4, GRU = 3}

local function add_weights(self, values, gates, names)
  local hidden, rows = self.hidden_size, gates * self.hidden_size
  self:register_parameter(names[1], layers.new_parameter(self:class_name(), {rows, values.inputs}, values))
  self:register_parameter(names[2], layers.new_parameter(self:class_name(), {rows, hidden}, values))
  if not values.bias then return end
  self:register_parameter(names[3], layers.new_parameter(self:class_name(), {rows}, values))
  self:register_parameter(names[4], layers.new_parameter(self:class_name(), {rows}, values))
end

local function reset(self)
  local bound = self.hidden_size > 0 and 1 / math.sqrt(self.hidden_size) or 0
  for _, parameter in self:named_parameters() do init.uniform_(parameter, -bound, bound) end
end

-- ---- Layers -------------------------------------------------------------------------------------------------------

--- A step needs the one before it, so the time dim is whole on every rank.
local function refuse_cut_time(op, x, dim)
  if not x:is_shard_tensor() then return end
  for _, placement in ipairs(x.placements) do
    if placement:is_shard(dim) then
      fail(("%s: the time dim %d of the input is cut, and each step needs the one before it\n  have  %s\n" ..
          "  fix   cut another dim first, x:redistribute{mh.Shard(%d)} of the batch"):format(op, dim, mh._describe(x),
              dim == 0 and 1 or 0))
    end
  end
end

--- Zeros {1, batch, hidden}, cut over the ranks as the batch of `x`, {batch, features}, is.
local function zero_state(x, hidden)
  return mh.zeros_like(x:narrow(-1, 0, 1)):expand{x:size(0), hidden}:contiguous():unsqueeze(0)
end

--- One direction of an LSTM, step by step: LibTorch's fused one of float32 on CPUs has no rule for blocks.
local function lstm_steps(x, h, c, weights, time_dim, reverse)
  local results, count = {}, x:size(time_dim)
  for i = 1, count do
    local step = reverse and count - i or i - 1
    h, c = mh.lstm_cell(x:select(time_dim, step), {h, c}, table.unpack(weights))
    results[step + 1] = h
  end
  return mh.stack(results, time_dim), h, c
end

--- A layer of an LSTM on blocks, as mh.lstm gives it.
local function lstm_on_blocks(x, states, weights, has_bias, directions, time_dim)
  local parts, last_h, last_c = {}, {}, {}
  local each = #weights // directions
  for d = 1, directions do
    local own = {table.unpack(weights, (d - 1) * each + 1, d * each)}
    if not has_bias then own[3], own[4] = mh.none, mh.none end
    local h, c = states[1]:select(0, d - 1), states[2]:select(0, d - 1)
    parts[d], last_h[d], last_c[d] = lstm_steps(x, h, c, own, time_dim, d == 2)
  end
  local y = directions == 1 and parts[1] or mh.cat(parts, -1)
  return y, mh.stack(last_h, 0), mh.stack(last_c, 0)
end

local Recurrent = Module:extend("Recurrent")

function Recurrent:start(kind, values)
  self.kind = kind
  for _, name in ipairs {"input_size", "hidden_size", "num_layers"} do
    self[name] = arguments.count(kind, name, values[name], name == "input_size" and 0 or 1)
  end
  for _, name in ipairs {"bias", "batch_first", "bidirectional"} do
    self[name] = arguments.flag(kind, name, values[name])
  end
  self.dropout = arguments.number(kind, "dropout", values.dropout)
  if not (self.dropout >= 0 and self.dropout <= 1) then
    fail(("%s: dropout is %s, expected a probability between 0 and 1"):format(kind, self.dropout))
  end
  local directions = self.bidirectional and 2 or 1
  for layer = 0, self.num_layers - 1 do
    for direction = 1, directions do
      local suffix = "_l" .. layer .. (direction == 2 and "_reverse" or "")
      values.inputs = layer == 0 and self.input_size or self.hidden_size * directions
      add_weights(self, values, kGates[kind], {"weight_ih" .. suffix, "weight_hh" .. suffix, "bias_ih" .. suffix,
        "bias_hh" .. suffix})
    end
  end
  self:reset_parameters()
end

function Recurrent:reset_parameters() reset(self) end

--- The weights of a layer, of both directions, in the order of LibTorch's operators.
function Recurrent:weights_of(layer)
  local list = {}
  for direction = 1, self.bidirectional and 2 or 1 do
    local suffix = "_l" .. layer .. (direction == 2 and "_reverse" or "")
    for i, name in ipairs {"weight_ih", "weight_hh", "bias_ih", "bias_hh"} do
      if i <= 2 or self.bias then list[#list + 1] = self[name .. suffix] end
    end
  end
  return list
end

local function check_input(self, x)
  arguments.tensor(self.kind, "input", x)
  if x.ndim ~= 2 and x.ndim ~= 3 then
    fail(("%s: the input has %d dims, expected {time, batch, features}%s or {time, features}"):format(self.kind, x.ndim,
        self.batch_first and " (batch first)" or ""))
  end
  if x:size(-1) ~= self.input_size then
    fail(("%s: the input has %d features, expected %d"):format(self.kind, x:size(-1), self.input_size))
  end
end

--- The states that were given, or zeros, each {layers * directions, batch, hidden}.
local function states_of(self, x, given, batch_dim, alone)
  local count = self.kind == "LSTM" and 2 or 1
  local directions = self.bidirectional and 2 or 1
  if given == nil then
    local zero = zero_state(x:select(1 - batch_dim, 0), self.hidden_size)
    local rows = {}
    for i = 1, self.num_layers * directions do rows[i] = zero end
    local all = #rows == 1 and zero or mh.cat(rows, 0)
    return count == 2 and {all, all} or {all}
  end
  local list = count == 1 and {given} or given
  if type(list) ~= "table" or getmetatable(list) or #list ~= count then
    fail(("%s: the state is %s, expected %s"):format(self.kind, mh._describe(given), count == 2 and "{h, c}"
        or "a tensor"))
  end
  local states = {}
  for i, one in ipairs(list) do
    arguments.tensor(self.kind, "state", one)
    states[i] = alone and one:unsqueeze(1) or one
    local shape = table.concat(states[i].shape, ", ")
    local expected = ("%d, %d, %d"):format(self.num_layers * directions, x:size(batch_dim), self.hidden_size)
    if shape ~= expected then
      fail(("%s: a state has shape [%s], expected [%s]"):format(self.kind, shape, expected))
    end
  end
  return states
end

function Recurrent:run_layer(x, states, layer, time_dim)
  local weights = self:weights_of(layer)
  if self.kind == "LSTM" and x:is_shard_tensor() then
    return table.pack(lstm_on_blocks(x, states, weights, self.bias, self.bidirectional and 2 or 1, time_dim))
  end
  local op = self.kind == "RNN" and "rnn_" .. self.nonlinearity or self.kind:lower()
  return table.pack(mh[op](x, #states == 2 and states or states[1], weights, self.bias, 1, 0.0, self.training,
      self.bidirectional, self.batch_first))
end

function Recurrent:forward(x, state)
  check_input(self, x)
  local alone, batch_dim = x.ndim == 2, self.batch_first and 0 or 1
  if alone then
    refuse_cut_time(self.kind, x, 0)
    x = x:unsqueeze(batch_dim)
  end
  refuse_cut_time(self.kind, x, 1 - batch_dim)
  if x:size(1 - batch_dim) == 0 then fail(self.kind .. ": the input has no step") end
  local directions = self.bidirectional and 2 or 1
  local states, last = states_of(self, x, state, batch_dim, alone), {{}, {}}
  for layer = 0, self.num_layers - 1 do
    local mine = {}
    for i, one in ipairs(states) do mine[i] = one:narrow(0, layer * directions, directions) end
    local results = self:run_layer(x, mine, layer, 1 - batch_dim)
    x = results[1]
    for i = 2, results.n do table.insert(last[i - 1], results[i]) end
    if layer < self.num_layers - 1 and self.dropout > 0 then
      x = F.dropout(x, {p = self.dropout, training = self.training})
    end
  end
  local ends = {}
  for i = 1, #states do
    ends[i] = #last[i] == 1 and last[i][1] or mh.cat(last[i], 0)
    if alone then ends[i] = ends[i]:squeeze(1) end
  end
  if alone then x = x:squeeze(batch_dim) end
  return x, #ends == 2 and ends or ends[1]
end

function Recurrent:extra_repr()
  local text = self.input_size .. ", " .. self.hidden_size
  if self.num_layers ~= 1 then text = text .. ", num_layers=" .. self.num_layers end
  if not self.bias then text = text .. ", bias=False" end
  if self.batch_first then text = text .. ", batch_first=True" end
  if self.dropout ~= 0 then text = text .. ", dropout=" .. self.dropout end
  if self.bidirectional then text = text .. ", bidirectional=True" end
  return text
end

local kSizes = {"input_size", "hidden_size", {"num_layers", 1}}
local kFlags = {{"bias", true}, {"batch_first", false}, {"dropout", 0.0}, {"bidirectional", false}, optional "device",
  optional "dtype"}

local function entries_of(...)
  local all = {}
  for _, list in ipairs {...} do
    for _, entry in ipairs(list) do all[#all + 1] = entry end
  end
  return all
end

--- mh.nn.LSTM(input_size, hidden_size, num_layers = 1, {bias = true, batch_first = false, dropout = 0.0,
---     bidirectional = false, device = nil, dtype = nil}) -> Module
---   Long short-term memory. net(x, {h, c}) gives the results of all steps, and the last {h, c}; without a state it
---   begins with zeros. x is {time, batch, input_size} or {time, input_size}; h and c are {layers * directions, batch,
---   hidden_size}. The batch may be cut, the time may not.
---   input_size   integer    features of the input
---   hidden_size   integer   features of the state
---   num_layers   integer    layers above each other
---   bias        boolean     with bias_ih and bias_hh
---   batch_first   boolean   x is {batch, time, input_size}
---   dropout     number      probability, between layers
---   bidirectional   boolean   the second direction goes from the last step to the first
---   device      string?     where weights are made
---   dtype       string?     of the weights
---   returns     Module      parameters weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, ...
---   collective  no
---   errors      ValueError: the time dim is cut; other features
---   example
---     local y, state = nn.LSTM(3, 5)(mh.ones{4, 2, 3})
---     y.shape, state[1].shape    --> {4, 2, 5}  {1, 2, 5}

--- mh.nn.GRU(input_size, hidden_size, num_layers = 1, {bias = true, batch_first = false, dropout = 0.0,
---     bidirectional = false, device = nil, dtype = nil}) -> Module
---   Gated recurrent units. net(x, h) gives the results of all steps, and the last h. Shapes as of mh.nn.LSTM.
---   input_size   integer    features of the input
---   hidden_size   integer   features of the state
---   num_layers   integer    layers above each other
---   bias        boolean     with bias_ih and bias_hh
---   batch_first   boolean   x is {batch, time, input_size}
---   dropout     number      probability, between layers
---   bidirectional   boolean   the second direction goes from the last step to the first
---   device      string?     where weights are made
---   dtype       string?     of the weights
---   returns     Module      parameters weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, ...
---   collective  no
---   errors      ValueError: the time dim is cut; other features
---   example
---     local y, h = nn.GRU(3, 5)(mh.ones{4, 2, 3})
---     y.shape, h.shape    --> {4, 2, 5}  {1, 2, 5}
for _, kind in ipairs {"LSTM", "GRU"} do
  local spec = signature(kind, entries_of(kSizes, kFlags))
  recurrent[kind] = Recurrent:extend(kind)
  recurrent[kind].init = function(self, ...) self:start(kind, read(spec, ...)) end
end

--- mh.nn.RNN(input_size, hidden_size, num_layers = 1, {nonlinearity = "tanh", bias = true, batch_first = false,
---     dropout = 0.0, bidirectional = false, device = nil, dtype = nil}) -> Module
---   A recurrent network of one product and a nonlinearity. Calls and shapes as of mh.nn.GRU.
---   input_size   integer    features of the input
---   hidden_size   integer   features of the state
---   num_layers   integer    layers above each other
---   nonlinearity   "tanh"|"relu"
---   bias        boolean     with bias_ih and bias_hh
---   batch_first   boolean   x is {batch, time, input_size}
---   dropout     number      probability, between layers
---   bidirectional   boolean   the second direction goes from the last step to the first
---   device      string?     where weights are made
---   dtype       string?     of the weights
---   returns     Module      parameters weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, ...
---   collective  no
---   errors      ValueError: the time dim is cut; other features
---   example
---     local y, h = nn.RNN(3, 5)(mh.ones{4, 3})
---     y.shape, h.shape    --> {4, 5}  {1, 5}
local kRnn = signature("RNN", entries_of(kSizes, {{"nonlinearity", "tanh"}}, kFlags))
recurrent.RNN = Recurrent:extend("RNN")
function recurrent.RNN:init(...)
  local values = read(kRnn, ...)
  self.nonlinearity = arguments.choice("RNN", "nonlinearity", values.nonlinearity, {"tanh", "relu"})
  self:start("RNN", values)
end

-- ---- Cells --------------------------------------------------------------------------------------------------------

local kCellNames = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"}

local function define_cell(name, gates, entries, run)
  local spec = signature(name, entries_of({"input_size", "hidden_size", {"bias", true}}, entries, {optional "device",
    optional "dtype"}))
  local class = Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    self.input_size = arguments.count(name, "input_size", values.input_size, 0)
    self.hidden_size = arguments.count(name, "hidden_size", values.hidden_size, 1)
    self.bias = arguments.flag(name, "bias", values.bias)
    if values.nonlinearity then
      self.nonlinearity = arguments.choice(name, "nonlinearity", values.nonlinearity, {"tanh", "relu"})
    end
    values.inputs = self.input_size
    add_weights(self, values, gates, kCellNames)
    self:reset_parameters()
  end
  function class:reset_parameters() reset(self) end
  function class:forward(x, state)
    arguments.tensor(name, "input", x)
    if (x.ndim ~= 1 and x.ndim ~= 2) or x:size(-1) ~= self.input_size then
      fail(("%s: the input is %s, expected {batch, %d} or {%d}"):format(name, mh._describe(x), self.input_size,
          self.input_size))
    end
    local alone = x.ndim == 1
    if alone then x = x:unsqueeze(0) end
    local two, list = name == "LSTMCell", nil
    if state == nil then
      local zero = zero_state(x, self.hidden_size):squeeze(0)
      list = {zero, zero}
    else
      list = two and state or {state}
      if type(list) ~= "table" or getmetatable(list) or #list ~= (two and 2 or 1) then
        fail(("%s: the state is %s, expected %s"):format(name, mh._describe(state), two and "{h, c}" or "a tensor"))
      end
      list = {table.unpack(list)}
      for i, one in ipairs(list) do
        arguments.tensor(name, "state", one)
        if alone then list[i] = one:unsqueeze(0) end
      end
    end
    local results = table.pack(run(self, x, list, {self.weight_ih, self.weight_hh,
      self.bias and self.bias_ih or mh.none, self.bias and self.bias_hh or mh.none}))
    if alone then
      for i = 1, results.n do results[i] = results[i]:squeeze(0) end
    end
    if two then return results[1], results[2] end
    return results[1]
  end
  function class:extra_repr()
    return self.input_size .. ", " .. self.hidden_size .. (self.bias and "" or ", bias=False")
  end
  recurrent[name] = class
end

--- mh.nn.LSTMCell(input_size, hidden_size, bias = true, {device = nil, dtype = nil}) -> Module
---   One step of an LSTM: cell(x, {h, c}) gives the next h and c. x is {batch, input_size} or {input_size}.
---   input_size   integer    features of the input
---   hidden_size   integer   features of the state
---   bias        boolean     with bias_ih and bias_hh
---   device      string?     where weights are made
---   dtype       string?     of the weights
---   returns     Module      parameters weight_ih, weight_hh, bias_ih, bias_hh
---   collective  no
---   errors      ValueError: other features
---   example
---     local h, c = nn.LSTMCell(3, 5)(mh.ones{2, 3})
---     h.shape, c.shape    --> {2, 5}  {2, 5}
define_cell("LSTMCell", 4, {}, function(_, x, state, weights)
  return mh.lstm_cell(x, state, table.unpack(weights))
end)

--- mh.nn.GRUCell(input_size, hidden_size, bias = true, {device = nil, dtype = nil}) -> Module
---   One step of gated recurrent units: cell(x, h) gives the next h.
---   input_size   integer    features of the input
---   hidden_size   integer   features of the state
---   bias        boolean     with bias_ih and bias_hh
---   device      string?     where weights are made
---   dtype       string?     of the weights
---   returns     Module      parameters weight_ih, weight_hh, bias_ih, bias_hh
---   collective  no
---   errors      ValueError: other features
---   example
---     nn.GRUCell(3, 5)(mh.ones{2, 3}).shape    --> {2, 5}
define_cell("GRUCell", 3, {}, function(_, x, state, weights)
  return mh.gru_cell(x, state[1], table.unpack(weights))
end)

--- mh.nn.RNNCell(input_size, hidden_size, bias = true, {nonlinearity = "tanh", device = nil, dtype = nil}) -> Module
---   One step of a recurrent network: cell(x, h) gives the next h.
---   input_size   integer    features of the input
---   hidden_size   integer   features of the state
---   bias        boolean     with bias_ih and bias_hh
---   nonlinearity   "tanh"|"relu"
---   device      string?     where weights are made
---   dtype       string?     of the weights
---   returns     Module      parameters weight_ih, weight_hh, bias_ih, bias_hh
---   collective  no
---   errors      ValueError: other features
---   example
---     nn.RNNCell(3, 5)(mh.ones{2, 3}).shape    --> {2, 5}
define_cell("RNNCell", 1, {{"nonlinearity", "tanh"}}, function(self, x, state, weights)
  return mh["rnn_" .. self.nonlinearity .. "_cell"](x, state[1], table.unpack(weights))
end)

return recurrent
