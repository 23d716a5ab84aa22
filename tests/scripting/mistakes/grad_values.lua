-- ranks: 1
local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = true})
local g = table.unpack(mh.grad(w:square():sum(), {w}))
--[==[
grad_values.lua:4: table.unpack: expected a list, got Tensor float32 [3]
  fix   mh.grad and other functions return their tensors one by one: local a, b = mh.grad(y, {u, v}); x:unbind() is the list of a tensor's rows
  4 | local g = table.unpack(mh.grad(w:square():sum(), {w}))
]==]
