local mh = require "moonhalo"
local Net = mh.nn.Module:extend("Net")
function Net:init() self.fc = mh.nn.Linear(3, 1) end
function Net.forward(x) return self.fc(x) end
Net()(mh.ones{1, 3})
--[==[
self_with_dot.lua:4: no variable 'self'
  have  a function without a colon in its name
  fix   write function Class:method(...), which has self, for function Class.method(...)
  in    Net
  4 | function Net.forward(x) return self.fc(x) end
stack traceback:
    self_with_dot.lua:4: in function <self_with_dot.lua:4>
    self_with_dot.lua:5: in main chunk
]==]
