-- SPDX-License-Identifier: Apache-2.0
-- Metrics that are added up over batches. `add` makes sums without a message: over cut dims they are Partial. `value`
-- completes all of them together, by one reduction.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local fields = require "moonhalo.internal.field_values"
local is_mesh = require("moonhalo.internal.registered_mesh").is_mesh
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local running = {}

--- Joins the sums of two batches or of two ranks.
local kCombine = {sum = function(a, b) return a + b end, max = function(a, b) return mh.maximum(a, b) end}

--- The tensors of `list` complete on every rank, plain. Those of one mesh are sent together, if they differ in their
--- first dim at most. `by`: "sum" or "max".
local function complete(list, by)
  local groups, order, whole = {}, {}, {}
  for i, one in ipairs(list) do
    if one:is_shard_tensor() then
      local key = tostring(one.mesh) .. " " .. one.ndim .. " " .. table.concat(one.shape, ",", 2)
      if not groups[key] then
        groups[key] = {}
        order[#order + 1] = key
      end
      table.insert(groups[key], i)
    else
      whole[i] = one
    end
  end
  for _, key in ipairs(order) do
    local joined, placements = {}, {}
    for d = 1, #list[groups[key][1]].placements do placements[d] = mh.Partial(by) end
    for j, i in ipairs(groups[key]) do joined[j] = list[i]:redistribute(placements) end
    local scalars, at = joined[1].ndim == 0, 0
    local all = (scalars and mh.stack(joined, 0) or mh.cat(joined, 0)):full_tensor()
    for _, i in ipairs(groups[key]) do
      local rows = scalars and 1 or list[i]:size(0)
      whole[i] = all:narrow(0, at, rows):reshape(list[i].shape)
      at = at + rows
    end
  end
  return whole
end

local Metric = {}

local function add_total(self, i, one)
  local known = self.totals[i]
  -- Sums of a checkpoint are on the host, those of batches where their fields are.
  if known and tostring(known.device) ~= tostring(one.device) then known = known:to(one.device) end
  self.totals[i] = known and kCombine[self.kind.by](known, one) or one
end

--- Sums of pending batches, complete and added to the totals.
local function resolve(self)
  if #self.pending == 0 then return end
  local flat, counts = {}, {}
  for b, sums in ipairs(self.pending) do
    counts[b] = #sums
    for _, one in ipairs(sums) do flat[#flat + 1] = one end
  end
  local whole, at = complete(flat, self.kind.by), 0
  for b, count in ipairs(counts) do
    local sums = {table.unpack(whole, at + 1, at + count)}
    at = at + count
    local totals = self.kind.fold and self.kind.fold(sums, self, self.pending[b].over) or sums
    for i, one in ipairs(totals) do add_total(self, i, one) end
  end
  self.pending = {}
end

local function as_tensor(value, like)
  return mh.is_tensor(value) and value or mh.full({}, value + 0.0, {dtype = "float64", device = like.device})
end

--- metric:add(...) -> nothing
---   Adds a batch: metric:add(guess, truth); of ensembles metric:add(ensemble, truth). Nothing is sent but what the
---   formula itself needs (rows of neighbours, transforms).
---   returns     nothing
---   collective  only where the formula needs rows of other ranks
---   errors      ValueError: shapes that do not fit
---   example
---     local metric = mh.metrics.mae{}
---     metric:add(mh.tensor{3.0, 0.0}, mh.tensor{0.0, 1.0})
---     metric:value()    --> 2.0
function Metric:add(...)
  local op, given, most = self.name .. ":add", select("#", ...), self.kind.inputs or 2
  if given > most then
    fail(mh._surplus_text(op, given, most, "", (select(most + 1, ...))))
  end
  mh.no_grad(function(...)
    local sums, over = self.kind.sums(self, op, ...)
    for i, one in ipairs(sums) do sums[i] = as_tensor(one, (...)) end
    sums.over = over
    local last = self.pending[1]
    local same = last and not self.kind.fold and self.kind.by == "sum"
    for i, one in ipairs(sums) do
      local known = last and last[i] or self.totals[i]
      if known and not self.kind.fold and table.concat(known.shape, ",") ~= table.concat(one.shape, ",") then
        fail(("%s: the dims that are kept have shape %s, before they had %s"):format(op, fields.shape_text(one),
            fields.shape_text(known)))
      end
      same = same and last[i]:is_shard_tensor() == one:is_shard_tensor()
          and (not one:is_shard_tensor() or tostring(last[i].mesh) == tostring(one.mesh))
    end
    if same then
      for i, one in ipairs(sums) do last[i] = last[i] + one end
    else
      table.insert(self.pending, 1, sums)
    end
    self.batches = self.batches + 1
  end, ...)
end

--- metric:value(options = nil) -> number|Tensor
---   The metric of all batches so far.
---   options     table?      {over = mesh}: a mesh whose ranks added batches of plain tensors, each its own; their sums
---     are added
---   returns     number|Tensor   with `keep` a plain tensor of the dims that are kept; the same on all ranks
---   collective  where fields are cut, or over `over`: one reduction
---   errors      ValueError: no batch was added
---   example
---     local metric = mh.metrics.mse{}
---     metric:add(mh.distribute_tensor(mh.ones{6} * 3, mesh, {mh.Shard(0)}), mh.ones{6})
---     metric:value()    --> 4.0
function Metric:value(options)
  options = arguments.options(self.name .. ":value", options)
  for key in pairs(options) do arguments.choice(self.name .. ":value", "option", key, {"over"}) end
  if options.over ~= nil and not is_mesh(options.over) then
    fail(("%s:value: over is %s, expected a mesh"):format(self.name, mh._describe(options.over)))
  end
  return mh.no_grad(function()
    resolve(self)
    local over = options.over
    if self.batches == 0 and not over then fail(self.name .. ":value: no batch was added") end
    local totals = {table.unpack(self.totals)}
    if over then
      if #totals == 0 then
        fail(self.name .. ":value: this rank has no batch\n  fix   give every rank at least one, or cut the field")
      end
      local placements = {}
      for d = 1, over.ndim do placements[d] = mh.Partial(self.kind.by) end
      for i, one in ipairs(totals) do totals[i] = mh.from_local(one, over, placements) end
      totals = complete(totals, self.kind.by)
    end
    local value = self.kind.finish(totals, self)
    if mh.is_tensor(value) and value:numel() == 1 and #self.keep == 0 then return value:item() end
    return value
  end)
end

--- metric:merge(other) -> nothing
---   Adds what another metric of the same kind and options has seen.
---   other       Metric      the other metric
---   returns     nothing
---   collective  no
---   errors      ValueError: another kind, or other options
---   example
---     local one, other = mh.metrics.mae{}, mh.metrics.mae{}
---     one:add(mh.tensor{3.0}, mh.tensor{0.0})
---     other:add(mh.tensor{1.0}, mh.tensor{0.0})
---     one:merge(other)
---     one:value()    --> 2.0
function Metric:merge(other)
  if type(other) ~= "table" or getmetatable(other) ~= getmetatable(self) then
    fail(("%s:merge: expected another %s, got %s"):format(self.name, self.name, mh._describe(other)))
  end
  if rawequal(self, other) then fail(self.name .. ":merge: the metric itself would count twice") end
  -- Copies: add() changes the sums of its own metric.
  for _, sums in ipairs(other.pending) do
    local copy = {table.unpack(sums)}
    copy.over = sums.over
    table.insert(self.pending, copy)
  end
  for i, one in ipairs(other.totals) do add_total(self, i, one) end
  self.batches = self.batches + other.batches
  return self
end

--- metric:reset() -> nothing
---   Forgets all batches.
---   returns     nothing
---   collective  no
---   example
---     local metric = mh.metrics.mae{}
---     metric:add(mh.tensor{3.0}, mh.tensor{0.0})
---     metric:reset()
---     metric:add(mh.tensor{1.0}, mh.tensor{0.0})
---     metric:value()    --> 1.0
function Metric:reset()
  self.pending, self.totals, self.batches = {}, {}, 0
  return self
end

--- metric:state_dict() -> table
---   The sums so far, as mh.checkpoint saves them; any number of ranks may load them.
---   returns     table       plain tensors
---   collective  where fields are cut
---   example
---     local metric = mh.metrics.mae{}
---     metric:add(mh.tensor{3.0}, mh.tensor{0.0})
---     type(metric:state_dict())    --> table
function Metric:state_dict()
  mh.no_grad(function() resolve(self) end)
  return {name = self.name, batches = self.batches, totals = {table.unpack(self.totals)}}
end

--- metric:load_state_dict(state) -> nothing
---   Continues with the sums of another metric with the same options.
---   state       table       of state_dict()
---   returns     nothing
---   collective  no
---   errors      ValueError: the state of another kind, or of other options
---   example
---     local one, other = mh.metrics.mae{}, mh.metrics.mae{}
---     one:add(mh.tensor{3.0}, mh.tensor{0.0})
---     other:load_state_dict(one:state_dict())
---     other:value()    --> 3.0
function Metric:load_state_dict(state)
  if type(state) ~= "table" or getmetatable(state) or math.type(state.batches) ~= "integer"
      or type(state.totals) ~= "table" then
    fail(self.name .. ":load_state_dict: expected the table of state_dict(), got " .. mh._describe(state))
  end
  if state.name ~= self.name then
    fail(("%s:load_state_dict: the state is of '%s'"):format(self.name, tostring(state.name)))
  end
  for _, one in ipairs(state.totals) do arguments.tensor(self.name .. ":load_state_dict", "totals", one) end
  self:reset()
  self.batches = state.batches
  for i, one in ipairs(state.totals) do self.totals[i] = one:double():clone() end
end

local meta = {}

--- The maker of metrics `name` with the options `entries`. `kind`: inputs, how many tensors add takes (2 if left out);
--- check(self, op), sums(self, op, ...) -> list of tensors and the dims they are over, by "sum" (or "max"), fold(sums,
--- self, over) -> list where values of samples are averaged, finish(totals, self) -> value.
function running.maker(name, entries, kind)
  local spec = arguments.signature(name, entries)
  local fields_of = table.concat(spec.names, " ") .. " name keep kind pending totals batches weights mask dims"
  kind.by = kind.by or "sum"
  meta[name] = strict.class {name = name, methods = Metric, fields = fields_of, word = "Metric"}
  return function(...)
    local self = setmetatable(arguments.read(spec, ...), meta[name])
    self.name, self.kind, self.keep = name, kind, rawget(self, "keep") or {}
    if type(self.keep) ~= "table" or getmetatable(self.keep) then
      fail(("%s: keep is %s, expected a list of dims"):format(name, mh._describe(self.keep)))
    end
    for i, dim in ipairs(self.keep) do
      if math.type(dim) ~= "integer" or dim < 0 then
        fail(("%s: keep[%d] is %s, expected a dim from 0"):format(name, i, mh._describe(dim)))
      end
    end
    self:reset()
    if kind.check then kind.check(self, name) end
    return self
  end
end

return running
