-- ranks: 1
local x = {1}
if not 3 in x then print(3) end
--[==[
not_in.lua:3: 'then' expected near 'in'
  fix   Lua has no in: look at each element, or keep a table {key = true}
  3 | if not 3 in x then print(3) end
]==]
