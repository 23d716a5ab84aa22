-- ranks: 1
-- options: --set width=wide
local mh = require "moonhalo"
local cfg = mh.config{width = 4, lr = 1e-3}
--[==[
set_type.lua:4: config: 'width' is an integer, got 'wide'
  have  from --set width=wide (default 4)
  fix   give an integer
  4 | local cfg = mh.config{width = 4, lr = 1e-3}
]==]
