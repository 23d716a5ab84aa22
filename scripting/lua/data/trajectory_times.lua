-- SPDX-License-Identifier: Apache-2.0
-- Times of the steps of a file's trajectories, [steps] or [trajectory, steps].

local mh = require "moonhalo"

local fail = mh.fail

--- The times that all trajectories share; and those of each, where they differ and may. `path`: of the dataset `values`
--- is of.
return function(file, path, values, options)
  if values.ndim < 2 then return values:tolist(), nil end
  if mh.equal(values, values["0:1"]:expand_as(values)) then return values["0"]:tolist(), nil end
  if not table.concat(options.may_differ or {}, " "):find("times", 1, true) then
    fail(("data.open: the times of trajectories differ in '%s'\n  have  %s of shape [%s]\n" ..
        "  fix   open files whose trajectories share their times, or give "
      .. 'may_differ = {"times"}'):format(file.path, path, table.concat(values.shape, ", ")))
  end
  return values["0"]:tolist(), values:tolist()
end
