-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.from_tensors({u = mh.ones{8, 3, 3}}, {dims = {"time", "y", "x"}})
local loader = data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{batch = 2}
for batch in loader do print(batch.inputs.shape) end
--[==[
for_loader.lua:5: attempt to call a Loader value (for iterator 'for iterator')
  fix   for batch in loader:batches() do
  5 | for batch in loader do print(batch.inputs.shape) end
]==]
