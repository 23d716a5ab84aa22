-- ranks: 1
local mh = require "moonhalo"
local x = mh.files.load_npy("x.npy")
--[==[
files_misspelt.lua:3: files: no 'load_npy'; did you mean 'read_npy'?
  have  exists, make_folder, read_npy, write_npy, write_png
  3 | local x = mh.files.load_npy("x.npy")
]==]
