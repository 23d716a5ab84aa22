-- ranks: 1
local mh = require "moonhalo"
local state = mh.safetensors.load("load_pt.lua")
--[==[
load_pt.lua:3: safetensors: 'load_pt.lua' is not a safetensors file
  3 | local state = mh.safetensors.load("load_pt.lua")
]==]
