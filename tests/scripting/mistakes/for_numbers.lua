-- ranks: 1
for i in 1, 10 do print(i) end
--[==[
for_numbers.lua:2: attempt to call a number value (for iterator 'for iterator')
  fix   for i = first, last do counts
  2 | for i in 1, 10 do print(i) end
]==]
