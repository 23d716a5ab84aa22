-- SPDX-License-Identifier: Apache-2.0
-- Times of CF: "hours since 1900-01-01" and a calendar, as seconds from the first of January 1970 of that calendar, and
-- back as "1979-01-01 06:00:00", which sorts as text does.

local mh = require "moonhalo"

local fail = mh.fail
local calendar = {}

local kNames = {standard = "standard", gregorian = "standard", proleptic_gregorian = "proleptic_gregorian",
  noleap = "noleap",
  ["365_day"] = "noleap", all_leap = "all_leap", ["366_day"] = "all_leap", ["360_day"] = "360_day", julian = "julian"}
local kUnits = {}  -- {seconds, parts of them}: a millisecond is one part of the thousand that a second has
for names, length in pairs {["s sec secs second seconds"] = {1, 1}, ["min mins minute minutes"] = {60, 1},
    ["h hr hrs hour hours"] = {3600, 1}, ["d day days"] = {86400, 1}, ["week weeks"] = {7 * 86400, 1},
    ["msec msecs millisec millisecs millisecond milliseconds"] = {1, 1e3},
    ["microsec microsecs microsecond microseconds"] = {1, 1e6},
    ["nanosec nanosecs nanosecond nanoseconds"] = {1, 1e9}, ["picosecond picoseconds"] = {1, 1e12},
    ["femtosecond femtoseconds"] = {1, 1e15}, ["attosecond attoseconds"] = {1, 1e18}} do
  for name in names:gmatch("%S+") do kUnits[name] = length end
end
-- days
local kAlike = {month = {["360_day"] = 30}, months = {["360_day"] = 30}, common_year = {noleap = 365},
    common_years = {noleap = 365}}
local kBefore = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334}  -- days of a year before its months
local kDay = 86400

--- Years that begin in March end with the leap day: the days of one before a month (0 is March), and back.
local function days_before_shifted(month) return (153 * month + 2) // 5 end

--- Days from 1970-01-01 (of today's calendar) to a date of the Gregorian or the Julian calendar, for years before it
--- too.
local function days_in(leaps, shift)
  return function(year, month, day)
    if month <= 2 then year = year - 1 end
    return 365 * year + leaps(year) + days_before_shifted((month + 9) % 12) + day - 1 - shift
  end
end

local gregorian_days = days_in(function(year) return year // 4 - year // 100 + year // 400 end, 719468)
local julian_days = days_in(function(year) return year // 4 end, 719470)

--- The date of a day of a year that begins in March.
local function date_in(year, day)
  local shifted = (5 * day + 2) // 153
  local month = shifted < 10 and shifted + 3 or shifted - 9
  return year + (month <= 2 and 1 or 0), month, day - days_before_shifted(shifted) + 1
end

local function gregorian_date(days)
  days = days + 719468
  local era = days // 146097
  local rest = days - era * 146097
  local year = (rest - rest // 1460 + rest // 36524 - rest // 146096) // 365
  return date_in(year + era * 400, rest - (365 * year + year // 4 - year // 100))
end

local function julian_date(days)
  days = days + 719470
  local era = days // 1461
  local rest = days - era * 1461
  local year = (rest - rest // 1460) // 365
  return date_in(year + era * 4, rest - 365 * year)
end

local kReform = gregorian_days(1582, 10, 15)  -- the day after 1582-10-04 of the Julian calendar

--- CF's standard calendar is the Julian one until the reform.
local function standard_days(year, month, day)
  local days = gregorian_days(year, month, day)
  return days >= kReform and days or julian_days(year, month, day)
end

local function standard_date(days) return (days >= kReform and gregorian_date or julian_date)(days) end

local kDays = {standard = standard_days, proleptic_gregorian = gregorian_days, julian = julian_days}
local kDate = {standard = standard_date, proleptic_gregorian = gregorian_date, julian = julian_date}

--- Calendars whose years are all the same: days of the year before a month, and of a year.
local function days_before(name, month)
  if name == "360_day" then return 30 * (month - 1) end
  return kBefore[month] + (name == "all_leap" and month > 2 and 1 or 0)
end

local kYear = {["360_day"] = 360, noleap = 365, all_leap = 366}

local function days_of(name, year, month, day)
  if kDays[name] then return kDays[name](year, month, day) end
  return (year - 1970) * kYear[name] + days_before(name, month) + day - 1
end

local function date_of(name, days)
  if kDate[name] then return kDate[name](days) end
  local length = kYear[name]
  local year, rest = days // length, days % length
  local month = 12
  while days_before(name, month) > rest do month = month - 1 end
  return year + 1970, month, rest - days_before(name, month) + 1
end

--- The one spelling of a calendar, or nil for one that is not known. Without a name it is "standard", as CF says.
function calendar.name(name) return kNames[(name or "standard"):lower()] end

function calendar.names()
  local names = {}
  for name in pairs(kNames) do names[#names + 1] = name end
  return names
end

--- Seconds that a zone is ahead of UTC: "Z", "+01:00", "-5:30", "+0530". Nil for another text.
local function seconds_east(zone)
  if zone == "" or zone == "Z" or zone == "UTC" or zone == "GMT" then return 0 end
  local sign, hours, minutes = zone:match("^([+-]?)(%d%d?):?(%d?%d?)$")
  if not hours or (sign == "" and tonumber(hours .. minutes) ~= 0) then return nil end
  return (sign == "-" and -1 or 1) * (tonumber(hours) * 3600 + (tonumber(minutes) or 0) * 60)
end

--- Year, month, day and seconds of "1900-01-01", "1900-1-1 6:0:0.0", "1900-01-01T06:00:00Z", "1900/01/01", "19000101";
--- "1979" and "1979-03" are their first moments. Returns nil for another text, and how many of the six numbers were
--- given last.
function calendar.parse(text)
  local year, month, day, rest = text:match("^%s*(%-?%d+)%-(%d+)%-(%d+)(.*)$")
  if not year then year, month, day, rest = text:match("^%s*(%d%d%d%d)(%d%d)(%d%d)(.*)$") end
  for _, between in ipairs {"/", "%."} do
    if not year then
      year, month, day, rest = text:match(("^%%s*(%%d%%d%%d%%d)%s(%%d%%d?)%s(%%d%%d?)(.*)$"):format(between, between))
    end
  end
  if not year then
    year, month = text:match("^%s*(%-?%d+)%-(%d+)%s*$")
    if not year then year = text:match("^%s*(%-?%d%d%d%d)%s*$") end
    if not year then return nil end
    return tonumber(year), tonumber(month or 1), 1, 0, month and 2 or 1
  end
  local hour, minute, second, zone = rest:match("^[T%s]+(%d+):?(%d*):?([%d.]*)%s*(.*)$")
  local given = minute == "" and 4 or second == "" and 5 or 6
  if not hour then
    if not rest:match("^%s*Z?$") and not rest:match("^%s*UTC$") then return nil end
    return tonumber(year), tonumber(month), tonumber(day), 0, 3
  end
  local east = seconds_east(zone)
  hour, minute, second = tonumber(hour), tonumber(minute) or minute == "" and 0, tonumber(second) or second == "" and 0
  if not east or not minute or not second or hour > 23 or minute > 59 or second >= 60 then return nil end
  return tonumber(year), tonumber(month), tonumber(day), hour * 3600 + minute * 60 + second - east, given
end

--- Calendars with years before Christ count them by -1, -2, ... and have no year 0; the others have one.
local kNoYearZero = {standard = true, julian = true}

--- Nil too for a day that the calendar does not have, as 1582-10-10 of the standard one.
local function moment(name, text)
  local year, month, day, seconds, given = calendar.parse(text)
  if not year or month < 1 or month > 12 then return nil end
  if kNoYearZero[name] and year <= 0 then
    if year == 0 then return nil end
    year = year + 1
  end
  local days = days_of(name, year, month, day)
  local y, m, d = date_of(name, days)
  if y ~= year or m ~= month or d ~= day then return nil end
  return days * kDay + seconds, given, year, month, day
end

--- Returns a function from values in `units` to seconds. Nil where values are numbers without dates: units that are no
--- "UNIT since DATE" of fixed length (months are that of a year of 360 days alone), calendar "none", and year 0 of a
--- calendar that has none, which stands for no year at all. `where` begins errors.
function calendar.reader(units, name, where)
  local unit, since = (units or ""):match("^%s*([%a_]+)%s+[Ss][Ii][Nn][Cc][Ee]%s+(.+)$")
  unit = unit and unit:lower()
  if not kUnits[unit] and not kAlike[unit] or (name or ""):lower() == "none" then return nil end
  local known = calendar.name(name)
  if not known then
    fail(("%s: unknown calendar '%s'%s\n  have  units '%s'\n" ..
      "  fix   these are read: %s; or give dates = false, for times that are numbers"):format(
      where, name, mh.did_you_mean(name, calendar.names()), units, table.concat(calendar.names(), ", ")))
  end
  local days = kAlike[unit] and kAlike[unit][known]
  local length = kUnits[unit] or days and {days * kDay, 1}
  if not length or (kNoYearZero[known] and calendar.parse(since) == 0) then return nil end
  local origin = moment(known, since)
  if not origin then
    fail(("%s: no date in the units '%s'\n  have  '%s' after 'since', calendar '%s'\n" ..
        "  fix   write it as 1900-01-01 or 1900-01-01 00:00:00, a day "
      .. "of the calendar; or give dates = false, for times that are numbers"):format(where, units, since, known))
  end
  -- Days of such units are exact in double precision.
  return function(value) return origin + value * length[1] / length[2] end
end

--- True where two calendars say the same of every time from `seconds` on.
function calendar.agree(a, b, seconds)
  if a == b then return true end
  local modern = {standard = true, proleptic_gregorian = true}
  return modern[a] and modern[b] and seconds >= kReform * kDay or false
end

--- The seconds, in calendar `to`, of the date that `seconds` is in calendar `from`; nil where `to` has no such day.
function calendar.same_date(seconds, from, to)
  local day = math.floor(seconds / kDay)
  local year, month, date = date_of(from, day)
  local days = days_of(to, year, month, date)
  local y, m, d = date_of(to, days)
  if y ~= year or m ~= month or d ~= date then return nil end
  return days * kDay + (seconds - day * kDay)
end

--- "1979-01-01 06:00:00".
function calendar.text(seconds, name)
  local whole = math.floor(seconds + 0.5)
  local year, month, day = date_of(name, whole // kDay)
  local rest = whole % kDay
  if kNoYearZero[name] and year <= 0 then year = year - 1 end
  return ("%04d-%02d-%02d %02d:%02d:%02d"):format(year, month, day, rest // 3600, rest % 3600 // 60, rest % 60)
end

--- The seconds that a date names, from its first to before the end: "2015" is a year, "2015-02" a month,
--- "2015-02-03" a day, with a time that second. Nil for a string that is not a date.
function calendar.span(text, name)
  local first, given, year, month = moment(name, text)
  if not first then return nil end
  if given == 1 then return first, days_of(name, year + 1, 1, 1) * kDay end
  if given == 2 then return first, days_of(name, month == 12 and year + 1 or year, month % 12 + 1, 1) * kDay end
  return first, first + (given == 3 and kDay or given == 4 and 3600 or given == 5 and 60 or 1)
end

return calendar
