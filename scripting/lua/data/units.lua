-- SPDX-License-Identifier: Apache-2.0
-- Units that are spelt differently and are the same: "K" and "kelvin", "m s-1" and "m/s". Those of udunits that
-- archives mix; a string that is none of them stands for itself.

local units = {}

local kSymbol = {}
for symbol, names in pairs {
  K = "kelvin kelvins Kelvin degK deg_K degree_K degrees_K degreeK degreesK degree_kelvin degrees_kelvin",
  degC = "celsius Celsius degree_C degrees_C degreeC degreesC deg_C degree_celsius degrees_celsius degree_Celsius " ..
  "degrees_Celsius",
  m = "meter meters metre metres", s = "second seconds sec secs", h = "hour hours hr hrs", d = "day days",
  kg = "kilogram kilograms", g = "gram grams", mol = "mole moles", Pa = "pascal pascals Pascal",
  hPa = "hectopascal hectopascals mb mbar millibar millibars",
  J = "joule joules", W = "watt watts Watt", N = "newton newtons", ["%"] = "percent",
  km = "kilometer kilometers kilometre kilometres",
  mm = "millimeter millimeters millimetre millimetres", cm = "centimeter centimeters centimetre centimetres",
  degree = "degrees deg", rad = "radian radians"} do
  for name in names:gmatch("%S+") do kSymbol[name] = symbol end
end

--- Adds the factors of a product ("kg m-2") to `powers`, `sign` times. False for another text.
local function add_factors(product, sign, powers)
  for factor in product:gsub("[.*]", " "):gmatch("%S+") do
    local name, power = factor:match("^([%a_%%]+)([+-]?%d*)$")
    if name then
      name, power = kSymbol[name] or name, power == "" and 1 or tonumber(power)
      if not power then return false end
      powers[name] = (powers[name] or 0) + sign * power
    elseif factor ~= "1" then
      return false
    end
  end
  return true
end

--- A string that units which mean the same have in common.
function units.canonical(text)
  text = text or ""
  local plain, powers = text:gsub("%*%*", ""):gsub("%^", ""), {}
  local sign, count = 1, 0
  for product in (plain .. "/"):gmatch("([^/]*)/") do
    if product:match("^%s*$") and plain ~= "" or not add_factors(product, sign, powers) then return text end
    sign, count = -1, count + 1
  end
  local parts = {}
  for name, power in pairs(powers) do
    if power ~= 0 then parts[#parts + 1] = name .. power end
  end
  table.sort(parts)
  return #parts > 0 and table.concat(parts, " ") or text == "" and "" or "1"
end

return units
