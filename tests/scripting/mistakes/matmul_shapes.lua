local mh = require "moonhalo"
local a, b = mh.ones{2, 3}, mh.ones{2, 3}
local c = a:matmul(b)
--[==[
matmul_shapes.lua:3: matmul: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)
  call  matmul(Tensor float32 [2, 3], Tensor float32 [2, 3])
  fix   the last dim of the first must be the first dim of the second (a layer's in_features); x.mT turns a matrix
  3 | local c = a:matmul(b)
]==]
