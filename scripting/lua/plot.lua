-- SPDX-License-Identifier: Apache-2.0
-- Pictures of a run, as PNG. All ranks call, rank 0 writes; ShardTensors are gathered.
--   mh.plot.lines("loss.png", {{y = losses, label = "train"}}, {yscale = "log", xlabel = "step", ylabel = "loss"})
--   mh.plot.maps("maps.png", {{data = truth, title = "truth"}, {data = error, colormap = "diverging"}}, {unit = "K"})
-- A series: y, x (without it 0, 1, 2, ...), label, color, points (a dot at each), line (false for points alone), smooth
-- (the mean over this many neighbours is drawn, the values stay behind it in pale). Lines: title, xlabel, ylabel,
-- xscale, yscale ("linear" or "log"), xrange, yrange, size {width, height}.
-- A panel: data, title, colormap, range, unit, x and y (the coordinates {first, last} of the columns and rows). Maps:
-- title, columns, colormap, range, unit, aspect (height of a cell over its width), origin ("lower" or "upper": where
-- row 0 is), size {width}.
-- A range, of a panel or of all, says which values the colours span: "row" (the default: those of all panels of the row
-- that have the same colormap and unit, so that equal colours are equal values), "own" (the panel's), {low, high}, or
-- another name: all panels of that name share a range.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local animation = require "moonhalo.plot.animation"
local axis = require "moonhalo.plot.axis"
local overlays = require "moonhalo.plot.overlays"

local fail = mh.fail
local kInk, kSoft, kGrid, kPaper, kBad = "#1d2430", "#5b6573", "#e3e6ea", "#ffffff", "#b9bdc3"
local kSeries = {"#2f6fb2", "#d9622b", "#2a9470", "#8c57a8", "#c23b57", "#8a6d3b", "#4aa8bf", "#6b7280"}

-- Cap height of the text, in pixels, for a picture 1280 wide.
local kTitle, kLabel, kTick = 15, 12.5, 11.5

local plot = {}

--- A list or a 1-D tensor as a list of numbers.
local function numbers(op, values)
  if mh.is_tensor(values) then return values:detach():to("float64"):reshape{-1}:tolist() end
  if type(values) ~= "table" then
    fail(op .. ": expected a list of numbers or a tensor, got " .. mh._describe(values))
  end
  return values
end

local function finite(value) return value == value and value ~= math.huge and value ~= -math.huge end

local function check_options(op, options, known)
  for key in pairs(options) do arguments.choice(op, "option", key, known) end
end

--- The options of lines(path, list, options) and maps(path, list, options).
local function check_call(op, path, list, options, wanted)
  if type(path) ~= "string" then fail(op .. ": the first argument is the file's name, got " .. mh._describe(path)) end
  if type(list) ~= "table" or type(list[1]) ~= "table" then
    fail(("%s: the second argument is a list\n  fix   mh.%s(%q, %s, {title = ...})"):format(op, op, path, wanted))
  end
  return options or {}
end

local function save(canvas, path)
  mh.files.write_png(path, canvas:picture())
end

--- Text of a tick, {value, text, exponent}, at the point that `align` and the baseline fix. Returns nothing.
local function tick_text(canvas, x, y, tick, size, align)
  if not tick[2] then return end
  if not tick[3] then return canvas:text(x, y, tick[2], size, kSoft, align) end
  local base, small = mh.text_width(tick[2], size), size * 0.72
  local width = base + 2 + mh.text_width(tick[3], small)
  local left = x - width * align
  canvas:text(left, y, tick[2], size, kSoft)
  canvas:text(left + base + size * 0.22, y - size * 0.55, tick[3], small, kSoft)
end

local function tick_width(tick, size)
  if not tick[2] then return 0 end
  return mh.text_width(tick[2], size) + (tick[3] and 2 + mh.text_width(tick[3], size * 0.72) or 0)
end

-- ---- Lines --------------------------------------------------------------------------------------------------------

local kSeriesOptions = {"x", "y", "label", "color", "points", "line", "smooth"}
local kLineOptions = {"title", "xlabel", "ylabel", "xscale", "yscale", "size", "xrange", "yrange"}

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

--- The corner of the frame where a box covers the fewest points.
local function quiet_corner(series, to_x, to_y, frame, width, height, gap)
  local best, fewest
  for _, corner in ipairs {{1, 0}, {0, 0}, {1, 1}, {0, 1}} do
    local x = corner[1] == 1 and frame.x1 - width - gap or frame.x0 + gap
    local y = corner[2] == 1 and frame.y1 - height - gap or frame.y0 + gap
    local count = 0
    for _, one in ipairs(series) do
      for k = 1, #one.x do
        local px, py = to_x(one.x[k]), to_y(one.y[k])
        if px > x - gap and px < x + width + gap and py > y - gap and py < y + height + gap then count = count + 1 end
      end
    end
    if not fewest or count < fewest then best, fewest = {x, y}, count end
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
  local x, y = quiet_corner(series, to_x, to_y, frame, width, height, 14)
  canvas:fill(x, y, x + width, y + height, kPaper, 0.88)
  canvas:line({x, y, x + width, y, x + width, y + height, x, y + height, x, y}, 1, kGrid)
  for i, one in ipairs(labelled) do
    local base = y + pad + kTick + (i - 1) * row
    canvas:line({x + pad, base - kTick / 2, x + pad + key, base - kTick / 2}, 2.6, one.color)
    canvas:text(x + pad + key + 10, base, one.label, kTick, kInk)
  end
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

local function draw_lines(path, given, options)
  options = check_call("plot.lines", path, given, options, "{{y = values, label = text}, ...}")
  check_options("plot", options, kLineOptions)
  local xscale = arguments.choice("plot", "xscale", options.xscale or "linear", {"linear", "log"})
  local yscale = arguments.choice("plot", "yscale", options.yscale or "linear", {"linear", "log"})
  local series = read_series(given)
  if mh.run_info().rank ~= 0 then return end
  local width, height = table.unpack(options.size or {1280, 760})
  local x0, x1 = limits(series, "x", xscale, options.xrange)
  if x0 == x1 then x0, x1 = axis.range(x0, x1, xscale) end
  local y0, y1 = limits(series, "y", yscale, options.yrange)
  local xticks = ticks_of(x0, x1, xscale, math.max(3, width // 140))
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
  draw_legend(canvas, series, to_x, to_y, frame)
  save(canvas, path)
end

-- ---- Maps ---------------------------------------------------------------------------------------------------------

local kPanelOptions = {"data", "title", "colormap", "range", "unit", "x", "y", "arrows", "contours"}
local kMapOptions = {"title", "columns", "colormap", "unit", "range", "aspect", "origin", "size"}

local function read_panel(one, i, origin)
  check_options("plot", one, kPanelOptions)
  if not mh.is_tensor(one.data) then fail("plot: panel " .. i .. " has no tensor as data") end
  local field = one.data:detach()
  if field:is_shard_tensor() then field = field:full_tensor() end
  if field.ndim ~= 2 then
    fail(("plot: panel %d has %d dimensions, expected 2\n  have  shape {%s}"):format(i, field.ndim,
        table.concat(field.shape, ", ")))
  end
  field = field:cpu():to("float64")
  return origin == "lower" and field:flip{0} or field
end

--- Smallest and largest finite values; a diverging map is centred on zero.
local function value_range(fields, centred)
  local low, high = math.huge, -math.huge
  for _, field in ipairs(fields) do
    local good = field:masked_select(field:isfinite())
    if good:numel() > 0 then low, high = math.min(low, good:min():item()), math.max(high, good:max():item()) end
  end
  if low > high then low, high = 0.0, 1.0 end
  if centred then
    local reach = math.max(math.abs(low), math.abs(high))
    low, high = -reach, reach
  end
  if low == high then low, high = axis.range(low, high, "linear") end
  return low, high
end

local function is_number(value) return math.type(value) ~= nil end

--- Colormap, unit, range and row of each panel; its own, else those of all.
local function panel_styles(panels, options, columns)
  local styles = {}
  for i, panel in ipairs(panels) do
    local range = panel.range or options.range or "row"
    if type(range) ~= "string" and not (type(range) == "table" and #range == 2 and is_number(range[1])
        and is_number(range[2])) then
      fail(("plot: panel %d has a range of another kind\n  have  %s\n" ..
          "  fix   give {low, high}, \"row\", \"own\", or a name that panels share")
        :format(i, type(range) == "table" and "a table" or tostring(range)))
    end
    styles[i] = {colormap = panel.colormap or options.colormap or "viridis", unit = panel.unit or options.unit,
      range = range, row = (i - 1) // columns}
    axis.colormap(styles[i].colormap)
  end
  return styles
end

--- True for panels that have one range. Another colormap or unit is another quantity, unless a name says otherwise.
local function share(one, other)
  if one.range ~= other.range or one.range == "own" then return false end
  return one.range ~= "row" or (one.row == other.row and one.colormap == other.colormap and one.unit == other.unit)
end

--- The values that the colours of panel i span.
local function panel_range(styles, fields, i)
  local style = styles[i]
  if type(style.range) == "table" then return style.range[1], style.range[2] end
  local together = {fields[i]}
  for k, other in ipairs(styles) do
    if k ~= i and share(style, other) then together[#together + 1] = fields[k] end
  end
  return value_range(together, style.colormap == "diverging")
end

local function draw_bar(canvas, x, y, width, height, low, high, map, unit)
  local colors = axis.colormap(map):flip{0}:unsqueeze(1)
  canvas:image(colors, x, y, x + width, y + height)
  canvas:line({x, y, x + width, y, x + width, y + height, x, y + height, x, y}, 1, kSoft)
  local scale = axis.scale(low, high, "linear")
  for _, tick in ipairs(axis.linear_ticks(low, high, math.max(3, height // 52))) do
    local at = y + height * (1 - scale(tick[1]))
    canvas:line({x + width, at, x + width + 5, at}, 1.2, kSoft)
    tick_text(canvas, x + width + 10, at + kTick / 2, tick, kTick, 0)
  end
  if unit then canvas:text(x, y - 11, unit, kTick, kSoft) end
end

--- Ticks of the coordinates {first, last} along an edge, centres of the outer cells.
local function draw_coordinates(canvas, panel, box, rows, columns, origin)
  local function along(first, last, cells, from, to, flipped, place)
    if first == last then return end
    local step = (last - first) / math.max(cells - 1, 1)
    local low, high = first - step / 2, last + step / 2
    for _, tick in ipairs(axis.linear_ticks(math.min(low, high), math.max(low, high),
        math.max(2, math.abs(to - from) // 80))) do
      local part = (tick[1] - low) / (high - low)
      place(from + (flipped and 1 - part or part) * (to - from), tick)
    end
  end
  if panel.x then
    along(panel.x[1], panel.x[2], columns, box.x0, box.x1, false, function(at, tick)
      canvas:line({at, box.y1, at, box.y1 + 5}, 1.2, kSoft)
      tick_text(canvas, at, box.y1 + 11 + kTick, tick, kTick, 0.5)
    end)
  end
  if panel.y then
    along(panel.y[1], panel.y[2], rows, box.y0, box.y1, origin == "lower", function(at, tick)
      canvas:line({box.x0 - 5, at, box.x0, at}, 1.2, kSoft)
      tick_text(canvas, box.x0 - 10, at + kTick / 2, tick, kTick, 1)
    end)
  end
end

--- The picture of maps; nil on ranks that write none.
local function map_picture(panels, options)
  local origin = arguments.choice("plot", "origin", options.origin or "lower", {"lower", "upper"})
  local fields, over = {}, {}
  for i, one in ipairs(panels) do
    fields[i] = read_panel(one, i, origin)
    over[i] = overlays.read(one, table.concat(fields[i].shape, ", "), origin)
  end
  local columns = math.min(options.columns or math.min(#fields, 3), #fields)
  local styles = panel_styles(panels, options, columns)
  if mh.run_info().rank ~= 0 then return end
  local rows = math.ceil(#fields / columns)
  local width = options.size and options.size[1] or math.min(1600, 90 + 500 * columns)
  local with_x, with_y = panels[1].x ~= nil, panels[1].y ~= nil
  local left, right, top, gap = with_y and 48 or 10, 84, 46, 20
  local cell_width = (width - gap * (columns + 1)) / columns
  local field_width = cell_width - left - right
  local tallest = 0
  for _, field in ipairs(fields) do
    tallest = math.max(tallest, field:size(0) / field:size(1) * (options.aspect or 1) * field_width)
  end
  local bottom = with_x and 40 or 14
  local cell_height = top + tallest + bottom
  local head = options.title and 66 or 14
  local canvas = mh.canvas(math.floor(width), math.floor(head + rows * (cell_height + 14) + 12), kPaper)
  if options.title then canvas:text(gap + left, 42, options.title, kTitle, kInk) end

  for i, field in ipairs(fields) do
    local panel, style = panels[i], styles[i]
    local low, high = panel_range(styles, fields, i)
    local x = gap + ((i - 1) % columns) * (cell_width + gap) + left
    local y = head + ((i - 1) // columns) * (cell_height + 14) + top
    local height = field:size(0) / field:size(1) * (options.aspect or 1) * field_width
    local box = {x0 = math.floor(x), y0 = math.floor(y), x1 = math.floor(x + field_width), y1 = math.floor(y + height)}
    canvas:image(axis.colored(field, low, high, style.colormap, kBad), box.x0, box.y0, box.x1, box.y1)
    overlays.draw(canvas, box, over[i])
    canvas:line({box.x0, box.y0, box.x1, box.y0, box.x1, box.y1, box.x0, box.y1, box.x0, box.y0}, 1.2, kSoft)
    if panel.title then canvas:text(box.x0, box.y0 - 13, panel.title, kLabel, kInk) end
    draw_bar(canvas, box.x1 + 16, box.y0, 16, box.y1 - box.y0, low, high, style.colormap, style.unit)
    draw_coordinates(canvas, panel, box, field:size(0), field:size(1), origin)
  end
  return canvas
end

local function draw_maps(path, panels, options)
  options = check_call("plot.maps", path, panels, options, "{{data = tensor, title = text}, ...}")
  check_options("plot", options, kMapOptions)
  local canvas = map_picture(panels, options)
  if canvas then save(canvas, path) end
end

-- ---- Points, histograms, films ------------------------------------------------------------------------------------

--- Colours mean the same in all frames: panels without a range have that of all panels at their place.
local function with_ranges(frames, options)
  local made = {}
  for f, panels in ipairs(frames) do
    made[f] = {}
    for i, panel in ipairs(panels) do
      local copy = {}
      for key, value in pairs(panel) do copy[key] = value end
      made[f][i] = copy
    end
  end
  for i, first in ipairs(made[1]) do
    if first.range == nil and options.range == nil then
      local together = {}
      for f, panels in ipairs(made) do together[f] = read_panel(panels[i], i, "upper") end
      local low, high = value_range(together, (first.colormap or options.colormap) == "diverging")
      for _, panels in ipairs(made) do panels[i].range = {low, high} end
    end
  end
  return made
end

local function draw_animation(path, frames, options)
  local op = "plot.animation"
  options = check_call(op, path, frames, options, "{{{data = tensor}}, ...}")
  local known = {"seconds", table.unpack(kMapOptions)}
  check_options(op, options, known)
  for i, panels in ipairs(frames) do
    if type(panels) ~= "table" or type(panels[1]) ~= "table" or #panels ~= #frames[1] then
      fail(("%s: frame %d is not a list of %s panels"):format(op, i, type(frames[1]) == "table" and #frames[1] or "1"))
    end
  end
  local seconds = arguments.number(op, "seconds", options.seconds or 0.2)
  if not (seconds > 0 and seconds <= 60) then fail(("%s: seconds is %s, expected 0 to 60"):format(op, seconds)) end
  local maps = {}
  for key, value in pairs(options) do maps[key] = key ~= "seconds" and value or nil end
  local pictures = {}
  for i, panels in ipairs(with_ranges(frames, maps)) do
    local canvas = map_picture(panels, maps)
    pictures[i] = canvas and canvas:picture()
  end
  if #pictures > 0 then animation.write(path, pictures, seconds) end
end

--- mh.plot.maps(path, panels, options = nil) -> nothing
---   Draws fields as coloured maps side by side into a PNG file, which rank 0 writes.
---   path        string      of the file
---   panels      {table}     {data, title, colormap, range, unit, x, y, arrows, contours}: data a tensor [rows,
---     columns], x and y the coordinates {first, last} of columns and rows, range which values the colours span: "row"
---     (panels of a row share it, the default), "own", {low, high}, or a name that panels share. arrows = {u, v, every,
---     color, scale} draws the velocity u to the right, v upwards, at every n-th cell, and of length 1 as `scale` cells
---     (the longest spans `every` if left out). contours = {data, levels, color, pen} draws lines of equal values of
---     data (the panel's if left out) at a list of levels, or at a number of them
---   options     table?      {title, columns, colormap, range, unit, aspect, origin = "lower"|"upper", size}
---   returns     nothing
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: data of another number of dims, or an unknown option
---   example
---     local field = mh.distribute_tensor(mh.rand{12, 8}, mesh, {mh.Shard(0)})
---     mh.plot.maps(folder .. "/maps.png", {{data = field, title = "field"}}, {unit = "K"})
---     mh.barrier()
---     mh.files.exists(folder .. "/maps.png")    --> true

--- mh.plot.animation(path, frames, options = nil) -> nothing
---   Draws maps one after another into an animated PNG file, which browsers show. Colours mean the same in all frames.
---   path        string      of the file
---   frames      {table}     lists of panels, as of mh.plot.maps, each as long as the first
---   options     table?      those of mh.plot.maps, and seconds that each frame is shown (0.2)
---   returns     nothing
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: frames with other numbers of panels, or an unknown option
---   example
---     local frames = {}
---     for step = 1, 3 do frames[step] = {{data = mh.ones{6, 8} * step}} end
---     mh.plot.animation(folder .. "/film.png", frames, {seconds = 0.1})
---     mh.barrier()
---     mh.files.exists(folder .. "/film.png")    --> true

--- mh.plot.scatter(path, series, options = nil) -> nothing
---   Draws points into a PNG file, which rank 0 writes.
---   path        string      of the file
---   series      {table}     {x, y, label, color}: lists or tensors of one size
---   options     table?      those of mh.plot.lines, and diagonal = true for the line y = x
---   returns     nothing
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: lists of different lengths, or an unknown option
---   example
---     mh.plot.scatter(folder .. "/points.png", {{x = mh.rand{20}, y = mh.rand{20}}}, {diagonal = true})
---     mh.barrier()
---     mh.files.exists(folder .. "/points.png")    --> true

--- mh.plot.histogram(path, series, options = nil) -> nothing
---   Draws how often values are within bins of equal width, which all series share, into a PNG file.
---   path        string      of the file
---   series      {table}     {values, label, color}: values a list, or a tensor of any shape; those that are not finite
---     do not count
---   options     table?      those of mh.plot.lines, and bins (40), range {low, high}, density = true for fractions
---     divided by the width
---   returns     nothing
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: no values, or an unknown option
---   example
---     mh.plot.histogram(folder .. "/values.png", {{values = mh.randn{100}}}, {bins = 10})
---     mh.barrier()
---     mh.files.exists(folder .. "/values.png")    --> true

--- mh.plot.lines(path, series, options = nil) -> nothing
---   Draws curves into a PNG file, which rank 0 writes.
---   path        string      of the file
---   series      {table}     {y, x, label, color, points, line, smooth}: y and x lists or tensors [n]; x is 0, 1, 2,
---     ... if left out; points draws a dot at each, line = false these alone; smooth draws the mean over this many
---     neighbours, with the values pale behind it
---   options     table?      {title, xlabel, ylabel, xscale = "linear"|"log", yscale = "linear"|"log", xrange, yrange,
---     size}
---   returns     nothing
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: lists of different lengths, or an unknown option
---   example
---     mh.plot.lines(folder .. "/loss.png", {{y = {1, 0.5, 0.25}, label = "train"}}, {yscale = "log", xlabel = "step"})
---     mh.barrier()
---     mh.files.exists(folder .. "/loss.png")    --> true
plot.lines, plot.maps = draw_lines, draw_maps
plot.animation = draw_animation
for name, draw in pairs(require "moonhalo.plot.points"({check_call = check_call, check_options = check_options,
    numbers = numbers, draw_lines = draw_lines, value_range = value_range})) do
  plot[name] = draw
end

return require("moonhalo.internal.strict").table("plot", plot)
