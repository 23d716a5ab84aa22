-- ranks: 1
local mh = require "moonhalo"
local x = mh.ones({3}, {device = "gpu"})
--[==[
device_typo.lua:3: ones: no overload fits the arguments
  have  ones({3}, device = 'gpu')
  takes aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
        argument 'device' needs Device?, got 'gpu'; did you mean 'cuda'?
  takes aten::ones.names(int[] size, *, str[]? names, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
        argument 'names' is missing
  3 | local x = mh.ones({3}, {device = "gpu"})
]==]
