-- ranks: 1
local widths = {8, 16}
for width in widths do print(width) end
--[==[
for_list.lua:3: attempt to call a table value (for iterator 'for iterator')
  fix   for index, value in ipairs(list) do, or for key, value in pairs(table) do
  3 | for width in widths do print(width) end
]==]
