-- SPDX-License-Identifier: Apache-2.0
-- Pictures of one size as one animated PNG file (PNG specification, third edition): browsers show it.

local mh = require "moonhalo"

local animation = {}

local function chunk(kind, data)
  return string.pack(">I4", #data) .. kind .. data .. string.pack(">I4", mh._run.crc32(kind .. data))
end

--- The chunks {kind, data} of a PNG file.
local function chunks_of(path)
  local file <close> = assert(io.open(path, "rb"))
  local text, list, at = file:read("a"), {}, 9
  while at < #text do
    local length = string.unpack(">I4", text, at)
    list[#list + 1] = {text:sub(at + 4, at + 7), text:sub(at + 8, at + 7 + length)}
    at = at + 12 + length
  end
  return list
end

--- Writes the pictures, uint8 [height, width, 3], each shown for `seconds`, again and again.
function animation.write(path, pictures, seconds)
  local parts, number = {}, 0
  local function next_number()
    number = number + 1
    return string.pack(">I4", number - 1)
  end
  local own = path .. ".frame"
  for i, picture in ipairs(pictures) do
    mh.files.write_png(own, picture)
    for _, one in ipairs(chunks_of(own)) do
      local kind, data = one[1], one[2]
      if kind == "IHDR" and i == 1 then
        parts[#parts + 1] = chunk("IHDR", data) .. chunk("acTL", string.pack(">I4I4", #pictures, 0))
      end
      if kind == "IHDR" then
        parts[#parts + 1] = chunk("fcTL", next_number() .. string.pack(">I4I4I4I4I2I2I1I1", picture:size(1),
            picture:size(0), 0, 0, math.max(1, math.floor(seconds * 1000 + 0.5)), 1000, 0, 0))
      elseif kind == "IDAT" then
        parts[#parts + 1] = i == 1 and chunk("IDAT", data) or chunk("fdAT", next_number() .. data)
      end
    end
  end
  if not os.remove(own) then mh.fail("plot.animation: '" .. own .. "' cannot be removed") end
  mh._files.write("plot.animation", path, "\137PNG\r\n\26\n" .. table.concat(parts) .. chunk("IEND", ""))
end

return animation
