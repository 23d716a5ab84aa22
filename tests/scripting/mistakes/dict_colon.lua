-- ranks: 1
local mh = require "moonhalo"
local settings = {"lr": 1e-3}
--[==[
dict_colon.lua:3: '}' expected near ':'
  fix   a table is written {name = value} in Lua
  3 | local settings = {"lr": 1e-3}
]==]
