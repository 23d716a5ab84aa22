-- ranks: 1
local x = 3
local y = x > 2 ? 1 : 0
--[==[
single_tensor_bool.lua:3: unexpected symbol near '?'
  fix   Lua has no a ? b : c: write a and b or c, where b is neither nil nor false
  3 | local y = x > 2 ? 1 : 0
]==]
