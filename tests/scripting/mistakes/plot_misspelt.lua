-- ranks: 1
local mh = require "moonhalo"
mh.plot.line("loss.png", {1, 2, 3})
--[==[
plot_misspelt.lua:3: plot: no 'line'; did you mean 'lines'?
  have  animation, histogram, lines, maps, scatter
  3 | mh.plot.line("loss.png", {1, 2, 3})
]==]
