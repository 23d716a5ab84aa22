local mh = require "moonhalo"
local x = mh.ones{2, 3}
print(x:sum(dim=0))
--[==[
keyword_argument.lua:3: ')' expected near '='
  fix   give named arguments in a table behind the others: f(x, {dim = 0})
  3 | print(x:sum(dim=0))
]==]
