-- ranks: 1
local mh = require "moonhalo"
mh.set_default_dtype("int64")
local x = mh.zeros{2}
--[==[
default_dtype.lua:3: set_default_dtype: int64 is not a floating-point dtype
  fix   "float32" or "float64"; pass other dtypes to the call that makes the tensor: {dtype = "int64"}
  3 | mh.set_default_dtype("int64")
]==]
