-- options: --rank 3
-- ranks: 1
-- status: 2
local mh = require "moonhalo"
--[==[
moonhalo: run: no option '--rank'; did you mean '--ranks' or '--run'?
  have  --rank
  fix   moonhalo run --help lists the options
]==]
