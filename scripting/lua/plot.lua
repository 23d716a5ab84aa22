-- SPDX-License-Identifier: Apache-2.0
-- Pictures of a run, as PNG. All ranks call, rank 0 writes; ShardTensors are gathered.
--   mh.plot.lines("loss.png", {{y = losses, label = "train"}}, {yscale = "log", xlabel = "step", ylabel = "loss"})
--   mh.plot.maps("maps.png", {{data = truth, title = "truth"}, {data = error, colormap = "diverging"}}, {unit = "K"})
-- A series: y, x (without it 0, 1, 2, ...), label, color, points (a dot at each), line (false for points alone), smooth
-- (the mean over this many neighbours is drawn, the values stay behind it in pale). Lines: title, xlabel, ylabel,
-- xscale, yscale ("linear" or "log"), xrange, yrange, size {width, height}, xticks (a list).
-- A panel: data, title, colormap, range, unit, x and y (the coordinates {first, last} of the columns and rows). Maps:
-- title, columns, colormap, range, unit, aspect (height of a cell over its width), origin ("lower" or "upper": where
-- row 0 is), size {width}, xlabel, ylabel.
-- A range, of a panel or of all, says which values the colours span: "row" (the default: those of all panels of the row
-- that have the same colormap and unit, so that equal colours are equal values), "own" (the panel's), {low, high}, or
-- another name: all panels of that name share a range.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local animation = require "moonhalo.plot.animation"
local axis = require "moonhalo.plot.axis"
local lines = require "moonhalo.plot.lines"
local overlays = require "moonhalo.plot.overlays"
local parts = require "moonhalo.plot.parts"
local points = require "moonhalo.plot.points"

local fail = mh.fail
local kInk, kSoft, kPaper, kBad = parts.ink, parts.soft, parts.paper, "#b9bdc3"
local kTitle, kLabel, kTick = parts.title, parts.label, parts.tick
local check_call, check_options, save, tick_text = parts.check_call, parts.check_options, parts.save, parts.tick_text

local plot = {}

-- ---- Maps ---------------------------------------------------------------------------------------------------------

local kPanelOptions = {"data", "title", "colormap", "range", "unit", "x", "y", "arrows", "contours"}
local kMapOptions = {"title", "columns", "colormap", "unit", "range", "aspect", "origin", "size",
  "xlabel", "ylabel"}

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
  return axis.range_of(together, style.colormap == "diverging")
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

--- Draws the names of the coordinates below and left of a map.
local function draw_labels(canvas, box, options, with_x, with_y)
  if options.xlabel then
    local base = box.y1 + kTick + (with_x and 35 or 11)
    canvas:text((box.x0 + box.x1) / 2, base, options.xlabel, kTick, kInk, 0.5)
  end
  if options.ylabel then
    canvas:text(box.x0 - (with_y and 50 or 10), (box.y0 + box.y1) / 2, options.ylabel, kTick, kInk, 0.5, true)
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
  local left, right, top, gap = (with_y and 48 or 10) + (options.ylabel and 24 or 0), 84, 46, 20
  local cell_width = (width - gap * (columns + 1)) / columns
  local field_width = cell_width - left - right
  local tallest = 0
  for _, field in ipairs(fields) do
    tallest = math.max(tallest, field:size(0) / field:size(1) * (options.aspect or 1) * field_width)
  end
  local bottom = (with_x and 40 or 14) + (options.xlabel and 24 or 0)
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
    draw_labels(canvas, box, options, with_x, with_y)
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

--- Colours mean the same in all frames: panels without a range have that of all panels at their place. Data are
--- gathered once, here.
local function with_ranges(frames, options)
  local made = {}
  for f, panels in ipairs(frames) do
    made[f] = {}
    for i, panel in ipairs(panels) do
      local copy = {}
      for key, value in pairs(panel) do copy[key] = value end
      copy.data = read_panel(panel, i, "upper")
      made[f][i] = copy
    end
  end
  for i, first in ipairs(made[1]) do
    if first.range == nil and options.range == nil then
      local together = {}
      for f, panels in ipairs(made) do together[f] = panels[i].data end
      local low, high = axis.range_of(together, (first.colormap or options.colormap) == "diverging")
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
---   options     table?      {title, columns, colormap, range, unit, aspect, origin = "lower"|"upper", size, xlabel,
---     ylabel}
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
---   options     table?      those of mh.plot.lines, and bins (40, at most 10000), range {low, high}, density = true
---     for fractions divided by the width
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
---     size, xticks: the values of x that have a tick}
---   returns     nothing
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: lists of different lengths, or an unknown option
---   example
---     mh.plot.lines(folder .. "/loss.png", {{y = {1, 0.5, 0.25}, label = "train"}}, {yscale = "log", xlabel = "step"})
---     mh.barrier()
---     mh.files.exists(folder .. "/loss.png")    --> true
plot.lines, plot.maps, plot.animation = lines.draw, draw_maps, draw_animation
plot.scatter, plot.histogram = points.scatter, points.histogram

return require("moonhalo.internal.strict").table("plot", plot)
