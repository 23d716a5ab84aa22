local mh = require "moonhalo"
local x = mh.arange(12):view(3, 4)
x[":, 0:2"] = mh.ones{3}
