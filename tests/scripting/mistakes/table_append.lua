-- ranks: 1
local losses = {}
losses:append(0.5)
--[==[
table_append.lua:3: attempt to call a nil value (method 'append')
  fix   list[#list + 1] = value, or table.insert(list, value)
  3 | losses:append(0.5)
]==]
