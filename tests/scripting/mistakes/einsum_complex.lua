-- ranks: 1
local mh = require "moonhalo"
local w = mh.ones({3, 2}, {dtype = "complex64"})
local y = mh.einsum("ij,jk->ik", mh.ones{4, 3}, w)
--[==[
einsum_complex.lua:4: einsum: expected scalar type Float but found ComplexFloat
  call  einsum('ij,jk->ik', Tensor float32 [4, 3], Tensor complex64 [3, 2])
  fix   make the other complex, too: x:to("complex64")
  4 | local y = mh.einsum("ij,jk->ik", mh.ones{4, 3}, w)
]==]
