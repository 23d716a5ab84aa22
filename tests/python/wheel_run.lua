-- Two ranks of the program of a wheel: a step on a field that is cut, beside the same on one plain tensor.
local mh = require "moonhalo"

local mesh = mh.init_device_mesh("cpu", {2})
local function step(x)
  mh.manual_seed(1)
  local net = mh.nn.Conv2d(3, 3, 3, {padding = 1}):to(mh.float64)
  local loss = mh.nn.functional.mse_loss(net(x), x)
  loss:backward()
  return loss:item(), net.weight.grad
end
mh.manual_seed(0)
local whole = mh.randn({1, 3, 13, 8}, {dtype = mh.float64})
local found, gradient = step(mh.distribute_tensor(whole, mesh, {mh.Shard(3)}))
local plain, wanted = step(whole)
assert(math.abs(found - plain) < 1e-12 and mh.allclose(gradient, wanted))
print(string.format("rank %d of %d trained", mh.rank(), mh.world_size()))
