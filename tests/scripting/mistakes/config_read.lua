-- ranks: 1
local mh = require "moonhalo"
local cfg = mh.config{optimizer = {lr = 1e-3}}
print(cfg.optimizer.learning_rate)
--[==[
config_read.lua:4: config: no key 'optimizer.learning_rate'
  have  lr
  fix   give it a default in mh.config, or test for it with rawget(cfg, key)
  4 | print(cfg.optimizer.learning_rate)
]==]
