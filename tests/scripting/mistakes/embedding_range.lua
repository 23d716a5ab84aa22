-- ranks: 1
local mh = require "moonhalo"
local y = mh.nn.Embedding(10, 4)(mh.tensor{3, 10})
--[==[
embedding_range.lua:3: embedding: index out of range in self
  call  embedding(Tensor float32 [10, 4], Tensor int64 [2], -1)
  fix   indices count from 0 to the size of the dim minus 1: nn.Embedding(n, ...) has rows 0 to n - 1
  in    Embedding
  3 | local y = mh.nn.Embedding(10, 4)(mh.tensor{3, 10})
]==]
