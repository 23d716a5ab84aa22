-- SPDX-License-Identifier: Apache-2.0
-- Scales, ticks and colour maps of mh.plot.

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local axis = {}

--- The round step closest to `required` ticks over the span.
local function nice_step(span, wanted)
  local raw = span / wanted
  local power = 10.0 ^ math.floor(math.log(raw, 10))
  local best, nearest
  for _, factor in ipairs {1, 2, 2.5, 5, 10} do
    local off = math.abs(math.log(factor * power / raw))
    if not nearest or off < nearest then best, nearest = factor * power, off end
  end
  return best
end

local function decimals_of(step)
  for decimals = 0, 10 do
    local scaled = step * 10.0 ^ decimals
    if math.abs(scaled - math.floor(scaled + 0.5)) < 1e-6 * math.max(scaled, 1) then return decimals end
  end
  return 10
end

local function minus(text) return (text:gsub("^%-", "\u{2212}")) end

local function label_of(value, step)
  local largest = math.max(math.abs(value), step)
  if value == 0 then return "0" end
  if largest >= 1e5 or step < 1e-4 then
    local exponent = math.floor(math.log(math.abs(value), 10) + 1e-9)
    local mantissa = value / 10.0 ^ exponent
    local text = ("%.3g"):format(mantissa)
    return minus(text) .. "e" .. minus(tostring(exponent))
  end
  return minus(("%." .. decimals_of(step) .. "f"):format(value))
end

--- Ticks of a linear scale within [low, high]: a list of {value, text}.
function axis.linear_ticks(low, high, wanted)
  local step = nice_step(high - low, wanted)
  local ticks = {}
  for i = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) do
    ticks[#ticks + 1] = {i * step, label_of(i * step, step)}
  end
  return ticks
end

local kLeastPlain, kMostPlain = -3, 4  -- exponents of powers that are written as 0.001 to 10000

--- Ticks of a logarithmic scale: powers of ten, as numbers or, where some are very small or large, as {value, "10",
--- exponent}, and between them values without text; over less than two decades 1, 2 and 5 times a power with their
--- numbers, over less than one round numbers.
function axis.log_ticks(low, high)
  if high / low < 6 then return axis.linear_ticks(low, high, 6) end
  local first, last = math.floor(math.log(low, 10) + 1e-9), math.ceil(math.log(high, 10) - 1e-9)
  local ticks, short = {}, math.log(high / low, 10) < 1.7
  local every = math.max(1, math.ceil((last - first) / 8))
  local plain = math.ceil(math.log(low, 10) - 1e-9) >= kLeastPlain and math.log(high, 10) < kMostPlain + 1
  for exponent = first, last do
    for factor = 1, 9 do
      local value = factor * 10.0 ^ exponent
      if value >= low * (1 - 1e-9) and value <= high * (1 + 1e-9) then
        if short or plain then
          local shown = factor == 1 or short and (factor == 2 or factor == 5)
          ticks[#ticks + 1] = {value, shown and minus(("%.6g"):format(value)) or nil}
        elseif factor == 1 and exponent % every == 0 then
          ticks[#ticks + 1] = {value, "10", minus(tostring(exponent))}
        elseif every == 1 then
          ticks[#ticks + 1] = {value}
        end
      end
    end
  end
  return ticks
end

--- Ticks at these values within [low, high], with their numbers; what would be over the text before has none.
--- `place(value)` and `width(text)` are in pixels.
function axis.given_ticks(values, low, high, place, width)
  local sorted, ticks, last = {}, {}, math.huge
  for _, value in ipairs(values) do
    if value >= low and value <= high then sorted[#sorted + 1] = value end
  end
  table.sort(sorted, function(a, b) return a > b end)  -- the largest one is the most important
  for _, value in ipairs(sorted) do
    local text = minus(("%.6g"):format(value))
    local half = width(text) / 2
    local fits = place(value) + half < last - 10
    table.insert(ticks, 1, {value, fits and text or nil})
    if fits then last = place(value) - half end
  end
  return ticks
end

--- The range to show for values in [low, high]: with a margin, or down to full ticks on a log scale.
function axis.range(low, high, scale)
  if scale == "log" then
    if low == high then return low / 2, high * 2 end
    local margin = (high / low) ^ 0.05
    return low / margin, high * margin
  end
  if low == high then
    local half = low == 0 and 1 or math.abs(low) * 0.1
    return low - half, high + half
  end
  local margin = (high - low) * 0.04
  return low - margin, high + margin
end

--- Smallest and largest finite values of tensors; those of a diverging map are centred on zero.
function axis.range_of(fields, centred)
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

--- A function from values to [0, 1].
function axis.scale(low, high, kind)
  if kind == "log" then
    local a, b = math.log(low), math.log(high)
    return function(value) return value > 0 and (math.log(value) - a) / (b - a) or 0 / 0 end
  end
  return function(value) return (value - low) / (high - low) end
end

-- ---- Colour maps --------------------------------------------------------------------------------------------------

--- Colours at equal distances; between them they are mixed in linear light.
local kAnchors = {
  viridis = {"#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"},
  diverging = {"#14306b", "#2c5fa8", "#6aa3d2", "#b9d7e9", "#f5f4f1", "#f3c7ae", "#dd8163", "#b33a3c", "#6d1126"},
  heat = {"#fdfbf0", "#f9e2ac", "#f5bd6f", "#ec9050", "#d85d4a", "#b2324f", "#7c1c55", "#451448"},
  gray = {"#111111", "#f7f7f7"},
}

function axis.colormap_names() return sorted_keys(kAnchors) end

local function rgb_of(text)
  local color = {}
  for c = 1, 3 do color[c] = tonumber(text:sub(2 * c, 2 * c + 1), 16) / 255 end
  return color
end

local table_of_colours = {}

--- uint8 [256, 3].
function axis.colormap(name)
  local anchors = kAnchors[name]
  if not anchors then
    mh.fail("plot: unknown colormap '" .. tostring(name) .. "'"
        .. mh.did_you_mean(tostring(name), axis.colormap_names())
      .. "\n  have  " .. table.concat(axis.colormap_names(), ", "))
  end
  if table_of_colours[name] then return table_of_colours[name] end
  local rows = {}
  for i = 0, 255 do
    local place = i / 255 * (#anchors - 1)
    local left = math.min(math.floor(place), #anchors - 2)
    local a, b, part = rgb_of(anchors[left + 1]), rgb_of(anchors[left + 2]), place - left
    rows[i + 1] = {}
    for c = 1, 3 do
      local linear = a[c] ^ 2.2 * (1 - part) + b[c] ^ 2.2 * part
      rows[i + 1][c] = math.floor(linear ^ (1 / 2.2) * 255 + 0.5)
    end
  end
  table_of_colours[name] = mh.tensor(rows, {dtype = "uint8", device = "cpu"})
  return table_of_colours[name]
end

--- Field [rows, columns] to uint8 [rows, columns, 3]; NaN is `bad`.
function axis.colored(field, low, high, name, bad)
  local part = ((field - low) / (high - low)):clamp(0, 1)
  local index = (part:nan_to_num(0.0) * 255):round():to("int64")
  local colors = axis.colormap(name):index_select(0, index:reshape{-1}):reshape{field:size(0), field:size(1), 3}
  local missing = field:isnan():unsqueeze(-1)
  local gray = rgb_of(bad)
  local fill = mh.tensor({math.floor(gray[1] * 255), math.floor(gray[2] * 255), math.floor(gray[3] * 255)},
    {dtype = "uint8", device = "cpu"})
  return mh.where(missing, fill, colors)
end

return axis
