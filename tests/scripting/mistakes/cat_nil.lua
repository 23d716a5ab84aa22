-- ranks: 1
local mh = require "moonhalo"
local a, b = mh.ones{2, 3}, nil
local x = mh.cat{a, b, a}
--[==[
cat_nil.lua:4: cat: no overload fits the arguments
  have  cat({Tensor float32 [2, 3], nil, Tensor float32 [2, 3]})
  takes aten::cat(Tensor[] tensors, int dim=0) -> Tensor
        argument 'tensors' needs Tensor[], got {Tensor float32 [2, 3], nil, Tensor float32 [2, 3]}
  takes aten::cat.names(Tensor[] tensors, str dim) -> Tensor
        argument 'dim' is missing
  fix   element 2 of the list is nil: look at the variable that stands there
  4 | local x = mh.cat{a, b, a}
]==]
