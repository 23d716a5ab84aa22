-- ranks: 1
local epoch = 3
if epoch > 5 then print("late")
else if epoch > 2 then print("middle") end
--[==[
elseif_two_words.lua:9: 'end' expected (to close 'if' at line 3) near <eof>
  fix   every function, if, for and while needs an end of its own; elseif is one word
]==]
