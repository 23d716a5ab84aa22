-- ranks: 1
local loss = 0.5
print(f"loss {loss}")
--[==[
python_fstring.lua:3: no variable 'f'
  fix   Lua has no f"...": write ("loss %g"):format(loss); or assign a variable f first
  3 | print(f"loss {loss}")
]==]
