-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2, {bias = False})
--[==[
python_false.lua:3: no variable 'False'
  fix   the word is false in Lua
  3 | local net = mh.nn.Linear(3, 2, {bias = False})
]==]
