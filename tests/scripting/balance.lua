-- SPDX-License-Identifier: Apache-2.0
-- X13: how mh.balance decides. Times are planted, so nothing depends on how fast this machine is.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local Rule = require "moonhalo.internal.balance_rule"
local tests = {}

local function even(rows, parts)
  local sizes = {}
  for i = 1, parts do sizes[i] = rows // parts + (i <= rows % parts and 1 or 0) end
  return sizes
end

local function ones(rows)
  local list = {}
  for i = 1, rows do list[i] = 1 end
  return list
end

--- Uniform numbers of -1 to 1, the same in every run.
local function noise_of(seed)
  return function()
    seed = (seed * 1103515245 + 12345) % 2147483648
    return seed / 1073741824 - 1
  end
end

--- Runs `steps` steps of ranks that take slow(rank, step) * (fixed + work) milliseconds a step, times 1 + noise, and
--- times 1 + wander that is the same for all steps of a period.
--- Returns moves: {step, sizes}; sizes; spread: slowest / fastest of the last step without noise; over_ideal: slowest /
--- ideal.
local function run(given)
  local parts, rows = given.parts, given.rows or 240
  local weights = given.weights or ones(rows)
  local sizes = given.sizes or even(rows, parts)
  local rule = given.rule or Rule.new{sizes = sizes, weights = weights, unit = given.unit or 1,
    least = given.least or 1, threshold = 1.05, period = 8}
  local random, noise, wander = noise_of(given.seed or 1), given.noise or 0, given.wander or 0
  local of_period = {}
  local moves, times, skip, cost = {}, {}, 2, 0
  local function time_of(i, step)
    return given.slow(i, step) * ((given.fixed or 0) + rule:work(rule.sizes)[i]) * 1e-3
  end
  for i = 1, parts do times[i] = {} end
  for step = 1, given.steps do
    if skip > 0 then
      skip = skip - 1
    else
      for i = 1, parts do
        if #times[i] == 0 then of_period[i] = 1 + wander * random() end
        table.insert(times[i], time_of(i, step) * of_period[i] * (1 + noise * random()))
      end
      if #times[1] == rule.period_now then
        local medians, errors = {}, {}
        for i = 1, parts do medians[i], errors[i] = Rule.summary(times[i]) times[i] = {} end
        local moved = rule:observe(medians, errors, cost)
        cost = 0
        if moved then
          moves[#moves + 1] = {step = step, sizes = moved}
          skip, cost = 1, given.cost or 0
        end
      end
    end
  end
  local slowest, fastest, speeds = 0, math.huge, 0
  for i = 1, parts do
    local time = time_of(i, given.steps)
    slowest, fastest = math.max(slowest, time), math.min(fastest, time)
    speeds = speeds + 1 / given.slow(i, given.steps)
  end
  return {moves = moves, sizes = rule.sizes, spread = slowest / fastest, rule = rule,
    over_ideal = slowest / ((rows + (given.fixed or 0) * parts) * 1e-3 / speeds)}
end

local function rank_is_slow(which, factor)
  return function(i) return i == which and factor or 1 end
end

function tests.test_X13_a_slow_rank_gets_fewer_rows_within_40_steps()
  for parts = 2, 4 do
    for which = 1, parts do
      for _, fixed in ipairs {0, 10, 40} do
        for seed = 1, 5 do
          local got = run{parts = parts, slow = rank_is_slow(which, 2), steps = 40, fixed = fixed, noise = 0.03,
            seed = seed}
          testing.assert_equal(#got.moves >= 1 and #got.moves <= 4, true)
          testing.assert_equal(got.spread < 1.10, true)
          testing.assert_equal(got.over_ideal < 1.10, true)
        end
      end
    end
  end
  testing.assert_equal(run{parts = 2, slow = rank_is_slow(1, 2), steps = 40}.sizes, {80, 160})
end

function tests.test_X13_equal_ranks_with_noise_stay()
  for parts = 2, 4 do
    for seed = 1, 40 do
      local got = run{parts = parts, slow = rank_is_slow(1, 1), steps = 500, noise = 0.1, seed = seed}
      testing.assert_equal(#got.moves, 0)
    end
  end
end

function tests.test_X13_rows_come_back_within_60_steps()
  for parts = 2, 4 do
    for _, fixed in ipairs {0, 20} do
      local first = run{parts = parts, slow = rank_is_slow(2, 2), steps = 60, fixed = fixed, noise = 0.03}
      local back = run{parts = parts, slow = rank_is_slow(1, 1), steps = 60, fixed = fixed, noise = 0.03,
        rule = first.rule}
      testing.assert_equal(back.spread < 1.10 and #back.moves <= 4, true)
    end
  end
end

--- The speed of a machine wanders. Two lengths that are near each other then say nothing of the part that rows do not
--- change.
function tests.test_X13_rows_come_back_where_speeds_wander()
  local best, count = 0, 0
  for parts = 2, 3 do
    for seed = 1, 40 do
      local given = {parts = parts, steps = 60, fixed = 40, noise = 0.02, wander = 0.03, seed = seed}
      given.slow = rank_is_slow(1, 2)
      given.rule = run(given).rule
      given.slow = rank_is_slow(1, 1)
      count, best = count + 1, best + (run(given).spread < 1.12 and 1 or 0)
    end
  end
  testing.assert_equal({best, count}, {80, 80})
end

--- Here times do not depend on rows.
function tests.test_X13_a_move_without_gain_is_undone_and_the_period_doubled()
  local sizes = even(240, 3)
  local rule = Rule.new{sizes = sizes, weights = ones(240), unit = 1, least = 1, threshold = 1.05, period = 8}
  local errors = {0, 0, 0}
  testing.assert_equal(rule:observe({1, 2, 1}, errors, 0), nil)
  local moved = rule:observe({1, 2, 1}, errors, 0)
  testing.assert_equal(moved, {96, 48, 96})
  testing.assert_equal({rule:observe({1, 2, 1}, errors, 0), rule.undone, rule.period_now}, {nil, 0, 8})
  testing.assert_equal({rule:observe({1, 2, 1}, errors, 0), rule.undone, rule.period_now}, {sizes, 1, 16})
end

--- One loud period after a move does not undo it.
function tests.test_X13_a_move_is_judged_by_two_periods()
  local rule = Rule.new{sizes = even(240, 3), weights = ones(240), unit = 1, least = 1, threshold = 1.05, period = 8}
  local errors = {0, 0, 0}
  rule:observe({1, 2, 1}, errors, 0)
  local moved = rule:observe({1, 2, 1}, errors, 0)
  testing.assert_equal({rule:observe({2, 2, 2}, errors, 0), rule.undone}, {nil, 0})
  testing.assert_equal({rule:observe({1.2, 1.2, 1.2}, errors, 0), rule.undone, rule.sizes}, {nil, 0, moved})
end

--- A rank stands out only where it was slow in two periods in a row.
function tests.test_X13_one_slow_period_moves_nothing()
  local rule = Rule.new{sizes = even(240, 2), weights = ones(240), unit = 1, least = 1, threshold = 1.05, period = 8}
  for _ = 1, 20 do
    testing.assert_equal(rule:observe({2, 1}, {0, 0}, 0), nil)
    testing.assert_equal(rule:observe({1, 1}, {0, 0}, 0), nil)
  end
  for _ = 1, 20 do  -- two take turns
    testing.assert_equal(rule:observe({2, 1}, {0, 0}, 0), nil)
    testing.assert_equal(rule:observe({1, 2}, {0, 0}, 0), nil)
  end
end

function tests.test_X13_a_move_must_pay_for_itself()
  local function moves(cost, left)
    local rule = Rule.new{sizes = even(240, 2), weights = ones(240), unit = 1, least = 1, threshold = 1.05, period = 8}
    rule.steps_left = left
    rule:observe({2, 1}, {0, 0}, cost)
    return rule:observe({2, 1}, {0, 0}, 0) ~= nil
  end
  -- A step becomes faster by 2 - 4 / 3.
  testing.assert_equal({moves(0, nil), moves(40, nil), moves(50, nil)}, {true, true, false})
  testing.assert_equal({moves(1, 5), moves(1, 4)}, {true, false})
  testing.assert_equal({moves(0, 0)}, {false})
end

function tests.test_X13_units_least_rows_and_weights()
  local got = run{parts = 3, rows = 100, unit = 8, least = 10, slow = rank_is_slow(1, 20), steps = 100}
  testing.assert_equal(got.sizes[1], 16)
  testing.assert_equal({got.sizes[1] % 8, got.sizes[2] % 8}, {0, 0})
  local sum = got.sizes[1] + got.sizes[2] + got.sizes[3]
  testing.assert_equal(sum, 100)
  local weights = {}
  for i = 1, 60 do weights[i] = i <= 20 and 0 or 1 end  -- land, and sea
  got = run{parts = 2, rows = 60, weights = weights, slow = rank_is_slow(1, 1), steps = 40}
  testing.assert_equal(got.sizes, {40, 20})
end

--- At most 16 cuts are tried, however the speeds change.
function tests.test_X13_the_number_of_cuts_is_bounded()
  local rule = Rule.new{sizes = even(4000, 2), weights = ones(4000), unit = 1, least = 1, threshold = 1.05, period = 8}
  local seen, count = {}, 0
  for k = 1, 200 do
    local slow = 1 + (k // 4 * 7 % 40) / 10
    local work = rule:work(rule.sizes)
    rule:observe({work[1] * (k // 4 % 2 == 0 and slow or 1), work[2] * (k // 4 % 2 == 0 and 1 or slow)}, {0, 0}, 0)
    local key = table.concat(rule.sizes, " ")
    if not seen[key] then seen[key], count = true, count + 1 end
  end
  testing.assert_equal(count > 3 and count <= 16, true)
end

--- The fixed part is found from two cuts.
function tests.test_X13_a_part_that_rows_do_not_change_is_measured()
  local got = run{parts = 2, slow = rank_is_slow(1, 2), steps = 80, fixed = 60}
  testing.assert_close(got.rule.fixed, 60, {rtol = 1e-9})
  testing.assert_equal({got.sizes, #got.moves}, {{60, 180}, 2})  -- 2 (60 + r) = 60 + 240 - r
end

--- Noise can make a block seem to take as long at twice its length.
function tests.test_X13_the_part_that_rows_do_not_change_is_bounded()
  local rule = Rule.new{sizes = even(240, 2), weights = ones(240), unit = 1, least = 1, threshold = 1.05, period = 8}
  local errors = {0, 0}
  rule:observe({2, 1}, errors, 0)
  rule:observe({2, 1}, errors, 0)
  testing.assert_equal(rule.sizes, {80, 160})
  rule:observe({1.34, 1.001}, errors, 0)  -- by the second block, rows hardly matter
  rule:observe({0.67, 1.001}, errors, 0)  -- the first one is fast again
  rule:observe({0.67, 1.001}, errors, 0)
  testing.assert_equal(rule.fixed <= 120, true)
  testing.assert_equal(rule.sizes[1] <= 140, true)
end

function tests.test_X13_state_goes_on()
  local first = run{parts = 3, slow = rank_is_slow(3, 2), steps = 60, fixed = 20}
  local rule = Rule.new{sizes = even(240, 3), weights = ones(240), unit = 1, least = 1, threshold = 1.05, period = 8}
  rule:restore(mh.json.decode(mh.json.encode(first.rule:state())))
  testing.assert_equal(rule.sizes, first.sizes)
  testing.assert_equal(#run{parts = 3, slow = rank_is_slow(3, 2), steps = 100, fixed = 20, rule = rule}.moves, 0)
end

return tests
