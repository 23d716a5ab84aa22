-- ranks: 1
local step = 3
print("step " + step)
--[==[
string_plus.lua:3: attempt to add a 'string' with a 'number'
  fix   .. joins strings: "step " .. step; tonumber(text) is the number that a string shows
  3 | print("step " + step)
]==]
