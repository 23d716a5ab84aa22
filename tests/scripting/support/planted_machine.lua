-- SPDX-License-Identifier: Apache-2.0
-- planted_machine(FLOPS, MEMORY, NETWORK, LATENCY): the path of a machine file whose operators start at once:
-- operations, bytes of memory and bytes of messages in a second, and the seconds of an empty message. Collective.
local mh = require "moonhalo"
local own_path = require "support.own_path"

local count = 0

local function machine(flops, memory, network, latency)
  count = count + 1
  local path = own_path("machine" .. count .. ".json")
  mh._files.on_first_rank(function()
    local file = assert(io.open(path, "w"))
    file:write(('{"name": "planted", "host": {"cores": 1}, "device": {"kind": "cuda", "flops": {"convolution": %g, ' ..
      '"product": %g, "attention": %g}, "bandwidth": [[1e12, %g]], "launch": 0, "jitter": 0}, ' ..
      '"levels": [{"name": "all", "latency": %g, "bandwidth": %g}]}')
      :format(flops, flops, flops, memory, latency, network))
    file:close()
  end)
  return path
end

return machine
