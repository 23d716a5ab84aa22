-- ranks: 1
local losses = {1, 2, 3}
print(len(losses))
--[==[
python_len.lua:3: no variable 'len'
  fix   #list is the length of a list or a string, x:size(0) that of a tensor
  3 | print(len(losses))
]==]
