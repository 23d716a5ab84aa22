-- ranks: 1
import moonhalo as mh
--[==[
import.lua:2: syntax error near 'moonhalo'
  fix   write local mh = require "moonhalo"
  2 | import moonhalo as mh
]==]
