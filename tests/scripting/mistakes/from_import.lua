-- ranks: 1
from moonhalo import nn
--[==[
from_import.lua:2: syntax error near 'moonhalo'
  fix   write local mh = require "moonhalo", local nn = mh.nn
  2 | from moonhalo import nn
]==]
