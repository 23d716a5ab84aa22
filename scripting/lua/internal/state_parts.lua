-- SPDX-License-Identifier: Apache-2.0
-- States in parts: what one rank has of a module's or an optimizer's state, and how parts become whole tensors again.
-- A note of a tensor is {dtype, shape, begin, size}: the block that begins there; without begin the rank has none.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local values = require "moonhalo.internal.checkpoint_values"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail, files, cfiles = mh.fail, mh._files, mh._checkpoint_files
local parts = {}

local function elements(size)
  local count = 1
  for _, length in ipairs(size) do count = count * length end
  return count
end

function parts.same_shape(a, b) return #a == #b and table.concat(a, ",") == table.concat(b, ",") end

function parts.same_block(note, size, begin)
  return note.begin ~= nil and parts.same_shape(note.size, size)
      and (parts.same_shape(note.begin, begin) or elements(size) == 0)
end

--- "[0:3, 2:4]", or "[3, 4]" without a beginning, or "nothing".
function parts.block_text(size, begin)
  if not size then return "nothing" end
  local dims = {}
  for i, length in ipairs(size) do
    dims[i] = begin and ("%d:%d"):format(begin[i], begin[i] + length) or tostring(length)
  end
  return "[" .. table.concat(dims, ", ") .. "]"
end

--- Lists of tensors by entry, with sums made of Partial ones. Collective over their meshes.
function parts.summed(tensors)
  local made = {}
  for _, key in ipairs(sorted_keys(tensors)) do
    made[key] = {}
    for i, pair in ipairs(tensors[key]) do
      local tensor, placements, partial = pair[2], nil, false
      if tensor:is_shard_tensor() then
        placements = tensor.placements
        for d, placement in ipairs(placements) do
          if placement:is_partial() then placements[d], partial = mh.Replicate(), true end
        end
      end
      made[key][i] = {pair[1], partial and tensor:redistribute(placements) or tensor}
    end
  end
  return made
end

--- Returns this rank's blocks of a list of {name, tensor} as a list of {name, block}, and notes of all by name.
function parts.blocks_of(tensors)
  local blocks, notes = {}, {}
  for _, pair in ipairs(tensors) do
    local name, tensor = pair[1], pair[2]
    local note = {dtype = tensor.dtype, shape = tensor.shape}
    if tensor:is_shard_tensor() or tensor.device ~= "meta" then
      local block, begin = cfiles.block(tensor)
      note.begin, note.size = begin, block.shape
      blocks[#blocks + 1] = {name, block}
    end
    notes[name] = note
  end
  return blocks, notes
end

-- ---- Whole tensors --------------------------------------------------------------------------------------------------

local function overlap(a, b)
  for d = 1, #a.begin do
    if a.begin[d] + a.size[d] <= b.begin[d] or b.begin[d] + b.size[d] <= a.begin[d] then return false end
  end
  return true
end

--- Fails unless the different ones of `found`, a list of notes, are a tensor without gaps.
local function check_cover(who, name, shape, found)
  local count, kept = 0, {}
  for _, note in ipairs(found) do
    local known = elements(note.size) == 0
    for _, other in ipairs(kept) do
      local same = parts.same_block(note, other.size, other.begin)
      known = known or same
      if not same and elements(note.size) > 0 and overlap(note, other) then
        fail(("%s: blocks of '%s' overlap\n  have  %s and %s\n  fix   give the parts of one save"):format(who, name,
          parts.block_text(note.size, note.begin), parts.block_text(other.size, other.begin)))
      end
    end
    if not known then kept[#kept + 1], count = note, count + elements(note.size) end
  end
  if count ~= elements(shape) then
    fail(("%s: '%s' is not whole\n  have  blocks of %d of the %d elements of %s\n" ..
      "  fix   give the parts of all ranks"):format(who, name, count, elements(shape), parts.block_text(shape)))
  end
end

local function put(whole, note, block)
  local region = whole
  for d = 1, #note.shape do region = region:narrow(d - 1, note.begin[d], note.size[d]) end
  region:copy_(block)
end

--- Whole tensors of a list of {notes = by name, tensors = list of {name, block}}, one a rank: a list of {name, tensor}.
function parts.whole(who, list)
  local notes, names = {}, {}
  for _, part in ipairs(list) do
    for name, note in pairs(part.notes) do
      if not notes[name] then
        notes[name], names[#names + 1] = {shape = note.shape, dtype = note.dtype, found = {}}, name
      end
      local known = notes[name]
      if not parts.same_shape(known.shape, note.shape) or known.dtype ~= note.dtype then
        fail(("%s: '%s' differs in shape or dtype\n  have  %s %s and %s %s\n  fix   give the parts of one save"):format(
          who, name, known.dtype, parts.block_text(known.shape), note.dtype, parts.block_text(note.shape)))
      end
      if note.begin then table.insert(known.found, note) end
    end
  end
  table.sort(names)
  local whole, made = {}, {}
  for i, name in ipairs(names) do
    check_cover(who, name, notes[name].shape, notes[name].found)
    whole[name] = mh.empty(notes[name].shape, {dtype = notes[name].dtype})
    made[i] = {name, whole[name]}
  end
  mh.no_grad(function()
    for _, part in ipairs(list) do
      for _, pair in ipairs(part.tensors) do put(whole[pair[1]], part.notes[pair[1]], pair[2]) end
    end
  end)
  return made
end

-- ---- The functions --------------------------------------------------------------------------------------------------

local function check_part(who, part)
  local whole = type(part) == "table" and type(rawget(part, "notes")) == "table"
      and type(rawget(part, "blocks")) == "table" and type(rawget(part, "entry")) == "string"
      and math.type(rawget(part, "rank")) == "integer" and math.type(rawget(part, "ranks")) == "integer"
  for name, note in pairs(whole and part.notes or {}) do
    local block = part.blocks[name]
    whole = whole and type(note) == "table"
        and (not note.begin or mh.is_tensor(block) and parts.same_shape(block.shape, note.size))
  end
  if whole then return part end
  fail(("%s: expected what mh.deduped_state_dict gave, got %s"):format(who, mh._describe(part)))
end

local function refuse_pipelines(who, module)
  if require("moonhalo.internal.checkpoint_stages").pipeline_of(module) then
    fail(who .. ": not of pipelines\n  have  stages on different ranks\n" ..
        "  fix   mh.checkpoint.save(path, {model = pipeline, optimizer = opt})")
  end
end

--- Checks what a load is given: a module, an optimizer, {device = d}. Tensors are loaded where the module has them.
local function check_targets(who, module, optimizer, state, options)
  if not base.is_module(module) then
    refuse_pipelines(who, module)
    fail(("%s: expected an nn.Module\n  have  %s\n  fix   mh.%s(net, model, opt, state)"):format(who,
        mh._describe(module), who))
  end
  refuse_pipelines(who, module)
  if optimizer ~= nil and not mh._is_optimizer(optimizer) then
    fail(("%s: expected an optimizer\n  have  %s\n  fix   mh.%s(net, model, opt, state)"):format(who,
      mh._describe(optimizer), who))
  end
  if optimizer == nil and state ~= nil then
    fail(("%s: a state of an optimizer, and no optimizer\n  have  %s\n  fix   mh.%s(net, model, opt, state)"):format(
      who, mh._describe(state), who))
  end
  if options == nil then return end
  if type(options) ~= "table" or getmetatable(options) then
    fail(("%s: expected options, as {device = \"cpu\"}, got %s"):format(who, type(options)))
  end
  for key in pairs(options) do arguments.choice(who, "option", key, {"device"}) end
  for name, tensor in options.device ~= nil and module:state_dict() or function() end do
    local device = tostring(tensor.device)
    if options.device ~= device and options.device ~= device:match("^%a+") then
      fail(("%s: tensors are loaded where the module has them\n  have  device = %s, '%s' on %s\n" ..
          "  fix   leave device out, or net:to(device) "
        .. "first"):format(who, tostring(options.device), name, device))
    end
  end
end

local function as_list(part)
  local list = {}
  for name, block in pairs(part.blocks) do list[#list + 1] = {name, block} end
  return {notes = part.notes, tensors = list}
end

--- Leaves each block to the first of the ranks that have it. Collective over all ranks.
local function without_copies(blocks, notes)
  local texts, mine, kept = files.of_all_ranks(mh.json.encode(notes)), mh.rank() + 1, {}
  local earlier = {}
  for rank = 1, mine - 1 do earlier[rank] = mh.json.decode(texts[rank]) end
  for _, pair in ipairs(blocks) do
    local name, first = pair[1], true
    for rank = 1, mine - 1 do
      local other = earlier[rank][name]
      first = first and not (other and other.begin and parts.same_block(other, notes[name].size, notes[name].begin))
    end
    if first then
      kept[name] = pair[2]:clone()
    else
      notes[name].begin, notes[name].size = nil, nil
    end
  end
  return kept
end

local function part_of(entry, tensors)
  tensors = parts.summed({only = tensors}).only
  local blocks, notes = parts.blocks_of(tensors)
  local kept = without_copies(blocks, notes)
  return {rank = mh.rank(), ranks = mh.world_size(), entry = mh.json.encode(entry), blocks = kept, notes = notes}
end

--- mh.deduped_state_dict(module, optimizer = nil) -> table
---   This rank's part of the state of a module, and of its optimizer; every element is in the part of one rank.
---   module      Module      divided in any way
---   optimizer   Optimizer?   of its parameters
---   returns     table       {rank, ranks, entry, blocks, notes}, plain data; a second result is that of the optimizer
---   collective  over all ranks
---   errors      ValueError: not a module
---   example
---     local part = mh.deduped_state_dict(nn.Linear(2, 3))
---     part.rank == mh.rank(), part.ranks == mh.world_size()    --> true  true
function parts.deduped_state_dict(module, optimizer)
  refuse_pipelines("deduped_state_dict", module)
  arguments.module("deduped_state_dict", module)
  if optimizer ~= nil and not mh._is_optimizer(optimizer) then
    fail("deduped_state_dict: expected an optimizer, got " .. mh._describe(optimizer))
  end
  local packing = require "moonhalo.checkpoint"
  local entries, tensors = packing._pack(optimizer and {model = module, optimizer = optimizer} or {model = module})
  local model = part_of(entries.model, tensors.model or {})
  if not optimizer then return model end
  return model, part_of(entries.optimizer, tensors.optimizer or {})
end

local function tree_of(part, whole)
  local by_name = {}
  for _, pair in ipairs(whole) do by_name[pair[1]] = pair[2] end
  return values.unpack(mh.json.decode(part.entry), function(name) return by_name[name] end,
      function(problem) fail("merge_state_dicts: " .. problem) end)
end

local function merged(list)
  if type(list) ~= "table" or getmetatable(list) or #list == 0 then
    fail("merge_state_dicts: expected a list of the parts of all ranks, got " .. mh._describe(list))
  end
  local all, seen = {}, {}
  for i, part in ipairs(list) do
    check_part("merge_state_dicts", part)
    if part.ranks ~= list[1].ranks or seen[part.rank] then
      fail(("merge_state_dicts: part %d is of rank %d of %d\n  have  %s\n" ..
        "  fix   give each rank's part of one run once"):format(i,
        part.rank, part.ranks, seen[part.rank] and "that rank's part" or ("parts of %d ranks"):format(list[1].ranks)))
    end
    seen[part.rank], all[i] = true, as_list(part)
  end
  return tree_of(list[1], parts.whole("merge_state_dicts", all))
end

--- mh.merge_state_dicts(models, optimizers = nil) -> table
---   The whole states of the parts that mh.deduped_state_dict gave on every rank.
---   models      {table}     the parts of all ranks, in any order
---   optimizers   {table}?   those of the optimizer
---   returns     table       tensors by name, for load_state_dict on one rank; a second result is the optimizer's state
---   collective  no
---   errors      ValueError: a part is missing, or of another run
---   example
---     local net = nn.Linear(2, 3)
---     if mh.world_size() == 1 then
---       print(mh.merge_state_dicts({(mh.deduped_state_dict(net))}).weight.shape)
---     else
---       print(net.weight.shape)
---     end    --> {3, 2}
function parts.merge_state_dicts(models, optimizers)
  local model = merged(models)
  return model, optimizers and merged(optimizers) or nil
end

local function check_merged(who, what, given)
  local tensors = type(given) == "table" and not mh.is_tensor(given)
      and (what == "model's" or type(given.state) == "table")
  if not tensors then
    fail(("%s: expected the %s state that mh.merge_state_dicts gave\n  have  %s\n" ..
      "  fix   mh.%s(net, model, opt, state)"):format(who, what, given == false and "nil" or mh._describe(given), who))
  end
end

--- mh.load_merged_state_dict(module, model, optimizer = nil, optimizer_state = nil, options = nil) -> nothing
---   Loads what mh.merge_state_dicts gave, the same on every rank, into a module that is divided in any way, and its
---   optimizer.
---   module      Module      where the state goes
---   model       table       tensors by name
---   optimizer   Optimizer?   of the module
---   optimizer_state   table?   its state
---   options     table?      {device = d}, which must be where the module is
---   returns     nothing
---   collective  over all ranks
---   errors      ValueError: names or shapes differ
---   example
---     local a, b = nn.Linear(2, 3), nn.Linear(2, 3)
---     local model = {weight = a.weight:detach(), bias = a.bias:detach()}
---     mh.load_merged_state_dict(b, model)
---     b.weight:equal(a.weight)    --> true
function parts.load_merged_state_dict(module, model, optimizer, optimizer_state, options)
  local who = "load_merged_state_dict"
  check_targets(who, module, optimizer, optimizer_state, options)
  for what, one in pairs {["model's"] = model or false, ["optimizer's"] = optimizer and (optimizer_state or false)} do
    if optimizer or what == "model's" then check_merged(who, what, one) end
  end
  local by_name = require "moonhalo.internal.checkpoint_optimizers"
  local state = optimizer and by_name.by_position(optimizer, {{"model", module}}, optimizer_state, {})
  if optimizer then optimizer:_check_state_dict(by_name.described(state)) end
  module:load_state_dict(model)
  if not optimizer then return end
  optimizer:load_state_dict(by_name.described(state))
  mh.no_grad(function()
    values.walk_both(state.state, optimizer:state_dict().state, function(saved, target)
      if mh.is_tensor(saved) and mh.is_tensor(target) then target:copy_(saved) end
    end)
  end)
end

--- Fails on every rank unless each was given its own part of this many ranks. Collective.
local function check_own(who, part)
  files.on_every_rank(function()
    check_part(who, part)
    if part.ranks ~= mh.world_size() or part.rank ~= mh.rank() then
      fail(("%s: the part is of rank %d of %d, this is rank %d of %d\n" ..
          "  fix   give each rank its own part, or load what "
        .. "mh.merge_state_dicts makes of all"):format(who, part.rank, part.ranks, mh.rank(), mh.world_size()))
    end
    return ""
  end)
end

--- The ranks fetch what they need of each other's blocks.
local function load_parts(who, part, targets)
  local lists, line = {}, mh.init_device_mesh("cpu", {mh.world_size()})
  for rank, text in ipairs(files.of_all_ranks(mh.json.encode(part.notes))) do lists[rank] = mh.json.decode(text) end
  for _, one in ipairs(targets) do
    local name, owned, found = one[1], {}, {}
    for rank, notes in ipairs(lists) do
      local note = notes[name] or {}
      owned[rank] = note.begin and {note.begin, note.size} or false
      if note.begin then found[#found + 1] = note end
    end
    check_cover(who, name, one[2].shape, found)
    local none = {}
    for d = 1, #one[2].shape do none[d] = 0 end
    local block = part.blocks[name] or mh.empty(#none > 0 and none or {0}, {dtype = part.notes[name].dtype})
    cfiles.exchange(line, one[2], owned, block)
  end
end

--- mh.load_deduped_state_dict(module, model, optimizer = nil, optimizer_state = nil, options = nil) -> nothing
---   Loads the parts that mh.deduped_state_dict gave, each rank its own, on as many ranks; the module may be divided in
---   another way.
---   module      Module      where the state goes
---   model       table       this rank's part
---   optimizer   Optimizer?   of the module
---   optimizer_state   table?   this rank's part of its state
---   options     table?      {device = d}, which must be where the module is
---   returns     nothing
---   collective  over all ranks
---   errors      ValueError: the part of another rank, or another number of ranks
---   example
---     local a, b = nn.Linear(2, 3), nn.Linear(2, 3)
---     mh.load_deduped_state_dict(b, (mh.deduped_state_dict(a)))
---     b.weight:equal(a.weight)    --> true
function parts.load_deduped_state_dict(module, model, optimizer, optimizer_state, options)
  local who, by_name = "load_deduped_state_dict", require "moonhalo.internal.checkpoint_optimizers"
  check_targets(who, module, optimizer, optimizer_state, options)
  check_own(who, model)
  if optimizer then check_own(who, optimizer_state) end
  local function described(part)
    return values.unpack(mh.json.decode(part.entry), function(name)
      local note = part.notes[name]
      return note and mh.empty(note.shape, {dtype = note.dtype, device = "meta"})
    end, function(problem) fail(who .. ": " .. problem) end)
  end
  local own, targets = require("moonhalo.nn.state").check_saved(module, described(model), {}), {}
  local state = optimizer and by_name.by_position(optimizer, {{"model", module}}, described(optimizer_state), {})
  if optimizer then optimizer:_check_state_dict(state) end
  for name, tensor in own do targets[#targets + 1] = {name, tensor} end
  load_parts(who, model, targets)
  if not optimizer then return end
  optimizer:load_state_dict(state)
  local names, of_optimizer = by_name.names(optimizer, {{"model", module}}), {}
  for i, fields in ipairs(optimizer:state_dict().state) do
    for _, field in ipairs(sorted_keys(fields)) do
      if mh.is_tensor(fields[field]) then
        of_optimizer[#of_optimizer + 1] = {field .. "/" .. names[i], fields[field]}
      end
    end
  end
  load_parts(who, optimizer_state, of_optimizer)
end

return parts
