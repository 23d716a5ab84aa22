-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.from_tensors({u = mh.ones{8, 3, 3}}, {dims = {"time", "y", "x"}})
local loader = data:windows{inputs = {fields = {"u"}, steps = {0}}}:loader{batch = 2}
for batch in loader:batches() do print(batch.input) end
--[==[
batch_field.lua:5: batch: no field or method 'input'; did you mean 'inputs'?
  have  index, input_mask, inputs, mask, static, targets, times
  5 | for batch in loader:batches() do print(batch.input) end
]==]
