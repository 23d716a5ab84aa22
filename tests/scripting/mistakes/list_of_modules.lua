local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init() self.blocks = {nn.Linear(2, 2), nn.Linear(2, 2)} end
local net = Net()
--[==[
list_of_modules.lua:4: Net: 'blocks' is a plain list that holds modules; their parameters would not be trained
  fix   self.blocks = nn.ModuleList(list)
  4 | function Net:init() self.blocks = {nn.Linear(2, 2), nn.Linear(2, 2)} end
stack traceback:
    list_of_modules.lua:4: in method 'init'
    list_of_modules.lua:5: in main chunk
]==]
