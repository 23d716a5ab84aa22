-- SPDX-License-Identifier: Apache-2.0
-- Curves and points in a frame with axes.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local axis = require "moonhalo.plot.axis"
local parts = require "moonhalo.plot.parts"

local fail = mh.fail
local kInk, kSoft, kGrid, kPaper, kSeries = parts.ink, parts.soft, parts.grid, parts.paper, parts.series
local kTitle, kLabel, kTick = parts.title, parts.label, parts.tick
local numbers, finite, check_options = parts.numbers, parts.finite, parts.check_options
local tick_text, tick_width = parts.tick_text, parts.tick_width

local lines = {}

local kSeriesOptions = {"x", "y", "label", "color", "points", "line", "smooth"}
local kLineOptions = {"title", "xlabel", "ylabel", "xscale", "yscale", "size", "xrange", "yrange", "xticks"}

local function read_series(series)
  local all = {}
  for i, one in ipairs(series) do
    check_options("plot", one, kSeriesOptions)
    if one.y == nil then fail("plot: series " .. i .. " has no y") end
    local y = numbers("plot", one.y)
    local x = one.x and numbers("plot", one.x)
    if not x then
      x = {}
      for k = 1, #y do x[k] = k - 1 end
    end
    if #x ~= #y then fail(("plot: series %d has %d x and %d y"):format(i, #x, #y)) end
    all[i] = {x = x, y = y, label = one.label, color = one.color or kSeries[(i - 1) % #kSeries + 1],
      points = one.points or one.line == false, line = one.line ~= false, smooth = one.smooth}
  end
  return all
end

local function read_ticks(xticks)
  local values = numbers("plot", xticks)
  for _, value in ipairs(values) do
    if math.type(value) == nil then fail("plot: xticks has " .. mh._describe(value) .. ", expected numbers") end
  end
  return values
end

local function limits(series, key, scale, given)
  if given then return given[1], given[2] end
  local low, high = math.huge, -math.huge
  for _, one in ipairs(series) do
    for _, value in ipairs(one[key]) do
      if finite(value) and (scale ~= "log" or value > 0) then
        low, high = math.min(low, value), math.max(high, value)
      end
    end
  end
  if low > high then
    if scale == "log" then return 0.1, 1 end
    return 0, 1
  end
  if key == "x" and low < high then return low, high end
  return axis.range(low, high, scale)
end

local function ticks_of(low, high, scale, wanted)
  if scale == "log" then return axis.log_ticks(low, high) end
  return axis.linear_ticks(low, high, wanted)
end

--- Places along the curves, at most `step` pixels apart, and all points: {x1, y1, x2, y2, ...}.
local function places_of(series, to_x, to_y, step)
  local places, kFar = {}, 1e4
  local function near(pixel) return math.max(-kFar, math.min(kFar, pixel)) end
  for _, one in ipairs(series) do
    local before_x, before_y
    for k = 1, #one.x do
      local x, y = to_x(one.x[k]), to_y(one.y[k])
      local good = finite(x) and finite(y)
      if good then
        x, y = near(x), near(y)
        local joined = before_x and one.line
        local length = joined and ((x - before_x) ^ 2 + (y - before_y) ^ 2) ^ 0.5 or 0
        local count = math.max(1, math.ceil(length / step))
        for part = 1, count do
          local share = part / count
          places[#places + 1] = joined and before_x + (x - before_x) * share or x
          places[#places + 1] = joined and before_y + (y - before_y) * share or y
        end
      end
      before_x, before_y = good and x or nil, good and y or nil
    end
  end
  return places
end

--- The corner of the frame, or the middle of an edge, where a box covers the fewest places of the curves.
local function quiet_place(series, to_x, to_y, frame, width, height, gap)
  local places, best, fewest = places_of(series, to_x, to_y, gap), nil, math.huge
  for _, at in ipairs {{1, 0}, {0, 0}, {1, 1}, {0, 1}, {0.5, 0}, {0.5, 1}, {1, 0.5}, {0, 0.5}} do
    local x = frame.x0 + gap + at[1] * (frame.x1 - frame.x0 - width - 2 * gap)
    local y = frame.y0 + gap + at[2] * (frame.y1 - frame.y0 - height - 2 * gap)
    local count = 0
    for i = 1, #places, 2 do
      local px, py = places[i], places[i + 1]
      if px > x - gap and px < x + width + gap and py > y - gap and py < y + height + gap then count = count + 1 end
    end
    if count < fewest then best, fewest = {x, y}, count end
  end
  return best[1], best[2]
end

local function draw_legend(canvas, series, to_x, to_y, frame)
  local labelled, widest = {}, 0
  for _, one in ipairs(series) do
    if one.label then
      labelled[#labelled + 1] = one
      widest = math.max(widest, mh.text_width(one.label, kTick))
    end
  end
  if #labelled == 0 then return end
  local row, pad, key = kTick * 2.2, 14, 30
  local width, height = widest + key + 10 + 2 * pad, #labelled * row + 2 * pad - (row - kTick)
  local x, y = quiet_place(series, to_x, to_y, frame, width, height, 14)
  canvas:fill(x, y, x + width, y + height, kPaper, 0.88)
  canvas:line({x, y, x + width, y, x + width, y + height, x, y + height, x, y}, 1, kGrid)
  for i, one in ipairs(labelled) do
    local base = y + pad + kTick + (i - 1) * row
    canvas:line({x + pad, base - kTick / 2, x + pad + key, base - kTick / 2}, 2.6, one.color)
    canvas:text(x + pad + key + 10, base, one.label, kTick, kInk)
  end
  return {x, y, x + width, y + height}
end

--- The mean over a centred window of `count` finite values, narrower at the ends.
local function smoothed(values, count)
  local result, half = {}, count // 2
  for k = 1, #values do
    local reach = math.min(half, k - 1, #values - k)
    local sum, found = 0, 0
    for i = k - reach, k + reach do
      if finite(values[i]) then sum, found = sum + values[i], found + 1 end
    end
    result[k] = found > 0 and sum / found or 0 / 0
  end
  return result
end

local function draw_series(canvas, one, to_x, to_y)
  local function curve(values)
    local points = {}
    for k = 1, #one.x do points[2 * k - 1], points[2 * k] = to_x(one.x[k]), to_y(values[k]) end
    return points
  end
  if not one.line then
    for k = 1, #one.x do canvas:line({to_x(one.x[k]), to_y(one.y[k])}, 5, one.color, 0.6) end
    return
  elseif one.smooth then
    canvas:line(curve(one.y), 1.6, one.color, 0.28)
    canvas:line(curve(smoothed(one.y, one.smooth)), 2.6, one.color)
  else
    canvas:line(curve(one.y), 2.2, one.color)
  end
  if one.points then
    for k = 1, #one.x do canvas:line({to_x(one.x[k]), to_y(one.y[k])}, 7, one.color) end
  end
end

local function draw_frame(canvas, frame, xticks, yticks, to_x, to_y)
  for _, tick in ipairs(xticks) do
    if tick[2] then canvas:line({to_x(tick[1]), frame.y0, to_x(tick[1]), frame.y1}, 1, kGrid) end
  end
  for _, tick in ipairs(yticks) do
    if tick[2] then canvas:line({frame.x0, to_y(tick[1]), frame.x1, to_y(tick[1])}, 1, kGrid) end
  end
end

local function draw_ticks(canvas, frame, xticks, yticks, to_x, to_y)
  for _, tick in ipairs(xticks) do
    canvas:line({to_x(tick[1]), frame.y1, to_x(tick[1]), frame.y1 + (tick[2] and 6 or 3)}, 1.2, kSoft)
    tick_text(canvas, to_x(tick[1]), frame.y1 + 13 + kTick, tick, kTick, 0.5)
  end
  for _, tick in ipairs(yticks) do
    canvas:line({frame.x0 - (tick[2] and 6 or 3), to_y(tick[1]), frame.x0, to_y(tick[1])}, 1.2, kSoft)
    tick_text(canvas, frame.x0 - 12, to_y(tick[1]) + kTick / 2, tick, kTick, 1)
  end
  canvas:line({frame.x0, frame.y0, frame.x0, frame.y1, frame.x1, frame.y1}, 1.4, kSoft)
end

--- The picture of the series, nil on ranks that write none. The second result has what places values in it: to_x, to_y,
--- the corners of the frame, x0, y0, x1, y1, those of the box of the legend, the ticks of x, and the width of the
--- picture.
function lines.picture(given, options)
  check_options("plot", options, kLineOptions)
  local xscale = arguments.choice("plot", "xscale", options.xscale or "linear", {"linear", "log"})
  local yscale = arguments.choice("plot", "yscale", options.yscale or "linear", {"linear", "log"})
  local series = read_series(given)
  local given_ticks = options.xticks and read_ticks(options.xticks)
  if mh.run_info().rank ~= 0 then return end
  local width, height = table.unpack(options.size or {1280, 760})
  local x0, x1 = limits(series, "x", xscale, options.xrange)
  if x0 == x1 then x0, x1 = axis.range(x0, x1, xscale) end
  local y0, y1 = limits(series, "y", yscale, options.yrange)
  local yticks = ticks_of(y0, y1, yscale, math.max(3, height // 95))
  local widest = 0
  for _, tick in ipairs(yticks) do widest = math.max(widest, tick_width(tick, kTick)) end
  local frame = {
    x0 = 30 + widest + (options.ylabel and 34 or 0),
    x1 = width - 36,
    y0 = options.title and 72 or 34,
    y1 = height - 46 - (options.xlabel and 34 or 0),
  }
  local along, up = axis.scale(x0, x1, xscale), axis.scale(y0, y1, yscale)
  local function to_x(value) return frame.x0 + along(value) * (frame.x1 - frame.x0) end
  local function to_y(value) return frame.y1 - up(value) * (frame.y1 - frame.y0) end

  local xticks = given_ticks and axis.given_ticks(given_ticks, x0, x1, to_x, function(text)
    return mh.text_width(text, kTick)
  end) or ticks_of(x0, x1, xscale, math.max(3, width // 140))

  local canvas = mh.canvas(width, height, kPaper)
  draw_frame(canvas, frame, xticks, yticks, to_x, to_y)
  canvas:clip(frame.x0, frame.y0 - 4, frame.x1 + 4, frame.y1 + 1)
  for _, one in ipairs(series) do draw_series(canvas, one, to_x, to_y) end
  canvas:clip()
  draw_ticks(canvas, frame, xticks, yticks, to_x, to_y)
  if options.title then canvas:text(frame.x0, 44, options.title, kTitle, kInk) end
  if options.xlabel then canvas:text((frame.x0 + frame.x1) / 2, height - 22, options.xlabel, kLabel, kInk, 0.5) end
  if options.ylabel then
    canvas:text(20 + kLabel, (frame.y0 + frame.y1) / 2, options.ylabel, kLabel, kInk, 0.5, true)
  end
  frame.legend = draw_legend(canvas, series, to_x, to_y, frame)
  frame.to_x, frame.to_y, frame.width, frame.xticks = to_x, to_y, width, xticks
  return canvas, frame
end

--- Draws the picture of the series into a file.
function lines.draw(path, given, options)
  options = parts.check_call("plot.lines", path, given, options, "{{y = values, label = text}, ...}")
  local canvas = lines.picture(given, options)
  if canvas then parts.save(canvas, path) end
end

return lines
