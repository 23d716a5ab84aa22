-- SPDX-License-Identifier: Apache-2.0
-- Heads of several files beside each other: those of one archive may name a dim differently, or spell its units. What
-- differs more is refused, unless `may_differ` says that it may.

local mh = require "moonhalo"
local calendar = require "moonhalo.data.calendar"
local sorted = require "moonhalo.internal.sorted_keys"
local units = require "moonhalo.data.units"

local fail = mh.fail

local function differ(what, a, b, of_a, of_b, allowed)
  fail(("data.open: two files differ in %s\n  have  %s in '%s'\n  have  %s in '%s'\n  fix   open them apart%s"):format(
    what, of_a, a, of_b, b,
    allowed and (', or give may_differ = {"%s"}, which takes what %s'):format(allowed, allowed == "times"
      and "each trajectory says" or "the first says") or ""))
end

local function listed(list) return "(" .. table.concat(list, ", ") .. ")" end

--- The least distance between neighbours.
local function spacing(list)
  local least = math.huge
  for i = 2, #list do least = math.min(least, math.abs(list[i] - list[i - 1])) end
  return least < math.huge and least or 0
end

-- Programs compute the same grid in float32 or another order; a ten-thousandth of a cell is the same place.
local kOfCell, kOfValue = 1e-4, 1e-6

local function check_coordinates(a, b, of_a, of_b, may_differ)
  if of_a == of_b then return end  -- the same table, as those of many files are
  for _, dim in ipairs(sorted(of_a)) do
    local x, y = of_a[dim], of_b[dim]
    if y and #x ~= #y then differ(("the length of '%s'"):format(dim), a, b, tostring(#x), tostring(#y)) end
    local cell = y and not may_differ.coordinates and spacing(x) or 0
    for i = 1, y and not may_differ.coordinates and #x or 0 do
      if math.abs(x[i] - y[i]) > math.max(kOfCell * cell, kOfValue * math.max(math.abs(x[i]), math.abs(y[i]))) then
        differ(("coordinates of '%s', element %d"):format(dim, i - 1), a, b, tostring(x[i]), tostring(y[i]),
            "coordinates")
      end
    end
  end
end

--- Shapes along all dims but those that files and trajectories share out.
local function check_fields(head, a, b, of_a, of_b, may_differ)
  if of_a == of_b then return end
  for _, name in ipairs(sorted(of_a)) do
    local x, y = of_a[name], of_b[name]
    if y then
      local what = function(of) return ("%s of '%s'"):format(of, name) end
      if listed(x.dims) ~= listed(y.dims) then differ(what "the dims", a, b, listed(x.dims), listed(y.dims)) end
      for i, dim in ipairs(x.dims) do
        if dim ~= "sample" and dim ~= head.axis and x.shape[i] ~= y.shape[i] then
          differ(what("the shape"), a, b, "[" .. table.concat(x.shape, ", ") .. "]", "[" .. table.concat(y.shape, ", ")
              .. "]")
        end
      end
      if listed(x.channel_names or {}) ~= listed(y.channel_names or {}) then
        differ(what "the channels", a, b, listed(x.channel_names or {}), listed(y.channel_names or {}))
      end
      if not may_differ.units and units.canonical(x.units) ~= units.canonical(y.units) then
        differ(what "the units", a, b, "'" .. (x.units or "") .. "'", "'" .. (y.units or "") .. "'", "units")
      end
    end
  end
end

--- The dim of a head that has a role ("T", "Y", "X"); nil where none or several have.
local function dim_of_role(head, role)
  local found
  for dim, its in pairs(head.roles or {}) do
    if its == role then
      if found then return nil end
      found = dim
    end
  end
  return found
end

--- A copy of `head` whose axis, latitude and longitude are named as those of `first`.
local function renamed(head, first)
  local names, taken = {}, {}
  for _, field in pairs(head.fields) do
    for _, dim in ipairs(field.dims) do taken[dim] = true end
  end
  for _, role in ipairs {"T", "Y", "X"} do
    local ours, theirs = dim_of_role(head, role), dim_of_role(first, role)
    if role == "T" then ours, theirs = head.dates and head.axis, first.dates and first.axis end
    if ours and theirs and ours ~= theirs and not taken[theirs] then names[ours] = theirs end
  end
  if next(names) == nil then return head end
  local copy = {}
  for key, value in pairs(head) do copy[key] = value end
  local function name_of(dim) return names[dim] or dim end
  local function each(list)
    local result = {}
    for i, dim in ipairs(list) do result[i] = name_of(dim) end
    return result
  end
  copy.axis, copy.space, copy.coordinates, copy.fields = head.axis and name_of(head.axis), each(head.space), {}, {}
  for dim, values in pairs(head.coordinates) do copy.coordinates[name_of(dim)] = values end
  for name, field in pairs(head.fields) do
    local one = {}
    for key, value in pairs(field) do one[key] = value end
    one.dims, copy.fields[name] = each(field.dims), one
  end
  return copy
end

--- `head` with its times as those of the calendar of `first`, if both say the same of them or may differ. Trajectories
--- that may differ have a calendar each.
local function in_calendar(head, first, a, b, may_differ)
  local from, to = head.calendar, first.calendar
  if from == to or not head.times or not first.times then return head end
  if from and to and calendar.agree(from, to, math.min(head.times[1], first.times[1])) then return head end
  if first.join == "trajectories" and (may_differ.calendar or may_differ.times) then return head end
  if not (from and to and may_differ.calendar) then
    differ("the calendar", a, b, tostring(to), tostring(from), "calendar")
  end
  local copy, times = {}, {}
  for key, value in pairs(head) do copy[key] = value end
  for i, time in ipairs(head.times) do
    times[i] = calendar.same_date(time, from, to)
    if not times[i] then
      differ("the calendar", a, b, to, from .. ", whose " .. calendar.text(time, from) .. " the other lacks")
    end
  end
  copy.times = times
  return copy
end

--- The heads as one archive's, and which are of static fields alone (beside others that have an axis): {[number] =
--- true}.
return function(files, heads, may_differ)
  local with_axis
  for i, head in ipairs(heads) do
    if not with_axis and head.axis then with_axis = i end
  end
  local number = with_axis or 1
  local own_times = may_differ.times and heads[number].join == "trajectories"
  if may_differ.times and not own_times then
    fail(('data.open: may_differ = {"times"} is for trajectories\n' ..
        '  have  files that follow each other along \'%s\'\n  fix   leave it out, or give join = "trajectories"')
      :format(tostring(heads[number].axis)))
  end
  local first, result, static = heads[number], {}, {}
  for i, head in ipairs(heads) do
    local function compare(what, of_a, of_b, allowed)
      if of_a ~= of_b then differ(what, files[number], files[i], tostring(of_a), tostring(of_b), allowed) end
    end
    if i == number then
      result[i] = head
    else
      head = renamed(head, first)
      static[i] = with_axis ~= nil and head.axis == nil or nil
      if not static[i] then
        compare("the name of the axis", first.axis, head.axis)
        if not own_times then
          local allowed = first.join == "trajectories" and "times" or nil
          compare("whether they have dates", first.dates or false, head.dates or false, allowed)
          compare("whether steps have times", first.times ~= nil, head.times ~= nil, allowed)
          if not first.dates then
            compare("the units of times without dates", first.time_units, head.time_units, allowed)
          end
        end
        head = in_calendar(head, first, files[number], files[i], may_differ)
        compare("the dims of space", listed(first.space), listed(head.space))
      end
      check_coordinates(files[number], files[i], first.coordinates, head.coordinates, may_differ)
      check_fields(first, files[number], files[i], first.fields, head.fields, may_differ)
      result[i] = head
    end
  end
  return result, static, number
end
