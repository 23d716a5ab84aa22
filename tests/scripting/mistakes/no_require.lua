-- ranks: 1
local net = mh.nn.Linear(3, 2)
--[==[
no_require.lua:2: no variable 'mh'
  fix   begin the script with local mh = require "moonhalo"
  2 | local net = mh.nn.Linear(3, 2)
]==]
