-- ranks: 1
local mh = require "moonhalo"
local x = mh.zeros{1, nil, 3}
--[==[
zeros_nil.lua:3: zeros: no overload fits the arguments
  have  zeros({1, nil, 3})
  takes aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
        argument 'size' needs SymInt[], got {1, nil, 3}
  takes aten::zeros.names(int[] size, *, str[]? names, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
        argument 'names' is missing
  fix   element 2 of the list is nil: look at the variable that stands there
  3 | local x = mh.zeros{1, nil, 3}
]==]
