-- SPDX-License-Identifier: Apache-2.0
-- Functions in the place of a module's forward.

local inner_of_call = require("moonhalo.internal.registries").inner_of_call
local forward = {}

--- `make(inner)` gives what runs instead of the module's forward `inner`. Returns a function that takes it off again.
function forward.replace(module, make)
  local before, inner = rawget(module, "forward"), module.forward
  local outer = make(inner)
  inner_of_call[outer] = inner
  rawset(module, "forward", outer)
  return function() rawset(module, "forward", before) end
end

--- The function that was written, whose arguments have names.
function forward.written(fn)
  while inner_of_call[fn] do fn = inner_of_call[fn] end
  return fn
end

return forward
