-- ranks: 1
local mh = require "moonhalo"
with mh.no_grad():
  local y = mh.ones{2}
--[==[
with_no_grad.lua:3: syntax error near 'mh'
  fix   a block is a function: mh.no_grad(function() ... end), mh.autocast(dtype, function() ... end)
  3 | with mh.no_grad():
]==]
