-- SPDX-License-Identifier: Apache-2.0
-- `for step in mh.progress(1000, {desc = "train"}) do`: steps 1 to 1000, with a bar on a terminal and now and then a
-- line elsewhere, on rank 0's standard error. What mh.log was last given stands at its end. `mh.progress(list)` gives
-- position and element.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local run_log = require "moonhalo.internal.run_log"

local kSignature = arguments.signature("progress", {"steps", {"desc", ""}, {"unit", "it"}})
local kFrame = 0.1  -- seconds between two frames of a bar

--- Seconds between two lines where there is no terminal: short runs stay short, long ones readable.
local function line_interval(elapsed)
  if elapsed < 60 then return 5 end
  return elapsed < 600 and 20 or 60
end

local function clock_text(seconds)
  seconds = math.floor(seconds + 0.5)
  local hours, minutes = seconds // 3600, seconds // 60 % 60
  if hours > 0 then return ("%d:%02d:%02d"):format(hours, minutes, seconds % 60) end
  return ("%d:%02d"):format(minutes, seconds % 60)
end

local function rate_text(rate, unit)
  if rate >= 100 then return ("%.0f %s/s"):format(rate, unit) end
  if rate >= 1 then return ("%.1f %s/s"):format(rate, unit) end
  return ("%.2f s/%s"):format(1 / rate, unit)
end

local function number_text(value)
  if math.type(value) == "integer" then return tostring(value) end
  local text = ("%.4g"):format(value)
  return text
end

--- The values of the latest record but the step, by name.
local function postfix()
  local names, parts = {}, {}
  for name, value in pairs(run_log.latest or {}) do
    if name ~= "step" and (type(value) == "number" or type(value) == "string") then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    local value = run_log.latest[name]
    parts[i] = name .. " " .. (type(value) == "number" and number_text(value) or value)
  end
  return table.concat(parts, "  ")
end

local function has_utf8()
  local locale = os.getenv("LC_ALL") or os.getenv("LC_CTYPE") or os.getenv("LANG") or ""
  return locale:lower():find("utf%-?8") ~= nil
end

local kEighths = {"▏", "▎", "▍", "▌", "▋", "▊", "▉"}

local function bar_text(part, width, utf8)
  if not utf8 then
    local full = math.floor(part * width)
    return "[" .. ("#"):rep(full) .. ("."):rep(width - full) .. "]"
  end
  local eighths = math.floor(part * width * 8)
  local full, rest = eighths // 8, eighths % 8
  local text = ("█"):rep(full) .. (rest > 0 and kEighths[rest] or "")
  return text .. (" "):rep(width - full - (rest > 0 and 1 or 0))
end

--- Cuts a string (one column per character) to `columns`.
local function cut(text, columns)
  local finish = utf8.offset(text, columns + 1)
  return finish and text:sub(1, finish - 1) or text
end

local Meter = {}
Meter.__index = Meter

local function new_meter(total, values, info)
  return setmetatable({
    total = total, desc = values.desc, unit = values.unit, info = info, done = 0, start = mh.clock(), shown = nil,
    utf8 = has_utf8(),
  }, Meter)
end

--- Steps per second without the first step, which warms caches up.
function Meter:rate(now)
  if self.done >= 3 and self.first then return (self.done - 1) / math.max(now - self.first, 1e-9) end
  return self.done / math.max(now - self.start, 1e-9)
end

function Meter:parts(now)
  local rate = self:rate(now)
  local timing
  if self.done == 0 then
    timing = ""
  elseif self.done < self.total then
    timing = rate_text(rate, self.unit) .. "  " .. clock_text((self.total - self.done) / rate) .. " left"
  else
    timing = rate_text(rate, self.unit) .. "  " .. clock_text(now - self.start)
  end
  return ("%d/%d"):format(self.done, self.total), timing
end

local kBarWidth = 24

function Meter:draw(now)
  local count, timing = self:parts(now)
  local percent = ("%3d%%"):format(self.total > 0 and self.done * 100 // self.total or 100)
  local before = (self.desc ~= "" and self.desc .. " " or "") .. percent .. " "
  local after = " " .. count .. "  " .. timing .. "  " .. postfix()
  local bar = bar_text(self.total > 0 and self.done / self.total or 1, kBarWidth, self.utf8)
  local room = self.info.columns - 1 - #before - kBarWidth - (self.utf8 and 0 or 2)
  after = cut(after, math.max(room, 0))
  if self.info.color then bar = "\27[36m" .. bar .. "\27[0m" end
  io.stderr:write("\r", before, bar, after, "\27[K")
  self.visible = true
end

function Meter:line(now)
  local count, timing = self:parts(now)
  local percent = self.total > 0 and self.done * 100 // self.total or 100
  local text = ("%s%s (%d%%)  %s  %s"):format(self.desc ~= "" and self.desc .. "  " or "", count, percent, timing,
      postfix())
  io.stderr:write((text:gsub("%s+$", "")), "\n")
end

function Meter:show(finished)
  local now = mh.clock()
  if self.done == 1 then self.first = self.first or now end
  if self.info.terminal then
    if finished or not self.shown or now - self.shown >= kFrame then
      self:draw(now)
      self.shown = now
    end
  elseif finished or now - (self.shown or self.start) >= line_interval(now - self.start) then
    self:line(now)
    self.shown = now
  end
end

--- While the bar stands on a line of the terminal, `print` moves it out of the way.
function Meter:guard_print()
  self.print = print
  local meter = self
  rawset(_G, "print", function(...)
    if meter.visible then
      io.stderr:write("\r\27[K")
      meter.visible, meter.shown = false, nil
    end
    meter.print(...)
    io.stdout:flush()
  end)
end

function Meter:close()
  if self.closed then return end
  self.closed = true
  self:show(true)
  if self.info.terminal then
    io.stderr:write("\n")
    self.visible = false
    rawset(_G, "print", self.print)
  end
end

Meter.__close = Meter.close

--- mh.progress(steps, {desc = "", unit = "it"}) -> function
---   Goes through steps and shows on standard error of rank 0 how far it is, with the latest record of mh.log: for step
---   in mh.progress(1000) do ... end. Of a list it gives position and element.
---   steps       integer|table   the number of steps, or a list
---   desc        string      stands in front
---   unit        string      the name of a step
---   returns     function    an iterator of 1, 2, ..., or of (position, element)
---   collective  no
---   errors      ValueError: neither a number of steps nor a list
---   example
---     local total = 0
---     for step in mh.progress(4) do total = total + step end
---     total    --> 10
return function(...)
  local values = arguments.read(kSignature, ...)
  for _, name in ipairs {"desc", "unit"} do arguments.text("progress", name, values[name]) end
  local list = type(values.steps) == "table" and values.steps or nil
  local total = list and #list or values.steps
  if math.type(total) ~= "integer" or total < 0 then
    mh.fail("progress: expected a number of steps or a list, got " .. mh._describe(values.steps))
  end
  local info = mh.run_info()
  local meter
  if info.rank == 0 and not info.quiet then
    meter = new_meter(total, values, info)
    if info.terminal then meter:guard_print() end
  end
  local step = 0
  local function next_step()
    if meter and step > 0 then
      meter.done = step
      meter:show(false)
    end
    if step == total then
      if meter then meter:close() end
      return nil
    end
    step = step + 1
    if list then return step, list[step] end
    return step
  end
  if meter and info.terminal then meter:show(false) end
  return next_step, nil, nil, meter
end
