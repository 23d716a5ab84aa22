-- ranks: 1
local step = 3
print("step " + step)
--[==[
string_plus.lua:3: attempt to add a 'string' with a 'number'
  fix   .. joins texts: "step " .. step; tonumber(text) is the number that a text shows
  3 | print("step " + step)
]==]
