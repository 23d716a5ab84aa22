-- ranks: 1
local mh = require "moonhallo"
--[==[
require_misspelt.lua:2: module 'moonhallo' not found; did you mean 'moonhalo'?
  2 | local mh = require "moonhallo"
]==]
