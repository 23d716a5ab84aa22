-- ranks: 1
local epoch = 3
if epoch > 5 then print("late")
elif epoch > 2 then print("middle") end
--[==[
elif.lua:4: syntax error near 'epoch'
  fix   write elseif condition then
  4 | elif epoch > 2 then print("middle") end
]==]
