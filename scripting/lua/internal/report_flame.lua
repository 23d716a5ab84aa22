-- SPDX-License-Identifier: Apache-2.0
-- The flame graph of a report: collapsed stacks ("rank 0;forward;conv 120", microseconds) as rows of SVG, callers above
-- what they call. A pointer over a part shows its whole name and time.

local mh = require "moonhalo"
local escaped = require("moonhalo.internal.report_page").escaped
local sorted_keys = require "moonhalo.internal.sorted_keys"

local kWidth, kHeight, kLeast, kLetter = 1320, 17, 0.6, 6  -- pixels: of the graph, a row, what is drawn, a letter

--- The tree of the stacks: {time, parts = {name -> the same}}.
local function tree_of(stacks)
  local root = {time = 0, parts = {}}
  for names, text in stacks:gmatch("([^\n]*) (%d+)\n") do
    local node, time = root, tonumber(text)
    node.time = node.time + time
    for name in names:gmatch("[^;]+") do
      node.parts[name] = node.parts[name] or {time = 0, parts = {}}
      node = node.parts[name]
      node.time = node.time + time
    end
  end
  return root
end

local function label(name, width)
  local letters = (width - 4) // kLetter
  local count = utf8.len(name) or #name
  if count <= letters then return name end
  return letters >= 4 and (name:sub(1, (utf8.offset(name, letters - 1) or letters) - 1) .. "..") or ""
end

--- The colour of a name, the same in all graphs: yellow to red.
local function color(name) return ("hsl(%d,80%%,70%%)"):format(10 + mh._run.crc32c(name) % 45) end

--- Draws the parts of a node from `x` on. Returns the number of rows.
local function draw(out, node, x, depth, scale, total)
  local rows = depth
  for _, name in ipairs(sorted_keys(node.parts)) do
    local part = node.parts[name]
    local width = part.time * scale
    if width >= kLeast then
      local text = label(name, width)
      out[#out + 1] = ('<g><title>%s: %.3f ms, %.1f %%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" '
        .. 'fill="%s"/>%s</g>\n'):format(escaped(name), part.time / 1000, part.time / total * 100, x, depth * kHeight,
        width, kHeight - 1, color(name), text == "" and "" or ('<text x="%.1f" y="%d">%s</text>'):format(x + 2,
          depth * kHeight + 12, escaped(text)))
      rows = math.max(rows, draw(out, part, x, depth + 1, scale, total))
    end
    x = x + width
  end
  return rows
end

return function(stacks)
  local root, out = tree_of(stacks), {}
  if root.time == 0 then return "" end
  local rows = draw(out, root, 0, 0, kWidth / root.time, root.time)
  return ('<svg class="flame" viewBox="0 0 %d %d" role="img">\n%s</svg>\n'):format(kWidth, math.max(rows, 1) * kHeight,
    table.concat(out))
end
