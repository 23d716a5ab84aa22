-- ranks: 1
local mh = require "moonhalo"
local out = mh.h5.open(os.getenv("SCRATCH") .. "/packed.h5", "w")
out:write("x", mh.ones{4, 4}, {compression = "gzip"})
--[==[
write_compression.lua:4: write: option 'compression' has a value of the wrong type: 'gzip'
  fix   give an integer
  4 | out:write("x", mh.ones{4, 4}, {compression = "gzip"})
]==]
