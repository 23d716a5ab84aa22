-- SPDX-License-Identifier: Apache-2.0
-- mh.data: the order of samples. `for index in mh.data.Sampler{size = 1000, batch = 64, seed = 1}:batches() do ... end`

local mh = require "moonhalo"

local data = {}
for name, class in pairs(require "moonhalo.data.sampler") do data[name] = mh._framed(class) end

return setmetatable(data, {
  __index = function(_, key)
    local known = {}
    for name in pairs(data) do known[#known + 1] = name end
    mh.fail("data: no '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), known))
  end,
})
