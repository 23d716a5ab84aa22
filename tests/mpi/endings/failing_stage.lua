-- The second stage of a pipeline fails by itself in the third micro-batch, while the others send, compute and wait.
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {3}, {"pp"})
local Valve = nn.Module:extend("Valve")
function Valve:init() self.calls, self.mix = 0, nn.Linear(200, 200) end
function Valve:forward(x)
  self.calls = self.calls + 1
  if self.calls == 3 then error("the valve is stuck") end
  return self.mix(x)
end
local pipe = mh.pipeline({nn.Linear(200, 200), Valve(), nn.Linear(200, 200)}, {mesh = mesh, micros = 8})
local samples = {}
for i = 1, 8 do samples[i] = mh.randn(200, 200) end
mh.barrier()
io.stderr:write("all ranks work\n")
pipe:train_step(samples, function(y) return y:square():mean() end)
