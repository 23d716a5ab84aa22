-- SPDX-License-Identifier: Apache-2.0
-- Loops over tables of fields and metrics, on as many ranks as there are: every rank visits keys in one order (C1,
-- C2), and random numbers of Lua are the same (C3).

local mh = require "moonhalo"
local run_log = require "moonhalo.internal.run_log"
local t = require "moonhalo.testing"
local same = require "support.same_on_all_ranks"

-- The second in which a rank comes here is its own: ranks are late by more than one.
local kLate = mh.clock() + 1.2 * mh.rank()
while mh.clock() < kLate do end
local kTimeAtHead = mh.world_size() == 2 and os.time(os.date("*t")) or os.time()  -- two ranks: os.date reads first

local tests = {}

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"x"})
local kNames = {"u", "v", "w", "temperature", "pressure", "humidity", "geopotential", "cloud_cover"}

local function field(i) return (mh.arange(24, {dtype = "float64"}) * 0.25 + i):view(1, 1, 6, 4) end
local function cut(x) return mh.distribute_tensor(x, mesh, {mh.Shard(2)}) end

local function fields()
  local all = {}
  for i, name in ipairs(kNames) do all[name] = field(i) end
  return all
end

function tests.test_a_record_of_sharded_metrics_is_logged_with_its_own_values()
  for round = 1, 5 do
    local record, truth = {step = round}, {step = round}
    for i, name in ipairs(kNames) do
      record[name], truth[name] = cut(field(i)):sum(), field(i):sum():item()
    end
    mh.log(record)
    if mh.rank() == 0 then t.assert_equal(run_log.latest, truth) end  -- the rank that writes
  end
end

function tests.test_metrics_read_in_a_loop_are_their_own()
  local metrics, out = {}, {}
  for name, x in pairs(fields()) do metrics[name] = cut(x):mean() end
  for name, value in pairs(metrics) do out[name] = value:item() end
  for i, name in ipairs(kNames) do t.assert_equal(out[name], field(i):mean():item()) end
end

function tests.test_fields_are_cut_and_convolved_in_a_loop()
  local weight = mh.ones(1, 1, 3, 3, {dtype = "float64"})
  local out, plain = {}, {}
  for name, x in pairs(fields()) do
    out[name] = mh.conv2d(cut(x), weight, nil, {padding = 1})
    plain[name] = mh.conv2d(x, weight, nil, {padding = 1})
  end
  t.assert_all_close(out, plain)
end

function tests.test_assertions_about_tables_compare_like_with_like()
  local sharded = {}
  for name, x in pairs(fields()) do sharded[name] = cut(x) end
  t.assert_all_close(sharded, fields())
  t.assert_equal(sharded, fields())
  t.assert_error(function()
    local other = fields()
    other.pressure = other.pressure + 1
    t.assert_equal(sharded, other)
  end, "values differ")
end

function tests.test_the_order_is_the_same_on_all_ranks()
  local mixed = {[3] = 1, [-1.5] = 1, [2^70] = 1, [true] = 1, [false] = 1, [1] = 1}
  for _, name in ipairs(kNames) do mixed[name] = 1 end
  local seen = {}
  for key in pairs(mixed) do seen[#seen + 1] = tostring(key) end
  t.assert_equal(table.concat(seen, " "), "-1.5 1 3 1.1805916207174e+21 cloud_cover geopotential humidity pressure "
    .. "temperature u v w false true")
  same(table.concat(seen, " "))
end

function tests.test_keys_without_a_shared_order_may_not_be_looped_over_around_collectives()
  local set, x = {[{}] = "a", [{}] = "b", [print] = "c"}, cut(field(1))
  local count = 0
  for _ in pairs(set) do count = count + 1 end
  t.assert_equal(count, 3)
  local message = t.assert_error(function()
    for _ in pairs(set) do x:sum():item() end
  end, "pairs: a collective call inside a loop whose order ranks do not share")
  assert(message:find("shared_order.lua:%d+: a loop over 3 keys that are tables, functions or objects"), message)
  -- However the loop ended, what comes after it is free.
  local truth = field(1):sum():item()
  t.assert_equal(x:sum():item(), truth)
  for _ in pairs(set) do break end
  t.assert_equal(x:sum():item(), truth)
  pcall(function()
    for _ in pairs(set) do error("out") end
  end)
  t.assert_equal(x:sum():item(), truth)
  local waiting = coroutine.wrap(function()
    for _ in pairs(set) do coroutine.yield(1) end
  end)
  waiting()
  t.assert_equal(x:sum():item(), truth)
  waiting()
  t.assert_error(function()
    for _ in pairs(set) do
      for _ in pairs(set) do break end
      x:sum():item()
    end
  end, "order ranks do not share")
  for _ in pairs {[set] = 1, name = 2} do t.assert_equal(x:sum():item(), truth) end
end

function tests.test_random_numbers_of_lua_are_alike()
  local drawn = {}
  for _ = 1, 20 do drawn[#drawn + 1] = math.random(0, 9) end
  same(table.concat(drawn, " "))
  local x = mh.distribute_tensor(mh.arange(20):view(10, 2), mesh, {mh.Shard(1)})
  local row = math.random(0, 9)
  t.assert_equal(x[row]:full_tensor():tolist(), {2 * row, 2 * row + 1})
  math.randomseed()
  same(tostring(math.random(1 << 40)))
  same(tostring(kTimeAtHead))
  math.randomseed(kTimeAtHead)
  same(tostring(math.random(1 << 40)))
end

function tests.test_the_clock_of_several_ranks_goes_on()
  local later = mh.clock() + 1.1
  while mh.clock() < later do end
  assert(os.time() > kTimeAtHead)
  t.assert_equal(os.date("!%Y-%m-%d %H:%M:%S", 86399), "1970-01-01 23:59:59")
  assert(os.time(os.date("*t")) > kTimeAtHead)
  assert(#os.date() > 10)
  t.assert_equal(os.time {year = 2026, month = 11, day = 24} - os.time {year = 2026, month = 11, day = 23}, 24 * 3600)
end

return tests
