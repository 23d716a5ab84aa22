-- SPDX-License-Identifier: Apache-2.0
-- What a layout says of a file must agree with itself, before anything is read.

local mh = require "moonhalo"
local sorted = require "moonhalo.internal.sorted_keys"

local fail = mh.fail

--- Times increase, and none is missing.
local function check_times(times, head, layout, refuse)
  for i, time in ipairs(times) do
    if time ~= time then
      refuse(("'%s' has no value at step %d"):format(head.axis, i - 1), layout == "cf"
          and "write the time that is missing; or give dates = false, which counts steps then"
        or "write the time that is missing, or correct the layout's describe")
    end
  end
  for i = 2, #times do
    if not (times[i] > times[i - 1]) then
      refuse(("'%s' does not increase: step %d is not after step %d"):format(head.axis, i - 1, i - 2),
          "sort the file's steps, and leave out those that are there twice")
    end
  end
end

--- `head` of the file at `path`, or an error that names the layout. docs/layouts.md says what a head is.
return function(head, path, layout)
  local function refuse(problem, fix)
    fail(("data.open: '%s': %s\n  have  layout '%s'\n  fix   %s"):format(path, problem, layout, fix))
  end
  if #sorted(head.fields) == 0 then
    refuse("no field was found", "look with moonhalo inspect, and choose another by layout =")
  end
  for _, name in ipairs(sorted(head.fields)) do
    local field, seen = head.fields[name], {}
    if #field.dims ~= #field.shape then
      refuse(("'%s' has %d dims and %d names of dims"):format(name, #field.shape, #field.dims),
          "correct the layout's describe")
    end
    for i, dim in ipairs(field.dims) do
      if seen[dim] then
        refuse(("'%s' has the dim '%s' twice"):format(name, dim),
            "name its dims differently, or leave it out of the file")
      end
      seen[dim] = true
      local wanted = dim == head.axis and head.steps or dim == "sample" and head.join == "trajectories"
          and head.trajectories
        or head.coordinates[dim] and #head.coordinates[dim]
      if wanted and wanted ~= field.shape[i] then
        -- NetCDF-4 keeps what was written of a variable; its own programs show fill values behind that.
        local short = dim == head.axis and field.shape[i] < wanted
        refuse(("'%s' has %d along '%s', which has %d"):format(name, field.shape[i], dim, wanted),
          short and "write its last steps too, missing values if there are none, or leave the file out"
            or "correct the file, or leave it out")
      end
    end
  end
  if head.steps == 0 then refuse(("'%s' has length zero"):format(tostring(head.axis)), "leave the file out") end
  if head.times and #head.times ~= head.steps then
    refuse(("'%s' has %d steps and %d times"):format(head.axis, head.steps, #head.times),
        "correct the file, or the layout's describe")
  end
  for _, times in ipairs(head.times_of or {}) do
    if #times ~= head.steps then
      refuse(("'%s' has %d steps and a trajectory of %d times"):format(head.axis, head.steps, #times),
          "correct the file, or the layout's describe")
    end
  end
  if head.times_of and #head.times_of ~= head.trajectories then
    refuse(("%d trajectories and times of %d"):format(head.trajectories, #head.times_of),
        "correct the file, or the layout's describe")
  end
  for _, times in ipairs(head.times_of or {head.times}) do check_times(times, head, layout, refuse) end
  return head
end
