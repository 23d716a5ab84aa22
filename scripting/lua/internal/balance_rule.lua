-- SPDX-License-Identifier: Apache-2.0
-- How mh.balance decides: block sizes from measured times. It reads no clock and sends nothing, so equal times give
-- equal decisions on all ranks, and tests plant times.
--
-- A block takes a + b * (sum of the weights of its rows) seconds. The part that rows do not change is as much work on
-- every rank, `fixed`, so a = fixed * b. It is 0 until a block has been measured at two lengths.

local strict = require "moonhalo.internal.strict"

local Rule = {}
local meta = strict.class {name = "BalanceRule", methods = Rule,
  fields = "sizes sums unit least threshold period period_now steps_left counts noise slow fits known trial tried "
      .. "moves undone move_cost fixed said"}

local kLarge = 1.4        -- slowest / fastest from which on a move is full
local kFirst = 2          -- moves that are full: the first, and that after the fixed part was measured
local kSame = 0.1         -- a block of the same length whose time differs by more has become faster or slower
local kFar = 0.2          -- lengths of a block that differ by less say nothing of what rows do not change
local kSaid = 4           -- periods whose blocks say it
local kWorth = 3          -- times the cost of a move
local kMostCuts = 16      -- plans are kept for every cut
local kLongest = 64       -- steps of a period
local kOpenEnd = 200      -- steps that a move may pay for itself, where the end of the run is not known
local kErrors = 4         -- standard errors of a median by which the slowest must stand out

--- `given`: sizes, weights (by row), unit, least, threshold, period.
function Rule.new(given)
  local sums = {0}
  for i, weight in ipairs(given.weights) do sums[i + 1] = sums[i] + weight end
  local self = setmetatable({
    sizes = given.sizes, sums = sums, unit = given.unit, least = given.least, threshold = given.threshold,
    period = given.period, period_now = given.period, counts = {}, fits = {}, known = {}, tried = 0, moves = 0,
    undone = 0, move_cost = 0, fixed = 0, said = {},
  }, meta)
  self:_count(given.sizes)
  return self
end

local function median(list)
  local ordered = table.move(list, 1, #list, 1, {})
  table.sort(ordered)
  return (ordered[(#ordered + 1) // 2] + ordered[#ordered // 2 + 1]) / 2
end

--- The median, and its standard error as a part of it.
function Rule.summary(times)
  local middle, distances = median(times), {}
  for i, time in ipairs(times) do distances[i] = math.abs(time - middle) end
  local deviation = 1.4826 * median(distances)
  return middle, middle > 0 and 1.2533 * deviation / math.sqrt(#times) / middle or 0
end

local function key_of(sizes) return table.concat(sizes, " ") end

function Rule:_count(sizes)
  local key = key_of(sizes)
  if not self.counts[key] then
    self.counts[key] = true
    self.tried = self.tried + 1
  end
end

local function ends_of(sizes)
  local ends, at = {}, 0
  for i, size in ipairs(sizes) do
    at = at + size
    ends[i] = at
  end
  return ends
end

--- Sums of weights of the blocks.
function Rule:work(sizes)
  local list, at = {}, 0
  for i, size in ipairs(sizes) do
    list[i] = self.sums[at + size + 1] - self.sums[at + 1]
    at = at + size
  end
  return list
end

local function slowest_of(times)
  local slowest, sum = 1, 0
  for i, time in ipairs(times) do
    if time > times[slowest] then slowest = i end
    sum = sum + time
  end
  return slowest, times[slowest], sum / #times
end

--- The lower one of the two in the middle, or nil.
local function lower_median(list)
  table.sort(list)
  return list[(#list + 1) // 2]
end

local function is_far(before, work) return math.abs(before.work - work) > kFar * math.max(before.work, work) end

--- The work that takes as long as what rows do not change, from a block measured at two lengths; nil where these are
--- near each other, or the longer one was not slower.
local function fixed_work(before, now)
  if not is_far(before, now.work) then return nil end
  local b = (now.time - before.time) / (now.work - before.work)
  return b > 0 and math.max(0, now.time / b - now.work) or nil
end

--- Updates a and b of every block by the times of the present sizes. A rank may become faster or slower just when its
--- block changes, and speeds wander, so `fixed` is the one in the middle of what the blocks have said of late.
function Rule:_fit(times)
  local works = self:work(self.sizes)
  for i, work in ipairs(works) do
    local now, known = {work = work, time = times[i]}, self.known[i]
    if known and known.now.work == work then
      local is_same = math.abs(times[i] / known.now.time - 1) <= kSame
      known = {now = now, before = is_same and known.before or nil}
    else
      local before = known and known.now
      if before and known.before and not is_far(before, work) then before = known.before end
      known = {now = now, before = before}
    end
    self.known[i] = known
    table.insert(self.said, known.before and fixed_work(known.before, now))
  end
  while #self.said > kSaid * #works do table.remove(self.said, 1) end
  -- No more than a mean block, or noise would say that rows hardly matter, and a move would go far beyond.
  local fixed = lower_median(table.move(self.said, 1, #self.said, 1, {})) or self.fixed
  self.fixed = math.min(fixed, self.sums[#self.sums] / #works)
  for i, work in ipairs(works) do
    local b = work > 0 and times[i] / (self.fixed + work) or 0
    self.fits[i] = {a = self.fixed * b, b = b}
  end
end

--- Sizes with which no block takes longer than `limit`, or nil.
local function fill(self, limit)
  local rows, unit, parts = #self.sums - 1, self.unit, #self.sizes
  local least = (self.least + unit - 1) // unit * unit
  local sizes, begin = {}, 0
  for i, fit in ipairs(self.fits) do
    local most = math.max(begin, rows - (parts - i - 1) * least - self.least)
    if i == parts then
      sizes[i] = rows - begin
      if sizes[i] < self.least then return nil end
    else
      local low, high = 0, (most - begin) // unit
      while low < high do
        local middle = (low + high + 1) // 2
        local work = self.sums[begin + middle * unit + 1] - self.sums[begin + 1]
        if fit.a + fit.b * work <= limit then low = middle else high = middle - 1 end
      end
      sizes[i] = low * unit
      if sizes[i] < least then return nil end
    end
    local work = self.sums[begin + sizes[i] + 1] - self.sums[begin + 1]
    if sizes[i] > 0 and fit.a + fit.b * work > limit * (1 + 1e-12) then return nil end
    begin = begin + sizes[i]
  end
  return sizes
end

--- Time of the slowest block.
function Rule:time_of(sizes)
  local most = 0
  for i, work in ipairs(self:work(sizes)) do
    if sizes[i] > 0 then most = math.max(most, self.fits[i].a + self.fits[i].b * work) end
  end
  return most
end

--- The sizes whose slowest block is fastest; the present ones where none can be better.
function Rule:best()
  local high = self:time_of(self.sizes)
  local sizes, low = fill(self, high), 0
  if not sizes then return self.sizes end
  for _ = 1, 60 do
    local middle = (low + high) / 2
    local fits = fill(self, middle)
    if fits then sizes, high = fits, middle else low = middle end
  end
  return sizes
end

--- Halfway from the present sizes to others, each still of `least` rows.
function Rule:half(target)
  local now, to, unit, sizes, begin = ends_of(self.sizes), ends_of(target), self.unit, {}, 0
  local least = (self.least + unit - 1) // unit * unit
  for i = 1, #now do
    local at = now[i]
    if i < #now then
      at = (now[i] + to[i] + unit) // (2 * unit) * unit
      at = math.min(math.max(at, begin + least), (now[#now] - (#now - i) * least) // unit * unit)
    end
    sizes[i] = at - begin
    begin = at
  end
  return sizes
end

local function largest_difference(one, other)
  local most = 0
  for i = 1, #one do most = math.max(most, math.abs(one[i] - other[i])) end
  return most
end

--- The sizes before the last move, where it has not brought half of what was promised in two periods in a row; else
--- nil, and true after the first of them.
function Rule:_check_trial(times)
  local trial = self.trial
  self.trial = nil
  if not trial then return nil end
  local _, now = slowest_of(times)
  if trial.before - now >= (trial.before - trial.promised) / 2 then
    self.period_now = self.period
    return nil
  end
  if not trial.failed then
    trial.failed, self.trial = true, trial
    return nil, true
  end
  self.period_now = math.min(2 * self.period_now, kLongest)
  self.undone = self.undone + 1
  return trial.sizes
end

function Rule:_move(sizes)
  self.slow = nil
  self.moves = self.moves + 1
  self.sizes = sizes
  self:_count(sizes)
  return sizes
end

--- The times of this period and the one before together, where one block stands out in both; else nil.
function Rule:_stands_out(times)
  local _, _, mean = slowest_of(times)
  local bound, before = math.max(self.threshold, 1 + kErrors * self.noise), self.slow
  local slow, both, found = {}, {}, false
  for i, time in ipairs(times) do
    slow[i] = time > bound * mean
    found = found or (slow[i] and before ~= nil and before.slow[i])
    both[i] = before and (time + before.times[i]) / 2
  end
  self.slow = {slow = slow, times = times}
  return found and both or nil
end

--- Decides from a period: `times` are medians of busy seconds, one for each block, `errors` their standard errors as
--- parts of them, `move_cost` the seconds that the last move took. Returns new sizes, or nil where all stays.
function Rule:observe(times, errors, move_cost)
  if move_cost > 0 then self.move_cost = move_cost end
  local error_now = 0
  for _, one in ipairs(errors) do error_now = error_now + one / #errors end
  self.noise = self.noise and 0.85 * self.noise + 0.15 * error_now or error_now
  local back, is_open = self:_check_trial(times)
  if back then return self:_move(back) end
  if is_open then return nil end
  local both = self:_stands_out(times)
  self:_fit(both or times)
  if not both then return nil end
  local best = self:best()
  local _, before = slowest_of(both)
  local sizes = (self.moves < kFirst or before > kLarge * math.min(table.unpack(both))) and best or self:half(best)
  local gain = before - self:time_of(sizes)
  local small = largest_difference(sizes, self.sizes) <= self.unit and gain < (self.threshold - 1) * before
  local steps = self.steps_left or kOpenEnd
  if small or gain <= 0 or gain * steps <= kWorth * self.move_cost then return nil end
  if self.tried >= kMostCuts and not self.counts[key_of(sizes)] then return nil end
  self.trial = {sizes = self.sizes, before = before, promised = before - gain}
  return self:_move(sizes)
end

--- Numbers that go on in another run with as many blocks.
function Rule:state()
  return {sizes = self.sizes, fixed = self.fixed, noise = self.noise or 0, period = self.period_now,
    move_cost = self.move_cost, moves = self.moves, undone = self.undone}
end

function Rule:restore(state)
  self.sizes, self.period_now, self.move_cost = state.sizes, state.period, state.move_cost
  self.moves, self.undone = state.moves, state.undone
  self.noise = state.noise > 0 and state.noise or nil
  self.fixed, self.fits, self.known, self.said, self.slow, self.trial = state.fixed, {}, {}, {}, nil, nil
  self:_count(state.sizes)
end

return Rule
