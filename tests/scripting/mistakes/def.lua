-- ranks: 1
local mh = require "moonhalo"
def train(net):
  return net
--[==[
def.lua:3: syntax error near 'train'
  fix   write function name(x) ... end
  3 | def train(net):
]==]
