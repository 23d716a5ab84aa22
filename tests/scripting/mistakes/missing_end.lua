-- ranks: 1
local mh = require "moonhalo"
for i = 1, 3 do
  if i > 1 then print(i)
end
--[==[
missing_end.lua:10: 'end' expected (to close 'for' at line 3) near <eof>
  fix   every function, if, for and while needs an end of its own; elseif is one word
]==]
