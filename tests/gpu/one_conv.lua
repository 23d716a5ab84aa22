-- SPDX-License-Identifier: Apache-2.0
-- One convolution, forward and backward, on blocks of rows and on a plain tensor of the same device; prints "equal" or
-- ends in an error.
local mh = require "moonhalo"

local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"rows"})
mh.manual_seed(3)
local x = mh.randn({2, 3, 17, 12}, {dtype = "float64"}):to(mesh.device)
local net = mh.nn.Conv2d(3, 5, 3, {padding = 1}):to("float64"):to(mesh.device)

local function outcome(input)
  net:zero_grad()
  local y = net(input)
  y:square():mean():backward()
  local grad = net.weight.grad
  return y:detach(), grad:clone()
end
local plain, plain_grad = outcome(x)
local cut, cut_grad = outcome(mh.distribute_tensor(x, mesh, {mh.Shard(2)}))
if cut.full_tensor then cut = cut:full_tensor() end
local function difference(a, b) return (a - b):abs():max():item() end
local d, dg = difference(cut, plain), difference(cut_grad.full_tensor and cut_grad:full_tensor() or cut_grad,
    plain_grad)
assert(d < 1e-10 and dg < 1e-10, ("blocks differ from the plain tensor: output by %.1e, gradient by %.1e"):format(d,
    dg))
if mh.rank() == 0 then
  print(("equal: output to %.1e, gradient to %.1e, on %s"):format(d, dg, tostring(mesh.device)))
end
