local mh = require "moonhalo"
local x = mh.ones{4, 3}
local y = x:sum{axes = 0}
--[==[
operator_option.lua:3: sum: no overload fits the arguments
  have  sum(Tensor float32 [4, 3], axes = 0)
  takes aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
        has no argument 'axes'
  takes aten::sum.dim_DimnameList(Tensor self, str[1] dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
        has no argument 'axes'; did you mean 'axis'?
  takes aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
        has no argument 'axes'; did you mean 'axis'?
  3 | local y = x:sum{axes = 0}
]==]
