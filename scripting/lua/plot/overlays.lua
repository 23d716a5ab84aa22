-- SPDX-License-Identifier: Apache-2.0
-- What mh.plot.maps draws over a map: arrows of a velocity, and contours.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local parts = require "moonhalo.plot.parts"

local fail = mh.fail
local overlays = {}

local function whole(op, what, x, shape, origin)
  arguments.tensor(op, what, x)
  local field = x:detach():full_tensor():cpu():double()
  if table.concat(field.shape, ", ") ~= shape then
    fail(("%s: %s has shape {%s}, the panel's data {%s}"):format(op, what, table.concat(field.shape, ", "), shape))
  end
  return origin == "lower" and field:flip{0} or field
end

local function check_keys(op, options, known)
  if not arguments.is_options(options) then fail(op .. ": expected a table, got " .. mh._describe(options)) end
  for key in pairs(options) do arguments.choice(op, "option", key, known) end
end

--- The overlays of a panel whose data have `shape`, gathered: all ranks call.
function overlays.read(panel, shape, origin)
  local found = {}
  if panel.arrows ~= nil then
    local op, given = "plot: arrows", panel.arrows
    check_keys(op, given, {"u", "v", "every", "color", "scale"})
    found.arrows = {u = whole(op, "u", given.u, shape, origin), v = whole(op, "v", given.v, shape, origin),
      color = given.color or parts.ink, scale = given.scale and arguments.number(op, "scale", given.scale)}
    local rows = found.arrows.u.shape
    found.arrows.every = arguments.count(op, "every", given.every or math.max(1, math.max(rows[1], rows[2]) // 24), 1)
  end
  if panel.contours ~= nil then
    local op, given = "plot: contours", panel.contours
    check_keys(op, given, {"data", "levels", "color", "pen"})
    local levels = given.levels or 6
    if type(levels) ~= "table" then arguments.count(op, "levels", levels, 1) end
    for i, one in ipairs(type(levels) == "table" and levels or {}) do
      arguments.number(op, "levels[" .. i .. "]", one)
    end
    found.contours = {data = whole(op, "data", given.data or panel.data, shape, origin), levels = levels,
      color = given.color or parts.ink, pen = given.pen and arguments.number(op, "pen", given.pen) or 1.4}
  end
  return found
end

local function draw_arrows(canvas, box, arrows)
  local rows, columns = arrows.u:size(0), arrows.u:size(1)
  local every = arrows.every
  local u, v = arrows.u:tolist(), arrows.v:tolist()
  local cell_x, cell_y = (box.x1 - box.x0) / columns, (box.y1 - box.y0) / rows
  local longest = 0
  for i = every // 2 + 1, rows, every do
    for j = every // 2 + 1, columns, every do
      local size = math.sqrt(u[i][j] ^ 2 + v[i][j] ^ 2)
      if size < math.huge then longest = math.max(longest, size) end
    end
  end
  -- The longest arrow spans the distance of two; with a scale one unit spans that many cells.
  local unit = arrows.scale and math.min(cell_x, cell_y) * arrows.scale
      or longest > 0 and 0.95 * every * math.min(cell_x, cell_y) / longest or 0
  for i = every // 2 + 1, rows, every do
    for j = every // 2 + 1, columns, every do
      local dx, dy = u[i][j] * unit, -v[i][j] * unit
      local length = math.sqrt(dx * dx + dy * dy)
      if length > 0.75 and length < math.huge then
        local x, y = box.x0 + (j - 0.5) * cell_x - dx / 2, box.y0 + (i - 0.5) * cell_y - dy / 2
        local head = math.min(7, 0.4 * length) / length
        canvas:line({x, y, x + dx, y + dy}, 1.5, arrows.color)
        canvas:line({x + dx - head * (dx + 0.55 * dy), y + dy - head * (dy - 0.55 * dx), x + dx, y + dy,
          x + dx - head * (dx - 0.55 * dy), y + dy - head * (dy + 0.55 * dx)}, 1.5, arrows.color)
      end
    end
  end
end

--- Values between the least and the largest, in equal steps.
local function levels_of(contours)
  if type(contours.levels) == "table" then return contours.levels end
  local good = contours.data:masked_select(contours.data:isfinite())
  if good:numel() == 0 then return {} end
  local low, high, list = good:min():item(), good:max():item(), {}
  for i = 1, contours.levels do list[i] = low + (high - low) * i / (contours.levels + 1) end
  return list
end

--- The points where the level crosses the sides of a square of values a b / c d, as fractions: up to four.
local function crossings(a, b, c, d, level)
  local list = {}
  local function side(p, q, x0, y0, x1, y1)
    if (p >= level) ~= (q >= level) then
      local t = (level - p) / (q - p)
      list[#list + 1] = {x0 + t * (x1 - x0), y0 + t * (y1 - y0)}
    end
  end
  side(a, b, 0, 0, 1, 0)
  side(b, d, 1, 0, 1, 1)
  side(d, c, 1, 1, 0, 1)
  side(c, a, 0, 1, 0, 0)
  -- A saddle: the mean says which corners are joined.
  if #list == 4 and ((a + b + c + d) / 4 >= level) == (a >= level) then list = {list[1], list[2], list[3], list[4]}
  elseif #list == 4 then list = {list[4], list[1], list[2], list[3]} end
  return list
end

local function draw_contours(canvas, box, contours)
  local rows, columns = contours.data:size(0), contours.data:size(1)
  local values = contours.data:tolist()
  local cell_x, cell_y = (box.x1 - box.x0) / columns, (box.y1 - box.y0) / rows
  for _, level in ipairs(levels_of(contours)) do
    for i = 1, rows - 1 do
      local upper, lower = values[i], values[i + 1]
      for j = 1, columns - 1 do
        local a, b, c, d = upper[j], upper[j + 1], lower[j], lower[j + 1]
        if a + b + c + d == a + b + c + d then
          local points = crossings(a, b, c, d, level)
          for k = 1, #points - 1, 2 do
            local p, q = points[k], points[k + 1]
            canvas:line({box.x0 + (j - 0.5 + p[1]) * cell_x, box.y0 + (i - 0.5 + p[2]) * cell_y,
              box.x0 + (j - 0.5 + q[1]) * cell_x, box.y0 + (i - 0.5 + q[2]) * cell_y}, contours.pen, contours.color)
          end
        end
      end
    end
  end
end

function overlays.draw(canvas, box, found)
  canvas:clip(box.x0, box.y0, box.x1, box.y1)
  if found.contours then draw_contours(canvas, box, found.contours) end
  if found.arrows then draw_arrows(canvas, box, found.arrows) end
  canvas:clip()
end

return overlays
