-- SPDX-License-Identifier: Apache-2.0
-- Checks of fields that scripts may assign, for strict.class: each is function(value, self), which returns nothing for
-- a value that is right, else what is expected, and a remedy.

local mh = require "moonhalo"

local checks = {}

--- An integer of at least `least`, or any where that is nil.
function checks.integer(least, fix)
  local expected = least and ("an integer of at least %d"):format(least) or "an integer"
  return function(value)
    if math.type(value) ~= "integer" or (least and value < least) then return expected, fix end
  end
end

--- An integer of `least` to most(self).
function checks.integer_within(least, most, fix)
  return function(value, self)
    if math.type(value) ~= "integer" or value < least or value > most(self) then
      return ("an integer of %d to %d"):format(least, most(self)), fix
    end
  end
end

--- A number for which `is_right` is true; `expected` says which those are.
function checks.number(expected, is_right, fix)
  return function(value)
    if type(value) ~= "number" or not is_right(value) then return expected, fix end
  end
end

function checks.flag(fix)
  return function(value)
    if type(value) ~= "boolean" then return "true or false", fix end
  end
end

--- A check that lets nil pass, too.
function checks.optional(check)
  return function(value, self)
    if value ~= nil then return check(value, self) end
  end
end

--- A field that is written once, when the object is made: later assignments are errors. `fix`: how to have another
--- value.
function checks.fixed(name, fix)
  return function(_, self)
    if self[name] ~= nil then
      mh.fail(("%s: %s is fixed when the object is made\n  fix   %s"):format(getmetatable(self).__name, name, fix))
    end
  end
end

return checks
