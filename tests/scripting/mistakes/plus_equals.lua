local total = 0
for i = 1, 3 do
  total += i
end
--[==[
plus_equals.lua:3: syntax error near '+'
  fix   Lua has no +=: write a = a + b
  3 |   total += i
]==]
