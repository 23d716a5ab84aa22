-- ranks: 1
local mh = require "moonhalo"
class Net(mh.nn.Module):
  pass
--[==[
class.lua:3: syntax error near 'Net'
  fix   write local Net = mh.nn.Module:extend("Net"), function Net:forward(x) ... end
  3 | class Net(mh.nn.Module):
]==]
