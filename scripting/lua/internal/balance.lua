-- SPDX-License-Identifier: Apache-2.0
-- mh.balance: blocks cut by measured speed while a model trains. What is decided from the times is in
-- internal/balance_rule.lua.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local sorted = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"
local is_mesh = require("moonhalo.internal.registered_mesh").is_mesh
local Rule = require "moonhalo.internal.balance_rule"

local fail = mh.fail
local Balance = {}
local meta = strict.class {name = "Balance", methods = Balance,
  fields = "mesh dim mesh_dim loader moved on_move parts rule steps total times first move_seconds mark ratio"}

local optional = arguments.optional
local kSignature = arguments.signature("balance", {"mesh", "cut", optional "loader", optional "weights",
  optional "moves",
  optional "on_move", {"unit", 1}, {"least", 1}, {"period", 8}, {"threshold", 1.05}, optional "steps"})

-- ---- Arguments ------------------------------------------------------------------------------------------------------

local function check_number(name, value, least)
  if not (type(value) == "number" and value >= least and value < math.huge) then
    fail(("balance: %s is %s, expected a number of at least %s"):format(name, mh._describe(value), least))
  end
end

local function check_cut(given)
  if not is_mesh(given.mesh) then
    fail("balance: mesh is " .. mh._describe(given.mesh) .. ", expected a mesh")
  end
  local cut = given.cut
  local dims = type(cut) == "table" and not getmetatable(cut) and sorted(cut) or {}
  local dim = dims[1]
  local mesh_dim = dim and cut[dim]
  if #dims ~= 1 or type(dim) ~= "string" or type(mesh_dim) ~= "string" then
    fail(("balance: cut is %s\n  have  %s\n  fix   name one dim of the fields and the mesh dim that cuts it, "
      .. "cut = {latitude = \"domain\"}"):format(mh._describe(cut), type(cut)))
  end
  if given.mesh.device_type ~= "cpu" then
    fail(("balance: the host does not see how long a device works\n  have  %s\n"
      .. "  fix   give mh.Shard(dim, sizes) sizes that you have measured"):format(given.mesh))
  end
  given.mesh:size(mesh_dim)
  return dim, mesh_dim
end

--- The present sizes of the loader's blocks.
local function sizes_of_loader(loader, dim, mesh_dim)
  local cut = strict.get(loader, "cut")
  for i, name in ipairs(cut and cut.space or {}) do
    local own = name == dim and cut.cuts[i]
    if own and own.mesh_dim == mesh_dim then return own.sizes end
  end
  fail(("balance: the loader does not cut '%s' over '%s'\n  have  %s\n  fix   make it by "
    .. "set:loader{mesh = mesh, cut = {%s = \"%s\"}}"):format(dim, mesh_dim, mh._describe(loader), dim, mesh_dim))
end

--- The dim of a tensor that the mesh dim cuts.
local function dim_of(tensor, mesh, mesh_dim)
  for i, name in ipairs(mesh.names) do
    if name == mesh_dim and tensor.placements[i]:is_shard() then return tensor.placements[i].dim end
  end
end

local function check_moves(moves, mesh, mesh_dim)
  if type(moves) ~= "table" or getmetatable(moves) then
    fail("balance: moves is " .. mh._describe(moves) .. ", expected tensors by name, {climatology = x}")
  end
  for _, name in ipairs(sorted(moves)) do
    local tensor = moves[name]
    if not mh.is_tensor(tensor) or not tensor:is_shard_tensor() or not dim_of(tensor, mesh, mesh_dim) then
      fail(("balance: moves.%s is %s, expected a ShardTensor that is cut over '%s'"):format(name, mh._describe(tensor),
          mesh_dim))
    end
    if tensor.requires_grad then
      fail(("balance: moves.%s requires a gradient\n  have  a tensor that is trained\n"
        .. "  fix   leave parameters out: they are copies over '%s'"):format(name, mesh_dim))
    end
  end
end

local function weights_of(weights, rows)
  if weights == nil then
    local even = {}
    for i = 1, rows do even[i] = 1 end
    return even
  end
  local list = mh.is_tensor(weights) and weights:double():tolist() or weights
  if type(list) ~= "table" or getmetatable(list) or #list ~= rows then
    fail(("balance: weights is %s\n  have  %d rows\n  fix   give a number for each row"):format(mh._describe(weights),
        rows))
  end
  for i, weight in ipairs(list) do check_number(("weights[%d]"):format(i), weight, 0) end
  return list
end

-- ---- Measuring ------------------------------------------------------------------------------------------------------

--- Seconds since the last look that this rank was not in collectives. Tests replace it.
function Balance:_busy()
  local mark = {clock = mh.clock(), waited = mh._waited()}
  local before = self.mark
  self.mark = mark
  if not before then return nil end
  -- mh.comm_stats{reset = true} may have been called.
  local waited = mark.waited >= before.waited and mark.waited - before.waited or mark.waited
  return mark.clock - before.clock - waited
end

--- The times of all parts, the slowest of the ranks that share one, and the dearest move of all.
local function gather(self, time, noise, cost)
  local mine = ("%d %a %a %a"):format(self.mesh:coordinate(self.mesh_dim), time, noise, cost)
  local times, errors, move_cost = {}, {}, 0
  local others = mh.backend() == "fake" and time or 0  -- ranks of a dry run are simulated
  for i = 1, self.parts do times[i], errors[i] = others, 0 end
  for _, text in ipairs(mh._files.of_all_ranks(mine)) do
    local place, seconds, spread, dear = text:match("^(%S+) (%S+) (%S+) (%S+)$")
    local i = math.tointeger(place) + 1
    if tonumber(seconds) > times[i] then times[i], errors[i] = tonumber(seconds), tonumber(spread) end
    move_cost = math.max(move_cost, tonumber(dear))
  end
  return times, errors, move_cost
end

-- ---- Moving ---------------------------------------------------------------------------------------------------------

local function move(self, sizes)
  local began = mh.clock()
  if self.loader then self.loader:recut{[self.dim] = {self.mesh_dim, sizes}} end
  for _, name in ipairs(sorted(self.moved)) do
    local tensor, to = self.moved[name], {}
    for i, placement in ipairs(tensor.placements) do
      to[i] = self.mesh.names[i] == self.mesh_dim and mh.Shard(placement.dim, sizes) or placement
    end
    self.moved[name] = tensor:redistribute(to)
  end
  if self.on_move then self.on_move(table.move(sizes, 1, #sizes, 1, {})) end
  self.times, self.first, self.mark = {}, nil, nil
  self.move_seconds = mh.clock() - began
end

--- balance:step() -> boolean
---   Counts a step of training: call it after the optimizer's step, when nothing is under way. From time to time the
---   ranks compare how long they work, and blocks may move; the next batch has the new ones.
---   returns     boolean     whether blocks have moved
---   collective  over all ranks
---   errors      CommError: a rank is lost
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     local loader = data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{mesh = mesh, cut = {x = "domain"}}
---     local balance = mh.balance{mesh = mesh, cut = {x = "domain"}, loader = loader}
---     for batch in loader:batches() do balance:step() end
---     balance.steps    --> 10
function Balance:step()
  self.steps = self.steps + 1
  if self.parts == 1 then return false end
  local time = self:_busy()
  if time == nil then return false end
  if self.first == nil then  -- makes plans
    self.first = time
    return false
  end
  self.times[#self.times + 1] = time
  if #self.times < self.rule.period_now then return false end
  local middle, noise = Rule.summary(self.times)
  local cost = self.move_seconds > 0 and self.move_seconds + math.max(0, self.first - middle) or 0
  local times, errors, move_cost = gather(self, middle, noise, cost)
  self.times, self.move_seconds = {}, 0
  local most, sum = 0, 0
  for _, one in ipairs(times) do most, sum = math.max(most, one), sum + one end
  self.ratio = sum > 0 and most * #times / sum or 1
  self.rule.steps_left = self.total and math.max(0, self.total - self.steps)
  local sizes = self.rule:observe(times, errors, move_cost)
  if sizes then move(self, sizes) end
  self:_busy()  -- what was done here does not count
  return sizes ~= nil
end

--- balance:sizes() -> {integer}
---   The rows of the blocks.
---   returns     {integer}   for mh.Shard(dim, sizes)
---   collective  no
---   example
---     local x = mh.distribute_tensor(mh.ones{12}, mesh, {mh.Shard(0)})
---     local balance = mh.balance{mesh = mesh, cut = {x = "domain"}, moves = {x = x}}
---     balance:sizes()[1] == 12 // mh.world_size()    --> true
function Balance:sizes()
  local sizes = self.rule.sizes
  return table.move(sizes, 1, #sizes, 1, {})
end

--- balance:state_dict() -> table
---   Sizes and measurements, as mh.checkpoint saves them: give the balance as an entry of the checkpoint.
---   returns     table       numbers and lists of them
---   collective  no
---   example
---     local x = mh.distribute_tensor(mh.ones{12}, mesh, {mh.Shard(0)})
---     mh.balance{mesh = mesh, cut = {x = "domain"}, moves = {x = x}}:state_dict().moves    --> 0
function Balance:state_dict()
  local state = self.rule:state()
  state.steps = self.steps
  return state
end

local function is_list_of_rows(value)
  if type(value) ~= "table" then return false end
  for _, one in ipairs(value) do
    if math.type(one) ~= "integer" or one < 0 then return false end
  end
  return true
end

--- balance:load_state_dict(state) -> nothing
---   Continues with sizes and measurements that were saved, and moves the blocks. On another number of ranks the blocks
---   stay and are measured again.
---   state       table       of state_dict()
---   returns     nothing
---   collective  over all ranks
---   errors      ValueError: no such table, or sizes of another number of rows; then nothing changes
---   example
---     local x = mh.distribute_tensor(mh.ones{12}, mesh, {mh.Shard(0)})
---     local balance = mh.balance{mesh = mesh, cut = {x = "domain"}, moves = {x = x}}
---     balance:load_state_dict(balance:state_dict())
---     balance.steps    --> 0
function Balance:load_state_dict(state)
  local right = type(state) == "table" and is_list_of_rows(state.sizes)
  for _, name in ipairs {"fixed", "noise", "period", "move_cost", "moves", "undone", "steps"} do
    right = right and type(state[name]) == "number"
  end
  if not right then
    fail(("balance: load_state_dict: expected the table of state_dict()\n  have  %s\n"
      .. "  fix   give what state_dict() or checkpoint.load gave"):format(mh._describe(state)))
  end
  local rows, now = 0, 0
  for _, size in ipairs(state.sizes) do rows = rows + size end
  for _, size in ipairs(self.rule.sizes) do now = now + size end
  if rows ~= now then
    fail(("balance: load_state_dict: saved with another number of rows of '%s'\n  have  %d, now %d\n"
      .. "  fix   load it with the data that it was saved with"):format(self.dim, rows, now))
  end
  self.steps = state.steps
  if #state.sizes ~= self.parts then return end
  self.rule:restore(state)
  move(self, state.sizes)
  self.move_seconds = 0
end

function meta.__tostring(self)
  return ("Balance of %s over %s: blocks of %s, slowest / mean %.2f, %d moves, %d of them undone"):format(self.dim,
      self.mesh_dim, table.concat(self.rule.sizes, ", "), self.ratio, self.rule.moves, self.rule.undone)
end

-- ---- mh.balance -----------------------------------------------------------------------------------------------------

--- mh.balance({mesh, cut, loader = nil, weights = nil, moves = nil, on_move = nil, unit = 1, least = 1, period = 8,
---     threshold = 1.05, steps = nil}) -> Balance
---   Cuts blocks by the speed of their ranks while a model trains. A rank's time is that of its steps less what it
---   waited in collectives. Where one rank stands out in two periods in a row, and a move pays for itself, rows move;
---   a move that does not help is undone. Losses stay those of one rank. Parameters stay: they are copies over the mesh
---   dim.
---   mesh        DeviceMesh  of the CPU
---   cut         table       {DIM = MESH_DIM}, one dim of the fields and the mesh dim that cuts it
---   loader      Loader?     of mh.data, cut in this way; its batches get the new blocks
---   weights     {number}|Tensor?   the work of each row of the whole; nil: all the same
---   moves       table?      ShardTensors by name that are cut over the mesh dim, and move too; balance.moved has them
---   on_move     function?   called with the sizes after a move, on all ranks
---   unit        integer     blocks but the last are multiples of it: the product of a network's strides
---   least       integer     rows of the smallest block
---   period      integer     steps that are measured together
---   threshold   number      slowest / mean that is good enough, above 1
---   steps       integer?    of the whole run, so that no move comes that cannot pay for itself; nil: 200 more
---   returns     Balance     call its step() after each step
---   collective  no, but all ranks must give the same
---   errors      ValueError: a mesh of devices, no loader and no moves, or another number of rows
---   example
---     local x = mh.distribute_tensor(mh.ones{12}, mesh, {mh.Shard(0)})
---     local balance = mh.balance{mesh = mesh, cut = {x = "domain"}, moves = {x = x}}
---     balance:step()    --> false
local function balance(...)
  local given = arguments.read(kSignature, ...)
  local dim, mesh_dim = check_cut(given)
  arguments.count("balance", "unit", given.unit, 1)
  arguments.count("balance", "least", given.least, 0)
  arguments.count("balance", "period", given.period, 1)
  check_number("threshold", given.threshold, 1)
  if given.steps ~= nil then arguments.count("balance", "steps", given.steps, 0) end
  if given.on_move ~= nil and type(given.on_move) ~= "function" then
    fail("balance: on_move is " .. mh._describe(given.on_move) .. ", expected a function")
  end
  local moves = given.moves or {}
  check_moves(moves, given.mesh, mesh_dim)
  local first = sorted(moves)[1]
  if not given.loader and not first then
    fail("balance: there is nothing to move\n  have  no loader and no moves\n" ..
        "  fix   give loader = loader, or moves = {x = x}")
  end
  local sizes = given.loader and sizes_of_loader(given.loader, dim, mesh_dim)
      or moves[first]:shard_sizes(dim_of(moves[first], given.mesh, mesh_dim))
  local rows = 0
  for _, size in ipairs(sizes) do rows = rows + size end
  local moved = {}
  for _, name in ipairs(sorted(moves)) do
    local extent = moves[name].shape[dim_of(moves[name], given.mesh, mesh_dim) + 1]
    if extent ~= rows then
      fail(("balance: moves.%s has another number of rows\n  have  %d of %d\n  fix   give tensors of the cut '%s'")
        :format(name, extent, rows, dim))
    end
    moved[name] = moves[name]
  end
  if rows < given.least * #sizes then
    fail(("balance: %d blocks of least = %d rows do not fit\n  have  %d rows"):format(#sizes, given.least, rows))
  end
  local rule = Rule.new{sizes = sizes, weights = weights_of(given.weights, rows), unit = given.unit,
    least = given.least, threshold = given.threshold, period = given.period}
  return setmetatable({mesh = given.mesh, dim = dim, mesh_dim = mesh_dim, loader = given.loader, moved = moved,
    on_move = given.on_move, parts = #sizes, rule = rule, steps = 0, total = given.steps, times = {}, move_seconds = 0,
    ratio = 1}, meta)
end

return {balance = balance}
