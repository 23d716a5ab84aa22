-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.from_tensors({u = mh.ones{8, 3, 3}}, {dims = {"time", "y", "x"}})
local set = data:windows{inputs = {fields = {"u"}, steps = {0}}}
print(set[0])
--[==[
set_index.lua:5: Windows: no field or method 0
  have  at, count, data, dropped, every, fields, gaps, high, inputs, loader, low, name, pieces, split, starts, static, statistics, targets, time
  fix   samples come in batches: for batch in set:loader{batch = 1}:batches() do
  5 | print(set[0])
]==]
