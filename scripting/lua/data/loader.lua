-- SPDX-License-Identifier: Apache-2.0
-- Batches of the samples of a set, in an order that any number of ranks goes on with: `for batch in loader:batches()
-- do`.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local checks = require "moonhalo.internal.field_checks"
local BatchCut = require "moonhalo.data.batch_cut"
local BatchPlan = require "moonhalo.data.batch_plan"
local made = require "moonhalo.data.made"
local Order = require "moonhalo.data.order"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"
local is_mesh = require("moonhalo.internal.registered_mesh").is_mesh
local byte_sizes = require "moonhalo.internal.byte_sizes"
local sorted = require "moonhalo.internal.sorted_keys"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional

local check_memory

local function samples_of(self) return self.set.count end

local check_batch_number = checks.integer_within(1, samples_of, "batch = 1")

local function check_batch(value, self)
  local expected, fix = check_batch_number(value, self)
  if not expected and self.cut then check_memory(self, value, self.prefetch) end
  return expected, fix
end

local check_prefetch_number = checks.integer(0, "prefetch = 2")

local function check_prefetch(value, self)
  local expected, fix = check_prefetch_number(value)
  if not expected and self.cut then check_memory(self, self.batch, value) end
  return expected, fix
end

local function check_shuffle(value)
  if type(value) ~= "boolean" and value ~= "chunks" then return "true, false or 'chunks'", "shuffle = true" end
end

local kChecks = {batch = check_batch, shuffle = check_shuffle, seed = checks.integer(nil, "seed = 1"),
  epoch = checks.integer(0, "epoch = 0, the first one"), prefetch = check_prefetch,
  drop_last = checks.flag "drop_last = true leaves out a smaller last batch"}
kChecks.next = checks.integer_within(0, samples_of, "next = 0 begins the epoch again")

local Loader = {}
local meta = strict.class {name = "Loader", methods = Loader,
  fields = "batch cut drop_last epoch memory next options order plan planned prefetch seed set shuffle under_way",
  elements = "for batch in loader:batches() do",
  checks = kChecks}

--- loader.epoch -> integer
---   The number of epochs that are done.
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     local loader = data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{batch = 5}
---     for batch in loader:batches() do end
---     loader.epoch    --> 1

local kLoader = signature("loader", {optional "mesh", {"cut", {}}, {"batch", 1},
  {"shuffle", false, mixed = true}, {"seed", 0}, {"drop_last", false},
  optional "normalize", optional "missing", {"prefetch", 2}, {"memory", "1GiB"}, {"dtype", "float32"},
  optional "transform"},
  {batch_size = "give batch = n, the samples of all ranks together",
    num_workers = "leave it out: a thread reads `prefetch` batches ahead",
    pin_memory = "leave it out: batches come on the mesh's device",
    collate_fn = "give transform = function(batch, place)",
    sampler = "give shuffle and seed; set:split gives parts",
    persistent_workers = "leave it out: one thread reads for all epochs",
    prefetch_factor = "give prefetch = n, batches that are read ahead"})

-- ---- Options --------------------------------------------------------------------------------------------------------

local function check_count(name, value, least)
  if math.type(value) ~= "integer" or value < least then
    fail(("loader: %s is %s\n  have  integers in mind\n  fix   give one of at least %d"):format(name,
        text.of(value), least))
  end
end

local function check_cut(what, cut, have)
  local plain = type(cut) == "table" and not getmetatable(cut)
  for _, one in pairs(plain and cut or {}) do
    plain = plain and (type(one) == "string" or type(one) == "table" and not getmetatable(one))
  end
  if plain then return end
  fail(("loader: %s %s\n  have  %s\n  fix   give {DIM = {MESH_DIM, sizes}}"):format(what, text.of(cut), have))
end

--- name -> {mean, std} for the fields of a set, of Statistics or a table of that form.
local function check_normalize(set, given)
  if given == nil then return nil end
  local fields = type(given) == "table" and (given.fields or given)
  local names = type(fields) == "table" and sorted(fields) or {}
  local scales = {}
  for _, name in ipairs(set:fields()) do
    local of = type(fields) == "table" and rawget(fields, name)
    if type(of) ~= "table" then
      fail(("loader: statistics of other fields: none of '%s'%s\n  have  %s\n" ..
        "  fix   take set:statistics() of these windows"):format(name,
        mh.did_you_mean(name, names), #names > 0 and table.concat(names, ", ") or text.of(given)))
    end
    local function list(column)
      local value = type(of[column]) == "number" and {of[column]} or of[column]
      if type(value) ~= "table" or #value ~= set.data.fields[name].channels then
        fail(("loader: %s of '%s' is %s\n  have  %d channels\n  fix   give one number a channel"):format(column, name,
          type(value) == "table" and #value .. " numbers" or text.of(value), set.data.fields[name].channels))
      end
      return value
    end
    scales[name] = {mean = list "mean", std = list "std"}
    for i, std in ipairs(scales[name].std) do
      if not (std > 0) then
        fail(("loader: the standard deviation of '%s' is %s in channel %d\n  have  a field that does not change\n" ..
            "  fix   leave it out, or give normalize a "
          .. "std above 0 for it"):format(name, text.of(std), i - 1))
      end
    end
  end
  return scales
end

local function check_missing(given)
  if given == nil or given == "keep" then return given end
  if type(given) ~= "table" or type(given.fill) ~= "number"
      or (given.mask ~= nil and type(given.mask) ~= "boolean") then
    fail(("loader: missing is %s\n  have  missing values as NaN\n" ..
      "  fix   give {fill = number, mask = true}, or \"keep\""):format(
      type(given) == "table" and mh.json.encode(given) or text.of(given)))
  end
  for key in pairs(given) do arguments.choice("loader", "option of missing", key, {"fill", "mask"}) end
  return given
end

local kTogether = 3  -- batches while one is put together: its frames, what is made of them, and that of the user

--- Channels that a batch has beside its own for fields that functions make: what these are made of, and the results.
local function made_channels(set)
  local count = 0
  for _, part in ipairs {set.inputs, set.targets, set.static} do
    for _, name in ipairs(part.fields) do
      local field = set.data.fields[name]
      for _, leaf in ipairs(field.make and made.leaves(set.data, name) or {}) do
        count = count + #part.steps * set.data.fields[leaf].channels
      end
      count = count + (field.make and #part.steps * field.channels or 0)
    end
  end
  return count
end

--- Bytes left for keeping what was decoded, after the batches of `batch` samples that are in memory at once: `prefetch`
--- that are read ahead, and kTogether.
function check_memory(self, batch, prefetch)
  local channels = #self.set.inputs.channels + #self.set.targets.channels + #self.set.static.channels
      + made_channels(self.set)
  local _, _, sizes = self.cut:samples(batch)
  local need = (prefetch + kTogether) * math.max(table.unpack(sizes)) * channels * self.cut:largest()
      * BatchCut.kBytes[self.options.dtype]
  local chunks = self.cut:beyond_share(self.set, self.options.dtype)
  if need + chunks > self.memory then
    fail(("loader: %d batches do not fit in memory = %d bytes\n" ..
        "  have  %d bytes for the largest block of %d samples of %d channels, (prefetch + %d) times%s\n"
      .. "  fix   give memory = \"%dMiB\", or smaller batches, blocks or prefetch"):format(prefetch + kTogether,
          self.memory,
      need // (prefetch + kTogether), math.max(table.unpack(sizes)), channels, kTogether,
      chunks > 0 and (", and %d bytes of chunks that are read for others"):format(chunks) or "",
        math.ceil((need + chunks) / (1 << 20))))
  end
  need = need + chunks
  return self.memory - need
end

--- Takes a cut and what follows from it and from the size and number of batches.
local function take_cut(self, cut)
  self.cut = cut
  self.options.cache_bytes = check_memory(self, self.batch, self.prefetch)
  self.under_way, self.planned = {}, {batch = self.batch, prefetch = self.prefetch}
  self.plan = BatchPlan.new(self.set, cut, self.options)
end

-- ---- Batches --------------------------------------------------------------------------------------------------------

function meta.__len(self)
  return self.drop_last and self.set.count // self.batch or (self.set.count + self.batch - 1) // self.batch
end

--- The end of the batch that begins at a place of the epoch, or nil after the last.
local function end_of(self, first)
  local last = math.min(first + self.batch, self.set.count)
  if first >= last or (self.drop_last and first + self.batch > self.set.count) then return nil end
  return last
end

--- The place that follows: in this epoch, or after its last batch in the next one.
local function settled(self, epoch, first)
  if end_of(self, first) then return epoch, first end
  return epoch + 1, 0
end

--- Makes the order that shuffle and seed ask for: scripts may assign these.
local function update_order(self)
  self.options.seed = self.seed
  local order = self.order
  if order and order.shuffle == self.shuffle and order.seed == self.seed then return end
  self.order, self.under_way = Order.new(self.set, self.shuffle, self.seed), {}
end

--- Plans batches of the size that scripts have assigned, with the memory that they leave.
local function update_sizes(self)
  if self.planned.batch == self.batch and self.planned.prefetch == self.prefetch then return end
  take_cut(self, self.cut)
end

--- Begins to read from self.next on, over the end of the epoch, until `prefetch` batches after the next are under way.
local function read_ahead(self)
  update_order(self)
  update_sizes(self)
  local queue = self.under_way
  local epoch, first = settled(self, self.epoch, self.next)
  if queue[1] and (queue[1].epoch ~= epoch or queue[1].first ~= first) then queue = {} end
  self.under_way = queue
  if queue[1] then epoch, first = settled(self, queue[#queue].epoch, queue[#queue].last) end
  while #queue <= self.prefetch do
    local last = end_of(self, first)
    local batch = self.plan:begin(self.order:samples(epoch, first, last), queue)
    batch.epoch, batch.first, batch.last = epoch, first, last
    queue[#queue + 1] = batch
    epoch, first = settled(self, epoch, last)
  end
end

--- Before anything is refused, so that no rank goes on without one that was.
local function check_same_place(self, options)
  local parts = {}
  for _, name in ipairs {"batch", "shuffle", "seed", "drop_last", "prefetch", "epoch", "next"} do
    parts[#parts + 1] = name .. " = " .. text.of(self[name])
  end
  if type(options) ~= "table" then parts[#parts + 1] = text.of(options) end
  for _, name in ipairs(type(options) == "table" and sorted(options) or {}) do
    parts[#parts + 1] = text.of(name) .. " = " .. text.of(options[name])
  end
  mh._data.check_same("loader", "orders or places", table.concat(parts, ", "))
end

--- loader:batches(options = nil) -> function
---   Goes through the rest of the epoch: for batch in loader:batches() do. After a loop that was left by break it goes
---   on with the next batch; {resume = false} begins the epoch again, in the same order.
---   options     table?      {resume = true}
---   returns     function    an iterator of {inputs, targets, static, index, times}, and masks where missing asks for
---     them: tensors [batch, channels, space...]; index and times are those of all ranks
---   collective  over all ranks
---   errors      an error of any rank's reading, on every rank; ValueError: ranks whose epoch, next, seed, shuffle,
---     batch, drop_last or prefetch differ
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     local loader = data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{batch = 5}
---     for batch in loader:batches() do print(batch.index:tolist()[1]) end    --> 0 | 5
function Loader:batches(options)
  check_same_place(self, options)
  if options ~= nil and type(options) ~= "table" then
    fail(("loader: batches got %s\n  have  no table of options\n" ..
        "  fix   call loader:batches(), or loader:batches{resume = false}"):format(text.of(options)))
  end
  for key in pairs(options or {}) do arguments.choice("loader: batches", "option", key, {"resume"}) end
  local resume = options and options.resume
  if resume ~= nil and type(resume) ~= "boolean" then
    fail(("loader: batches: resume is %s\n  have  no boolean\n  fix   give resume = false, or nothing"):format(
        text.of(resume)))
  end
  if resume == false then self.next = 0 end
  local done
  local function next_batch()
    if done then return nil end
    if not end_of(self, self.next) then
      self.epoch, self.next, done = self.epoch + 1, 0, true
      return nil
    end
    read_ahead(self)
    local batch = table.remove(self.under_way, 1)
    local read, result = pcall(self.plan.finish, self.plan, batch)
    if not read then
      self.under_way = {}
      error(result, 0)
    end
    self.next = batch.last
    read_ahead(self)
    return result
  end
  return function() return mh._record_reading(next_batch) end
end

--- loader:recut(cut) -> nothing
---   Changes the blocks from the next batch on; samples and their order stay.
---   cut         table       as of windows:loader, of the dims that change
---   returns     nothing
---   collective  over all ranks
---   errors      ValueError: sizes that do not add up, or dims that are not there
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     local loader = data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{mesh = mesh, cut = {x = "domain"}}
---     loader:recut{x = "domain"}
---     #loader    --> 10
function Loader:recut(cut)
  check_cut("recut got", cut, ("a cut of %d dims"):format(#sorted(self.cut.given)))
  mh._data.check_same("loader", "cuts", mh.json.encode(cut))
  local old = self.cut
  local new = BatchCut.new(old.mesh, self.set.data.space, old.shape, cut, old)
  local fits, problem = pcall(take_cut, self, new)
  if not fits then
    self.cut = old
    error(problem, 0)
  end
end

-- ---- Going on -------------------------------------------------------------------------------------------------------

--- The facts of a set that a saved place depends on, in words.
local function identity(set)
  local parts = {}
  for _, part in ipairs {"inputs", "targets", "static"} do parts[part] = table.concat(set[part].channels, " ") end
  parts.files = ("%d files, %d steps, from %s"):format(#set.data.files, set.data.steps,
      set.data.files[1]:match("[^/]*$"))
  parts.samples = ("%d samples, %s to %s"):format(set.count, set:time(0), set:time(set.count - 1))
  parts.all = mh._data.hash(set:_description())
  return parts
end

--- loader:state_dict() -> table
---   Where the loader is, as mh.checkpoint saves it: give the loader as an entry of the checkpoint.
---   returns     table       numbers and strings, without ranks and cuts
---   collective  no
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{batch = 5, seed = 3}:state_dict().seed    --> 3
function Loader:state_dict()
  local state = {shuffle = tostring(self.shuffle), set = identity(self.set)}
  for _, name in ipairs {"epoch", "next", "seed"} do state[name] = self[name] end
  return state
end

local function refuse(what, have, fix)
  fail(("loader: load_state_dict: %s\n  have  %s\n  fix   %s"):format(what, have, fix))
end

--- loader:load_state_dict(state) -> nothing
---   Continues with seed, epoch and place of another loader, on any number of ranks, for any cut and batch size.
---   state       table       of state_dict()
---   returns     nothing
---   collective  no, but all ranks must give the same
---   errors      ValueError: another set, or another way to shuffle; then nothing changes
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     local windows = data:windows{inputs = {fields = {"u"}, steps = {0}}}
---     local one, other = windows:loader{batch = 5}, windows:loader{batch = 2}
---     for batch in one:batches() do break end
---     other:load_state_dict(one:state_dict())
---     for batch in other:batches() do print(batch.index:tolist()[1]) end    --> 5 | 7 | 9
function Loader:load_state_dict(state)
  if type(state) ~= "table" or getmetatable(state) or type(state.set) ~= "table" then
    refuse("expected the table of state_dict()", text.of(state), "give what state_dict() or checkpoint.load gave")
  end
  for _, name in ipairs {"seed", "epoch", "next"} do
    if math.type(state[name]) ~= "integer" then
      refuse(("'%s' is %s"):format(name, text.of(state[name])), "not an integer", "give what state_dict() gave")
    end
  end
  local now = identity(self.set)
  for _, name in ipairs {"files", "inputs", "targets", "static", "samples", "all"} do
    if state.set[name] ~= now[name] then
      local what = name == "all" and "names of files, or shapes of fields" or name
      refuse("saved with another set: its " .. what .. " differ",
        ("%s, now %s"):format(text.of(state.set[name]), text.of(now[name])),
        "load it with the set that it was saved with, or begin a new order")
    end
  end
  if state.shuffle ~= tostring(self.shuffle) then
    refuse("saved with shuffle = " .. text.of(state.shuffle), "shuffle = " .. tostring(self.shuffle),
        "shuffle as before")
  end
  if state.epoch < 0 or state.next < 0 or state.next > self.set.count then
    refuse(("sample %d of epoch %d does not exist"):format(state.next, state.epoch),
        ("%d samples"):format(self.set.count), "give what state_dict() gave")
  end
  self.seed, self.epoch, self.next, self.under_way = state.seed, state.epoch, state.next, {}
end

function meta.__tostring(self)
  return ("Loader of %d samples in batches of %d: epoch %d, %d samples done"):format(self.set.count, self.batch,
      self.epoch, self.next)
end

--- Before anything is refused, so that no rank goes on without one that was.
local function check_same_options(set, options)
  local parts = {mh._data.hash(set:_description())}
  for _, name in ipairs {"batch", "shuffle", "seed", "drop_last", "prefetch", "memory", "dtype"} do
    parts[#parts + 1] = name .. " = " .. text.of(options[name])
  end
  parts[#parts + 1] = "cut = " .. mh.json.encode(options.cut)
  parts[#parts + 1] = "transform = " .. text.of(options.transform)
  mh._data.check_same("loader", "samples or options", table.concat(parts, ", "))
end

--- Batches of a set of windows. Options: mesh and cut ({batch = MESH_DIM, DIM = MESH_DIM or {MESH_DIM, sizes}};
--- without a mesh batches are plain), batch (samples of all ranks, 1), shuffle (false; true; "chunks": samples of
--- one compressed chunk stay near each other), seed (0), drop_last (false), normalize (Statistics: (value - mean) /
--- std by channel), missing (nil: NaN is an error; {fill = number, mask = true}; "keep"), prefetch (2: batches that
--- a thread reads ahead, at the end of an epoch those of the next), memory ("1GiB": what a rank may hold at once;
--- what batches leave of it keeps decoded chunks), dtype ("float32"), transform (a function(batch, place) that
--- returns the batch, or another table with its tensors changed; called with each batch as `batches` gives it,
--- without gradients, so that operators see the whole domain). `place` has, by dim of space, `coordinates` (cut as
--- the batch, [.., rows, ..] that broadcast) and `rows` ({first, end} of this rank's); `epoch`, and `seeds`, an
--- integer a sample that follows from seed, epoch and sample alone: draws that are the same on any ranks, and after
--- a resume. Collective over all ranks.
return function(set, ...)
  local options = arguments.read(kLoader, ...)
  if options.mesh ~= nil and not is_mesh(options.mesh) then
    fail(("loader: mesh is %s\n  have  no mesh\n  fix   loader{mesh = mesh, batch = 8}"):format(text.of(options.mesh)))
  end
  check_cut("cut is", options.cut, ("space (%s)"):format(table.concat(set.data.space, ", ")))
  check_same_options(set, options)
  check_count("batch", options.batch, 1)
  check_count("seed", options.seed, math.mininteger)
  check_count("prefetch", options.prefetch, 0)
  if options.shuffle ~= false and options.shuffle ~= true then
    arguments.choice("loader", "shuffle", options.shuffle, {"chunks"})
  end
  arguments.choice("loader", "dtype", options.dtype, sorted(BatchCut.kBytes))
  if options.transform ~= nil and type(options.transform) ~= "function" then
    fail(("loader: transform is %s\n  have  no function\n" ..
        "  fix   give function(batch, place) that returns the batch"):format(text.of(options.transform)))
  end
  if options.batch > #set then
    fail(("loader: a batch of %d is larger than the set\n  have  %d samples\n" ..
        "  fix   give smaller batches, or more data"):format(options.batch, #set))
  end
  local self = strict.object(meta, {set = set, batch = options.batch, shuffle = options.shuffle, seed = options.seed,
    drop_last = options.drop_last, prefetch = options.prefetch,
    memory = byte_sizes.read("loader: memory", options.memory)},
    {"set", "batch", "shuffle", "seed", "drop_last", "prefetch", "memory"})
  self.epoch, self.next = 0, 0
  self.options = {dtype = options.dtype, normalize = check_normalize(set, options.normalize),
    missing = check_missing(options.missing), transform = options.transform, seed = options.seed}
  update_order(self)
  local shape = set.data.fields[set.inputs.fields[1]].space_shape
  for _, name in ipairs(set:fields()) do
    local other = set.data.fields[name].space_shape
    if table.concat(other, ",") ~= table.concat(shape, ",") then
      fail(("loader: '%s' and '%s' differ in space\n  have  [%s] and [%s]\n  fix   load them apart"):format(
        set.inputs.fields[1], name, table.concat(shape, ", "), table.concat(other, ", ")))
    end
  end
  local cut = BatchCut.new(options.mesh, set.data.space, shape, options.cut)
  mh._data.check_same("loader", "statistics", mh._data.hash(mh.json.encode(self.options.normalize or {})))
  take_cut(self, cut)
  return self
end
