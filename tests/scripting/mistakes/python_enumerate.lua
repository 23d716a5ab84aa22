-- ranks: 1
local list = {1, 2}
for i, v in enumerate(list) do print(i, v) end
--[==[
python_enumerate.lua:3: no variable 'enumerate'
  fix   for i, value in ipairs(list) do, from 1; for i, row in x:iter() do, from 0
  3 | for i, v in enumerate(list) do print(i, v) end
]==]
