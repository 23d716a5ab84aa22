-- ranks: 1
local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = true})
local g = mh.autograd.grad(w:square():sum(), w)
--[==[
grad_python.lua:4: mh: no function or operator 'autograd'
  fix   mh.grad(outputs, inputs) and x:backward()
  4 | local g = mh.autograd.grad(w:square():sum(), w)
]==]
