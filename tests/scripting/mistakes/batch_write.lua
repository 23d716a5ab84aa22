-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.from_tensors({u = mh.ones{8, 3, 3}}, {dims = {"time", "y", "x"}})
local set = data:windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}
local function noisy(batch)
  batch.input = batch.inputs + 0.1
  return batch
end
for batch in set:loader{batch = 2, transform = noisy}:batches() do print(batch.inputs.shape) end
--[==[
batch_write.lua:6: batch: no field 'input' to write; did you mean 'inputs'?
  have  index, input_mask, inputs, mask, static, targets, times
  fix   keep what is yours in a variable of your own
  6 |   batch.input = batch.inputs + 0.1
]==]
