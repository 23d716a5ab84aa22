-- ranks: 1
-- options: lr=1 width=3
-- status: 2
local mh = require "moonhalo"
--[==[
moonhalo: run: 'lr=1' is neither an option nor behind --
  have  lr=1
  fix   give --set lr=1 to mh.config, or put -- before it: arg[1] of the script
]==]
