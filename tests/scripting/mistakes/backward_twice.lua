local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = true})
local loss = w:exp():sum()
loss:backward()
loss:backward()
--[==[
backward_twice.lua:5: backward: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad().
  fix   give the first of the two {retain_graph = true}: loss:backward{retain_graph = true}
  5 | loss:backward()
]==]
