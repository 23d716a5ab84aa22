-- ranks: 1
local epoch = 3
if epoch = 3 then print("third") end
--[==[
assign_in_if.lua:3: 'then' expected near '='
  fix   equal is == in Lua
  3 | if epoch = 3 then print("third") end
]==]
