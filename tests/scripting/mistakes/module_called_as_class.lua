-- ranks: 1
local mh = require "moonhalo"
local y = mh.nn.ReLU(mh.ones{3})
print(y:sum())
--[==[
module_called_as_class.lua:3: ReLU: 1 argument, none is taken
  have  ReLU()
  fix   make the layer first, then call it: nn.ReLU()(x)
  3 | local y = mh.nn.ReLU(mh.ones{3})
]==]
