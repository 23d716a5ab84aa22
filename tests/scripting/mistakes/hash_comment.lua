-- ranks: 1
local mh = require "moonhalo"
# the learning rate
local lr = 1e-3
--[==[
hash_comment.lua:3: unexpected symbol near '#'
  fix   comments begin with -- in Lua
  3 | # the learning rate
]==]
