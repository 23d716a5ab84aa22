-- ranks: 1
for width in {8, 16} do print(width) end
--[==[
for_braces.lua:2: attempt to call a table value (for iterator 'for iterator')
  fix   for index, value in ipairs(list) do, or for key, value in pairs(table) do
  2 | for width in {8, 16} do print(width) end
]==]
