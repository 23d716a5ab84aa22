-- ranks: 1
local mh = require "moonhalo"
local x = None
--[==[
python_none.lua:3: no variable 'None'
  fix   the word is nil in Lua
  3 | local x = None
]==]
