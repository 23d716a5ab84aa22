-- SPDX-License-Identifier: Apache-2.0
-- What all pictures of mh.plot have in common: colours, sizes of text, checks of arguments, ticks.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local parts = {
  ink = "#1d2430", soft = "#5b6573", grid = "#e3e6ea", paper = "#ffffff",
  series = {"#2f6fb2", "#d9622b", "#2a9470", "#8c57a8", "#c23b57", "#8a6d3b", "#4aa8bf", "#6b7280"},
  -- Cap height of the text, in pixels, for a picture 1280 wide.
  title = 15, label = 12.5, tick = 11.5,
}

--- A list or a 1-D tensor as a list of numbers.
function parts.numbers(op, values)
  if mh.is_tensor(values) then return values:detach():to("float64"):reshape{-1}:tolist() end
  if type(values) ~= "table" then
    fail(op .. ": expected a list of numbers or a tensor, got " .. mh._describe(values))
  end
  return values
end

function parts.finite(value) return value == value and value ~= math.huge and value ~= -math.huge end

function parts.check_options(op, options, known)
  for key in pairs(options) do arguments.choice(op, "option", key, known) end
end

--- The options of lines(path, list, options) and maps(path, list, options).
function parts.check_call(op, path, list, options, wanted)
  if type(path) ~= "string" then fail(op .. ": the first argument is the file's name, got " .. mh._describe(path)) end
  mh._files.check_png_name(op, path)
  if type(list) ~= "table" or type(list[1]) ~= "table" then
    fail(("%s: the second argument is a list\n  fix   mh.%s(%q, %s, {title = ...})"):format(op, op, path, wanted))
  end
  return arguments.options(op, options)
end

function parts.save(canvas, path)
  mh.files.write_png(path, canvas:picture())
end

--- Text of a tick, {value, text, exponent}, at the point that `align` and the baseline fix. Returns nothing.
function parts.tick_text(canvas, x, y, tick, size, align)
  if not tick[2] then return end
  if not tick[3] then return canvas:text(x, y, tick[2], size, parts.soft, align) end
  local base, small = mh.text_width(tick[2], size), size * 0.72
  local width = base + 2 + mh.text_width(tick[3], small)
  local left = x - width * align
  canvas:text(left, y, tick[2], size, parts.soft)
  canvas:text(left + base + size * 0.22, y - size * 0.55, tick[3], small, parts.soft)
end

function parts.tick_width(tick, size)
  if not tick[2] then return 0 end
  return mh.text_width(tick[2], size) + (tick[3] and 2 + mh.text_width(tick[3], size * 0.72) or 0)
end

return parts
