local mh = require "moonhalo"
local cfg = mh.config{width = 8, steps = 10}
local net = mh.nn.Linear(cfg.widht, 4)
--[==[
unknown_setting.lua:3: config: no key 'widht'; did you mean 'width'?
  have  steps, width
  fix   give it a default in mh.config, or test for it with rawget(cfg, key)
  3 | local net = mh.nn.Linear(cfg.widht, 4)
]==]
