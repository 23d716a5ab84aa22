-- SPDX-License-Identifier: Apache-2.0
-- Numbers of bytes as users write them: "512MiB", "6 GB", or a number.

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local byte_sizes = {}

local kUnits = {B = 1, kB = 1000, MB = 1000 ^ 2, GB = 1000 ^ 3, TB = 1000 ^ 4, KiB = 1 << 10, MiB = 1 << 20,
  GiB = 1 << 30, TiB = 1 << 40}

--- The bytes that `value` says, or an error. `what`: which setting it is, "loader: memory".
function byte_sizes.read(what, value)
  if type(value) == "number" and value >= 0 and value < 2.0 ^ 62 then return math.floor(value) end
  local number, unit = (type(value) == "string" and value or ""):match("^%s*([%d.]+)%s*(%a*)%s*$")
  local factor = kUnits[unit == "" and "B" or unit]
  if not tonumber(number) or not factor then
    mh.fail(("%s is %s\n  have  units %s\n" ..
      "  fix   write it as \"512MiB\" or \"2 GiB\", or as a number of bytes"):format(what,
      type(value) == "string" and "'" .. value .. "'" or mh._describe(value), table.concat(sorted_keys(kUnits), ", ")))
  end
  return math.floor(tonumber(number) * factor)
end

return byte_sizes
