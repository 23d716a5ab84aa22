-- ranks: 1
local mh = require "moonhalo"
local y = mh.ones{2, 3, 4}:sum(0, 2)
--[==[
sum_two_dims.lua:3: sum: no overload fits the arguments
  have  sum(Tensor float32 [2, 3, 4], 0, 2)
  takes aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
        has fewer parameters
  takes aten::sum.dim_DimnameList(Tensor self, str[1] dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
        argument 'dim' needs str[1], got 0
  takes aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
        argument 'keepdim' needs bool, got 2
  fix   give several numbers as a list: {0, 2}
  3 | local y = mh.ones{2, 3, 4}:sum(0, 2)
]==]
