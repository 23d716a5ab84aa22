-- ranks: 1
local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = True})
--[==[
python_true.lua:3: no variable 'True'
  fix   the word is true in Lua
  3 | local w = mh.ones({3}, {requires_grad = True})
]==]
