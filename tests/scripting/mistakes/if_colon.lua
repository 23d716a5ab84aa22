-- ranks: 1
local epoch = 3
if epoch > 2:
  print("late")
--[==[
if_colon.lua:3: 'then' expected near ':'
  fix   write if condition then ... end
  3 | if epoch > 2:
]==]
