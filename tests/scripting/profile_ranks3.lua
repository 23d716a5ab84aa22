-- SPDX-License-Identifier: Apache-2.0
-- Profiles of scripts name operators, modules, lines of the script, parts of a step and ranks: Y13.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local nn = mh.nn
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local Net = nn.Module:extend("Net")
function Net:init()
  self.blocks = nn.ModuleList {nn.Linear(4, 4), nn.Linear(4, 4)}
  self.head = nn.Linear(4, 1)
end
function Net:forward(x)
  for _, block in self.blocks:each() do x = mh.tanh(block(x)) end
  return self.head(x)
end

local function field() return mh.distribute_tensor(mh.ones {7, 4}, mesh, {mh.Shard(0)}) end

--- One name by line of a table, and the lines.
local function names_in(text)
  local names = {}
  for line in text:gmatch("[^\n]+") do
    local name = line:match("^(.-)  +%d")
    if name then names[name] = line end
  end
  return names
end

local function expect(names, name)
  if not names[name] then error("no row '" .. name .. "'", 2) end
  return names[name]
end

local kOptimizers = {
  SGD = function(net) return mh.optim.SGD(net:parameters(), {lr = 0.1}) end,
  Lion = function(net) return mh.optim.Lion(net:parameters(), {lr = 0.1}) end,  -- its step is Lua
}

for name, make in pairs(kOptimizers) do
  tests["test_Y13_modules_lines_and_phases_of_" .. name] = function()
    local net, x = Net(), field()
    local opt = make(net)
    local p = mh.profiler()
    p:start()
    for _ = 1, 2 do
      local loss = net(x):square():mean()
      loss:backward()
      opt:step()
    end
    p:stop()

    local modules = names_in(p:table {by = "module", rows = 1000})
    for _, module in ipairs {"Net", "blocks.0", "blocks.1", "head"} do
      testing.assert_equal(expect(modules, module):match("^%S+ +(%S+)"), "1.0")  -- a call in each step
    end
    expect(modules, "(optimizer)")
    local lines = names_in(p:table {by = "line", rows = 1000})
    local found = 0
    for line in pairs(lines) do
      if line:match("profile_ranks3%.lua:%d+$") then found = found + 1 end
    end
    testing.assert_equal(found >= 4, true)  -- tanh, head, loss, step
    local phases = names_in(p:table {by = "phase"})
    for _, phase in ipairs {"forward", "backward", "optimizer", "script"} do expect(phases, phase) end
    local ranks = names_in(p:table {by = "rank", sort = "name"})
    for rank = 0, 2 do expect(ranks, "rank " .. rank) end
    expect(names_in(p:table {sort = "calls", rows = 1000}), "aten::tanh")
    testing.assert_equal(p:table():match("%((%d+ steps), (%d+ ranks)%)"), "2 steps")
  end
end

function tests.test_Y13_ranges_return_what_their_function_does()
  local p = mh.profiler {events = 1000}
  p:start()
  local a, b = mh.record("assimilate", function(...) return select("#", ...), ... end, nil, 5)
  local failed, message = pcall(mh.record, "fails", function() error "no" end)
  mh.record("after", function() return field():sum() end)
  p:stop()

  testing.assert_equal(a, 2)
  testing.assert_equal(b, nil)
  testing.assert_equal(failed, false)
  testing.assert_equal(message:match("no$"), "no")
  local names = names_in(p:table {by = "operator", rows = 1000})
  expect(names, "(assimilate)")
  expect(names, "(fails)")
  expect(names, "(after)")
end

function tests.test_Y13_modules_of_recomputed_segments_keep_their_names()
  local net, x = Net(), field()
  local p = mh.profiler()
  p:start()
  mh.checkpoint(function(y) return net(y) end, x):sum():backward()
  p:stop()

  testing.assert_equal(expect(names_in(p:table {by = "module"}), "head"):match("^%S+ +(%S+)"), "2.0")
end

function tests.test_Y13_lines_of_coroutines()
  local p = mh.profiler()
  p:start()
  local step = coroutine.wrap(function()
    coroutine.yield(mh.ones {3}:sum())
    return mh.ones {3}:exp()
  end)
  step()
  collectgarbage()
  step()
  field():sum()
  p:stop()

  expect(names_in(p:table {by = "operator"}), "aten::exp")
end

function tests.test_Y13_reading_is_a_part_of_the_step()
  local data = mh.data.from_tensors({t = mh.ones {6, 8, 4}}, {dims = {"time", "y", "x"}})
  local loader = data:windows {inputs = {"t"}, targets = {"t"}}:loader {batch = 2}
  local p = mh.profiler()
  p:start()
  for _ in loader:batches() do end
  p:stop()

  expect(names_in(p:table {by = "phase"}), "reading")
  expect(names_in(p:table {by = "module"}), "(reading)")
end

function tests.test_Y13_communication_is_shown_under_its_operator()
  local x = field()
  local p = mh.profiler()
  p:start()
  mh.comm_stats {reset = true}
  mh.record("halves", function() return x:roll(1, 0):sum():item() end)
  local sent = mh.comm_stats().bytes
  p:stop()

  testing.assert_equal(sent > 0, true)
  testing.assert_equal(expect(names_in(p:table()), "aten::roll"):match("B$"), "B")
  local verbs = names_in(p:table {by = "communication"})
  expect(verbs, "(computing)")
  expect(verbs, "exchange")
end

-- Rank 0 writes; what keeps it from that is the error of all, and none waits.
function tests.test_Y13_a_folder_that_cannot_be_made_is_the_error_of_all_ranks()
  local p = mh.profiler()
  p:start()
  p:stop()
  local fine, message = pcall(p.save, p, "x" .. ("y"):rep(300))

  testing.assert_equal(fine, false)
  testing.assert_equal(message:match("cannot make the folder"), "cannot make the folder")
  testing.assert_equal(field():sum():item(), 28.0)
end

-- Where one rank has not started, none stops.
function tests.test_Y13_stop_without_a_start_on_one_rank_is_the_error_of_all()
  local p = mh.profiler()
  if mh.rank() ~= 1 then p:start() end
  local fine, message = pcall(p.stop, p)

  testing.assert_equal(fine, false)
  testing.assert_equal(message:match("stop without a start"), "stop without a start")
  if mh.rank() == 1 then p:start() end
  p:stop()
end

function tests.test_Y13_a_step_has_names_in_every_row()
  local net, x = Net(), field()
  local opt = kOptimizers.SGD(net)
  local p = mh.profiler()
  p:start()
  for _ = 1, 2 do
    net(x):square():mean():backward()
    opt:step()
  end
  p:stop()

  local reasons = {["(optimizer)"] = true, ["(script)"] = true, ["(outside of modules)"] = true,
    ["(backward of no module)"] = true, ["(check of plain tensors)"] = true}
  for name in pairs(names_in(p:table {by = "module", rows = 1000})) do
    if name ~= "module" and not reasons[name] and not name:match("^[%a]") then error("a row of '" .. name .. "'") end
  end
  for _, by in ipairs {"operator", "module", "line", "phase", "rank", "communication"} do
    for line in p:table({by = by, rows = 1000}):gmatch("[^\n]+") do
      if line:match("^%s") then error(by .. ": a row without a name: " .. line) end
    end
  end
  expect(names_in(p:table {by = "operator", rows = 1000}), "(check of plain tensors)")
  expect(names_in(p:table {sort = "macs", rows = 1}), "aten::mm")  -- gradients of weights and inputs
end

function tests.test_Y13_mistakes_have_a_remedy()
  local p = mh.profiler()
  local function message(...)
    local _, text = pcall(...)
    return text
  end
  for _, case in ipairs {
    {"nothing is recorded yet", p.table, p}, {"stop without a start", p.stop, p},
    {"no table by 'modul'; did you mean 'module'", p.table, p, {by = "modul"}},
    {"no column 'selv' to sort by", p.table, p, {sort = "selv"}}, {"unknown option 'evens'", mh.profiler, {evens = 3}},
    {"at most 0 events", mh.profiler, {events = 0}}, {"'steps' has 1 numbers", mh.profile, {steps = {3}}},
    {"steps from 4 to 2", mh.profile, {steps = {4, 2}}},
    {"step 65536 is above 65535", mh.profile, {steps = {3, 65536}}}, {"a function", mh.record, "x", 3},
  } do
    local text = message(table.unpack(case, 2))
    if not tostring(text):find(case[1], 1, true) then error(("'%s' in: %s"):format(case[1], text)) end
  end
end

return tests
