-- SPDX-License-Identifier: Apache-2.0
-- local _ <close> = at_end(fn): calls fn(problem) where the block ends, also by an error, which goes on. `problem` is
-- that error or nil.

local meta = {__close = function(self, problem) self.fn(problem) end}

return function(fn) return setmetatable({fn = fn}, meta) end
