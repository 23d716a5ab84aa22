-- ranks: 1
local mh = require "moonhalo"
local nn = mh.nn
local blocks = nn.ModuleList{nn.Linear(2, 2), nn.Linear(2, 2)}
for i, block in ipairs(blocks) do print(i) end
--[==[
1
ipairs_modules.lua:5: ModuleList: no module 2 in a list of 2
  fix   positions count from 0; for i, module in list:each() do visits all (ipairs begins at 1)
  5 | for i, block in ipairs(blocks) do print(i) end
]==]
