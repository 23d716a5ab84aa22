-- ranks: 1
-- options: --set widht=8
local mh = require "moonhalo"
local cfg = mh.config{width = 4, lr = 1e-3}
--[==[
set_typo.lua:4: config: unknown key 'widht'; did you mean 'width'?
  have  from --set widht=8
  known lr, width
  4 | local cfg = mh.config{width = 4, lr = 1e-3}
]==]
