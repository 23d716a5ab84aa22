-- ranks: 1
local x = nil
if x is nil then print("none") end
--[==[
is_none.lua:3: 'then' expected near 'is'
  fix   write x == nil, x ~= nil
  3 | if x is nil then print("none") end
]==]
