local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init() self.fc = nn.Linear(3, 2) end
function Net:forward(x) return self.fcc(x) end
local net = nn.Sequential(Net())
net(mh.ones{1, 3})
--[==[
unknown_field.lua:5: Net: no field 'fcc'; did you mean 'fc'?
  fix   assign it in init (self.fcc = nil will do), or test for it with module:has("fcc")
  in    0 (Net) of Sequential
  5 | function Net:forward(x) return self.fcc(x) end
stack traceback:
    unknown_field.lua:5: in function <unknown_field.lua:5>
    unknown_field.lua:7: in main chunk
]==]
