-- SPDX-License-Identifier: Apache-2.0
-- Tensors of your own as batches that are cut over the ranks: from each step of a series to the next.
local mh = require "moonhalo"
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})

local time, place = mh.arange(30.0):reshape{30, 1}, mh.linspace(0, 6.28, 16)
local data = mh.data.from_tensors({u = (time * 0.2 + place):sin()}, {dims = {"time", "x"}})
data:add_field("square", {from = {"u"}, make = function(u) return u * u end})
local set = data:windows{inputs = {fields = {"u", "square"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}

local seen = 0
for batch in set:loader{mesh = mesh, cut = {x = "domain"}, batch = 10, shuffle = true}:batches() do
  seen = seen + batch.inputs:size(0)
end
print(#set, seen, set.inputs.channels)  --> 29  29  {"u@+0", "square@+0"}
