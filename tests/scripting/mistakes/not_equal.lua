-- ranks: 1
local a, b = 1, 2
if a != b then print("differ") end
--[==[
not_equal.lua:3: 'then' expected near '!'
  fix   unequal is ~= in Lua
  3 | if a != b then print("differ") end
]==]
