-- SPDX-License-Identifier: Apache-2.0
-- X13: mh.balance moves rows while a model trains, and losses stay those of one rank. Times are planted.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local nn = mh.nn
local tests = {}

local kRows, kF64 = 24, {dtype = "float64"}
local ranks = mh.world_size()

local function data_set()
  mh.manual_seed(3)
  local u = mh.randn({41, kRows, 6}, kF64)
  return mh.data.from_tensors({u = u}, {dims = {"time", "latitude", "longitude"}})
      :windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}
end

local function model()
  mh.manual_seed(5)
  return nn.Sequential(nn.Conv2d(1, 4, 3, {padding = 1}), nn.Tanh(), nn.Conv2d(4, 1, 3, {padding = 1})):double()
end

--- Rank 0 takes twice its time; what rows do not change takes as long as 3 of them.
local function plant(balance, mesh)
  local place = mesh:coordinate("domain")
  rawset(balance, "_busy", function() return (place == 0 and 2 or 1) * (3 + balance:sizes()[place + 1]) * 1e-3 end)
end

local Run = {}
Run.__index = Run

--- A run in blocks over the last dim of a mesh of this shape, or without one on plain tensors.
local function new_run(shape)
  local self = setmetatable({net = model(), losses = {}}, Run)
  local climatology = mh.linspace(-1, 1, kRows, kF64):reshape{1, 1, kRows, 1}
  local options = {batch = 2, shuffle = true, seed = 4, dtype = "float64"}
  if shape then
    local names = #shape == 2 and {"data", "domain"} or {"domain"}
    self.mesh = mh.init_device_mesh("cpu", shape, names)
    options.mesh, options.cut = self.mesh, {latitude = "domain"}
    local placements = {mh.Shard(2)}
    if #shape == 2 then table.insert(placements, 1, mh.Replicate()) end
    climatology = mh.distribute_tensor(climatology, self.mesh, placements)
  end
  self.loader = data_set():loader(options)
  self.opt = mh.optim.AdamW(self.net:parameters(), {lr = 0.01})
  self.climatology = climatology
  if not shape then return self end
  self.balance = mh.balance{mesh = self.mesh, cut = {latitude = "domain"}, loader = self.loader,
    moves = {climatology = climatology}, period = 2, on_move = function(sizes) self.told = sizes end}
  plant(self.balance, self.mesh)
  return self
end

function Run:train(steps)
  local done = 0
  while done < steps do
    for batch in self.loader:batches() do
      local climatology = self.balance and self.balance.moved.climatology or self.climatology
      self.opt:zero_grad()
      local loss = (self.net(batch.inputs - climatology) - batch.targets):square():mean()
      loss:backward()
      self.opt:step()
      self.losses[#self.losses + 1] = loss:item()
      if self.balance then
        testing.assert_equal(batch.inputs:shard_sizes(2), self.balance:sizes())
        self.balance:step()
      end
      done = done + 1
      if done == steps then break end
    end
  end
  return self
end

local function largest(sizes) return math.max(table.unpack(sizes)) end

function tests.test_X13_losses_stay_those_of_one_rank_while_rows_move()
  local plain = new_run():train(30)
  for _, shape in ipairs {{ranks}, {1, ranks}} do
    local run = new_run(shape)
    run:train(30)
    testing.assert_close(mh.tensor(run.losses, kF64), mh.tensor(plain.losses, kF64), {rtol = 1e-12, atol = 1e-14})
    for name, parameter in run.net:named_parameters() do
      testing.assert_close(parameter, plain.net:get_parameter(name), {rtol = 1e-11, atol = 1e-13})
    end
    if ranks > 1 then
      local sizes = run.balance:sizes()
      testing.assert_equal({sizes[1] < kRows // ranks, run.told}, {true, sizes})
      testing.assert_equal(run.balance.rule.moves >= 1 and run.balance.rule.moves <= 4, true)
      testing.assert_equal(run.balance.moved.climatology:shard_sizes(2), sizes)
      local slow, fast = 2 * (3 + sizes[1]), 3 + largest(sizes)
      local ideal = (kRows + 3 * ranks) / (ranks - 0.5)
      testing.assert_equal(math.max(slow, fast) <= 1.1 * ideal, true)
    end
  end
end

function tests.test_X13_a_run_goes_on_with_the_sizes_that_were_saved()
  if ranks == 1 then return end
  local path = own_path "balance"
  local whole, first = new_run{ranks}, new_run{ranks}
  whole:train(30)
  first:train(14)
  mh.checkpoint.save(path, {model = first.net, optimizer = first.opt, loader = first.loader, balance = first.balance})
  local second = new_run{ranks}
  mh.checkpoint.load(path, {model = second.net, optimizer = second.opt, loader = second.loader,
    balance = second.balance})
  testing.assert_equal({second.balance:sizes(), second.balance.steps}, {first.balance:sizes(), 14})
  testing.assert_equal(first.balance:sizes()[1] < kRows // ranks, true)
  second:train(16)
  local later = mh.tensor({table.unpack(whole.losses, 15)}, kF64)
  testing.assert_close(mh.tensor(second.losses, kF64), later, {rtol = 1e-12})
end

--- No rank works less than no time, whatever it waits: the clock and what comm_stats says are looked at together.
function tests.test_X13_what_a_rank_waits_is_not_its_time()
  local x = mh.distribute_tensor(mh.ones{kRows}, mh.init_device_mesh("cpu", {ranks}, {"domain"}), {mh.Shard(0)})
  local balance = mh.balance{mesh = x.mesh, cut = {x = "domain"}, moves = {x = x}}
  balance:_busy()
  local began, waited = mh.clock(), mh.comm_stats().waited
  for _ = 1, 50 do mh.barrier() end
  local spent = mh.comm_stats().waited - waited
  local busy = balance:_busy()
  testing.assert_equal(spent <= mh.clock() - began and (ranks == 1 or spent > 0), true)
  testing.assert_equal(busy >= 0, true)
  mh.comm_stats{reset = true}
  testing.assert_equal(mh.comm_stats().waited, 0)
  testing.assert_equal(balance:_busy() >= 0, true)
end

function tests.test_X13_wrong_calls()
  local mesh = mh.init_device_mesh("cpu", {ranks}, {"domain"})
  local x = mh.distribute_tensor(mh.ones{kRows}, mesh, {mh.Shard(0)})
  local whole = mh.distribute_tensor(mh.ones{kRows}, mesh, {mh.Replicate()})
  local trained = mh.distribute_tensor(mh.ones{kRows}, mesh, {mh.Shard(0)}):requires_grad_()
  local loader = data_set():loader{batch = 2}
  local cut = {latitude = "domain"}
  local cases = {
    {{mesh = 3, cut = cut}, "balance: mesh is 3, expected a mesh"},
    {{mesh = mesh, cut = "latitude"}, "balance: cut is 'latitude'"},
    {{mesh = mesh, cut = {latitude = "domain", x = "domain"}}, "balance: cut is"},
    {{mesh = mesh, cut = {latitude = "domian"}}, "did you mean"},
    {{mesh = mesh, cut = cut}, "balance: there is nothing to move"},
    {{mesh = mesh, cut = cut, loader = loader}, "balance: the loader does not cut 'latitude' over 'domain'"},
    {{mesh = mesh, cut = cut, moves = {x = whole}}, "balance: moves.x is"},
    {{mesh = mesh, cut = cut, moves = {x = trained}}, "balance: moves.x requires a gradient"},
    {{mesh = mesh, cut = cut, moves = {x = x}, weights = {1, 2}}, "balance: weights is"},
    {{mesh = mesh, cut = cut, moves = {x = x}, unit = 0}, "balance: unit is 0, expected an integer of at least 1"},
    {{mesh = mesh, cut = cut, moves = {x = x}, threshold = 0.5}, "balance: threshold is 0.5"},
    {{mesh = mesh, cut = cut, moves = {x = x}, least = kRows + 1}, "rows do not fit"},
    {{mesh = mesh, cut = cut, moves = {x = x}, on_move = 3}, "balance: on_move is 3, expected a function"},
    {{mesh = mesh, cut = cut, moves = {x = x}, perriod = 3}, "period"},
  }
  for _, case in ipairs(cases) do testing.assert_error(function() mh.balance(case[1]) end, case[2]) end
  local balance = mh.balance{mesh = mesh, cut = cut, moves = {x = x}}
  testing.assert_error(function() balance:load_state_dict{sizes = {1}} end,
      "balance: load_state_dict: expected the table of state_dict()")
  local state = balance:state_dict()
  state.sizes = {kRows + 1}
  testing.assert_error(function() balance:load_state_dict(state) end, "saved with another number of rows of 'latitude'")
  testing.assert_equal(tostring(balance):match("^Balance of latitude over domain: blocks of [%d, ]+, "
    .. "slowest / mean 1.00, 0 moves, 0 of them undone$") ~= nil, true)
end

return tests
