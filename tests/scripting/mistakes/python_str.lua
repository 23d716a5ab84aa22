-- ranks: 1
local loss = 0.5
print("loss " .. str(loss))
--[==[
python_str.lua:3: no variable 'str'
  fix   tostring(x)
  3 | print("loss " .. str(loss))
]==]
