-- SPDX-License-Identifier: Apache-2.0
-- mh.data: data sets in files, and the order of samples. `mh.data.open("era5/t2m_*.nc")` gives a collection of fields,
-- whose windows are samples; `for index in mh.data.Sampler{size = 1000, batch = 64, seed = 1}:batches() do ... end`
-- gives orders alone.

local mh = require "moonhalo"

local data = {open = mh._framed(require "moonhalo.data.open"),
  from_tensors = mh._framed(require "moonhalo.data.from_tensors"), layouts = require "moonhalo.data.layouts",
  load_statistics = mh._framed(require("moonhalo.data.statistics").load)}
for name, class in pairs(require "moonhalo.data.sampler") do data[name] = mh._framed(class) end

return require("moonhalo.internal.strict").table("data", data)
