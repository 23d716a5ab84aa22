-- ranks: 1
local mh = require "moonhalo"
local a, b = mh.ones{2, 3}, mh.ones{3, 2}
local c = a @ b
--[==[
matmul_sign.lua:4: unexpected symbol near '@'
  fix   matrices are multiplied by a:matmul(b)
  4 | local c = a @ b
]==]
