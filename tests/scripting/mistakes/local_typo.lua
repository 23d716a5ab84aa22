-- ranks: 1
local mh = require "moonhalo"
lokal x = mh.ones{2}
--[==[
local_typo.lua:3: syntax error near 'x'; did you mean 'local'?
  3 | lokal x = mh.ones{2}
]==]
