-- SPDX-License-Identifier: Apache-2.0
-- moonhalo report: one HTML page without other files. Curves have the least and the greatest value of each of 500
-- columns, so that spikes stay and a page of 20 curves of 10,000 steps is small.

local mh = require "moonhalo"
local facts = require "moonhalo.internal.run_facts"
local files = require "moonhalo.internal.run_files"
local flame = require "moonhalo.internal.report_flame"
local groups = require "moonhalo.internal.groups"
local page = require "moonhalo.internal.report_page"
local kCounters = require("moonhalo.internal.run_log").counters
local runs_table = require "moonhalo.internal.runs_table"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail, escaped = mh.fail, page.escaped
local report = {}

local kColors = require("moonhalo.plot.parts").series
local kColumns, kMostPictures, kMostTable = 500, 40, 40000
local kWidth, kHeight, kLeft, kRight, kTop, kBottom = 640, 280, 64, 12, 10, 26  -- as in the page's script

-- ---- Curves --------------------------------------------------------------------------------------------------------

--- The column of a point of a curve, as a function of its position: by steps, or by position where steps do not grow.
local function columns_of(xs)
  local x0, x1, grows = xs[1], xs[#xs], xs[1] < xs[#xs]
  for i = 2, #xs do grows = grows and xs[i] >= xs[i - 1] end
  if not grows then return function(i) return (i - 1) * kColumns // #xs end end
  return function(i) return (xs[i] - x0) * kColumns // (x1 - x0) end
end

--- Least and greatest of each column, in the order of their steps.
local function reduced(xs, ys)
  if #xs <= 2 * kColumns then return xs, ys end
  local column_of, short_x, short_y, first = columns_of(xs), {}, {}, 1
  while first <= #xs do
    local last, low, high = first, first, first
    while last < #xs and column_of(last + 1) == column_of(first) do
      last = last + 1
      if ys[last] < ys[low] then low = last end
      if ys[last] > ys[high] then high = last end
    end
    for _, i in ipairs {math.min(low, high), low ~= high and math.max(low, high) or nil} do
      short_x[#short_x + 1], short_y[#short_y + 1] = xs[i], ys[i]
    end
    first = last + 1
  end
  return short_x, short_y
end

local function is_finite(value) return type(value) == "number" and value - value == 0 end

--- The metrics of all runs: {name, series = {{run, color, x, y}}}, by name.
local function charts_of(runs)
  local by_name = {}
  for r, run in ipairs(runs) do
    local own = {}
    for position, record in ipairs(run.records) do
      local x = is_finite(record.step) and record.step or is_finite(record.epoch) and record.epoch or position
      for name, value in pairs(groups.flat(record, "", {})) do
        if is_finite(value) and not kCounters[name] then
          own[name] = own[name] or {x = {}, y = {}}
          table.insert(own[name].x, x)
          table.insert(own[name].y, value)
        end
      end
    end
    for name, curve in pairs(own) do
      local x, y = reduced(curve.x, curve.y)
      by_name[name] = by_name[name] or {name = name, series = {}}
      table.insert(by_name[name].series, {run = run.name, color = kColors[(r - 1) % #kColors + 1], x = x, y = y})
    end
  end
  local charts = {}
  for i, name in ipairs(sorted_keys(by_name)) do charts[i] = by_name[name] end
  return charts
end

--- Where a value is between two others, from 0 to 1; of values that are all equal 0.
local function part_of(value, low, high)
  local part = (value / 2 - low / 2) / (high / 2 - low / 2)
  return part == part and part or 0
end

--- The curves as they stand before the script of the page draws them again.
local function svg(chart)
  local x0, x1, y0, y1 = math.huge, -math.huge, math.huge, -math.huge
  for _, one in ipairs(chart.series) do
    for i, x in ipairs(one.x) do
      x0, x1, y0, y1 = math.min(x0, x), math.max(x1, x), math.min(y0, one.y[i]), math.max(y1, one.y[i])
    end
  end
  local width, height = kWidth - kLeft - kRight, kHeight - kTop - kBottom
  local out = {('<svg viewBox="0 0 %d %d" role="img">'):format(kWidth, kHeight)}
  for _, one in ipairs(chart.series) do
    local points = {}
    for i, x in ipairs(one.x) do
      points[i] = ("%s%.1f %.1f"):format(i == 1 and "M" or "L", kLeft + part_of(x, x0, x1) * width,
        kHeight - kBottom - part_of(one.y[i], y0, y1) * height)
    end
    out[#out + 1] = ('<path class="curve" fill="none" stroke="%s" d="%s"/>'):format(one.color, table.concat(points))
  end
  out[#out + 1] = "</svg>"
  return table.concat(out)
end

-- ---- Parts of the page ---------------------------------------------------------------------------------------------

local function row(cells, tag, class)
  local parts = {}
  for i, cell in ipairs(cells) do parts[i] = ("<%s>%s</%s>"):format(tag or "td", cell, tag or "td") end
  return ("<tr%s>%s</tr>\n"):format(class and ' class="' .. class .. '"' or "", table.concat(parts))
end

local function runs_part(runs, rows)
  local head = {"run", "status", "started", "seconds", "steps", "ranks", "git", ""}
  local out = {"<h2>Runs</h2>\n<table>\n", row(head, "th")}
  for i, run in ipairs(runs) do
    local data, cells = run.data, rows[i].cells
    local git = type(data.git) == "table" and tostring(data.git.revision):sub(1, 10) .. (data.git.dirty and " +" or "")
    out[#out + 1] = row{('<span class="key" style="background:%s"></span>%s'):format(kColors[(i - 1) % #kColors + 1],
      escaped(run.name)), escaped(cells.status), escaped(data.started), escaped(runs_table.text_of(data.seconds)),
      escaped(runs_table.text_of(data.step)), escaped(runs_table.text_of(data.ranks)), escaped(git or "-"),
      escaped(data.error or data.ended_by or "")}
  end
  return table.concat(out) .. "</table>\n"
end

local function median(values)
  table.sort(values)
  return values[(#values + 1) // 2]
end

--- Milliseconds between the records of two steps, the median; nil for a run with fewer steps.
local function step_time(records)
  local times, before = {}, nil
  for _, record in ipairs(records) do
    if is_finite(record.step) and is_finite(record.seconds) then
      if before and record.step > before.step then
        times[#times + 1] = (record.seconds - before.seconds) / (record.step - before.step) * 1000
      end
      if not before or record.step ~= before.step then before = record end
    end
  end
  return median(times)
end

local function bytes_text(bytes)
  if not is_finite(bytes) then return "-" end
  return bytes < 1e9 and ("%.1f MB"):format(bytes / 1e6) or ("%.2f GB"):format(bytes / 1e9)
end

--- Times and memory of the runs.
local function costs_part(runs)
  local out = {"<h2>Time and memory</h2>\n<table>\n", row({"run", "seconds", "steps", "epochs", "ms per step",
    "peak of tensors", "peak on the device", "memory of the process"}, "th")}
  for _, run in ipairs(runs) do
    local data, memory = run.data, type(run.data.memory) == "table" and run.data.memory or {}
    out[#out + 1] = row{escaped(run.name), escaped(runs_table.text_of(data.seconds)),
      escaped(runs_table.text_of(data.step)), escaped(runs_table.text_of(data.epoch)),
      escaped(runs_table.text_of(step_time(run.records))), bytes_text(memory.peak), bytes_text(memory.device_peak),
      bytes_text(memory.resident)}
  end
  return table.concat(out) .. "</table>\n<p>Steps: median of the times between their records. Memory: of rank 0.</p>\n"
end

local function settings_part(runs, rows)
  local seen, differ, head = {}, {}, {"setting"}
  for i, one in ipairs(rows) do
    for name in pairs(one.settings) do seen[name] = true end
    head[i + 1] = escaped(runs[i].name)
  end
  if next(seen) == nil then return "" end
  for _, name in ipairs(runs_table.different(rows)) do differ[name] = true end
  local out = {"<h2>Settings</h2>\n<table>\n", row(head, "th")}
  for _, name in ipairs(sorted_keys(seen)) do
    local cells = {escaped(name)}
    for i, one in ipairs(rows) do cells[i + 1] = escaped(runs_table.text_of(one.settings[name])) end
    out[#out + 1] = row(cells, "td", differ[name] and "differs" or nil)
  end
  return table.concat(out) .. "</table>\n"
end

local function metrics_part(charts)
  if #charts == 0 then return "" end
  local out = {"<h2>Metrics</h2>\n", page.controls, '<div class="charts">\n'}
  for _, chart in ipairs(charts) do
    out[#out + 1] = ('<div class="chart"><h3>%s</h3>%s<div class="tip"></div></div>\n'):format(escaped(chart.name),
      svg(chart))
  end
  out[#out + 1] = "</div>\n"
  return table.concat(out)
end

local function pictures_part(runs)
  local out, count = {}, 0
  for _, run in ipairs(runs) do
    for _, name in ipairs(mh._run.list(run.folder .. "/pictures") or {}) do
      local png = name:match("%.png$") and count < kMostPictures and facts.read(run.folder .. "/pictures/" .. name)
      if png then
        count = count + 1
        out[count] = ('<h3>%s: %s</h3><img alt="%s" src="data:image/png;base64,%s">\n'):format(escaped(run.name),
          escaped(name), escaped(name), page.base64(png))
      end
    end
  end
  return count > 0 and "<h2>Pictures</h2>\n" .. table.concat(out) or ""
end

--- For each run with a profile: its first lines, a flame graph, its tables.
local function profiles_part(runs)
  local out = {}
  for _, run in ipairs(runs) do
    local tables = facts.read(run.folder .. "/profile/table.txt")
    if tables then
      local first, rest = tables:match("^(.-)\n\n(.*)$")
      local stacks = facts.read(run.folder .. "/profile/flame.txt")
      out[#out + 1] = ("<h3>%s</h3><pre>%s</pre>%s<details><summary>tables</summary><pre>%s</pre></details>\n"):format(
        escaped(run.name), escaped(first or tables), stacks and flame(stacks) or "",
        escaped((rest or ""):sub(1, kMostTable)))
    end
  end
  return #out > 0 and "<h2>Profile</h2>\n" .. table.concat(out) or ""
end

--- Command and machine.
local function details_part(runs)
  local out = {"<h2>Details</h2>\n"}
  for _, run in ipairs(runs) do
    local data = run.data
    local lines = {
      "command     " .. table.concat(type(data.command) == "table" and data.command or {}, " "),
      "hosts       " .. table.concat(type(data.hosts) == "table" and data.hosts or {}, ", "),
      "devices     " .. table.concat(type(data.devices) == "table" and data.devices or {}, ", "),
      "versions    " .. mh.json.encode(data.versions or {}),
    }
    out[#out + 1] = ("<h3>%s</h3><pre>%s</pre>\n"):format(escaped(run.name), escaped(table.concat(lines, "\n")))
  end
  return table.concat(out)
end

--- The page of these runs.
local function page_of(runs)
  local rows, names = {}, {}
  for i, run in ipairs(runs) do
    rows[i], names[i], run.records = runs_table.row(run), run.name, files.read_metrics(run.folder)
  end
  local charts = charts_of(runs)
  local data = mh.json.encode(charts):gsub("</", "<\\/")
  if #charts == 0 then data = "[]" end
  return table.concat{
    page.head:format(escaped(table.concat(names, ", "))), "<h1>", escaped(table.concat(names, ", ")), "</h1>\n",
    runs_part(runs, rows), metrics_part(charts), settings_part(runs, rows), costs_part(runs), profiles_part(runs),
    pictures_part(runs), details_part(runs),
    '<script type="application/json" id="data">', data, "</script>\n", page.script, "</body></html>\n",
  }
end

--- Carries out the command with its options.
function report.main(wanted)
  local runs = {}
  for _, given in ipairs(wanted.runs) do
    local folder = given:gsub("(.)/+$", "%1")
    if mh.files.exists(folder .. "/run.json") then
      runs[#runs + 1] = {folder = folder, name = folder:match("[^/]*$"), data = files.read_run(folder)}
    else
      local inside = runs_table.runs_of(folder)
      if #inside == 0 then
        fail(("report: '%s' is neither a run nor a folder of runs or sweeps\n  have  no run.json in it\n" ..
          "  fix   give runs/DATE_NAME_XXXX"):format(folder))
      end
      table.move(inside, 1, #inside, #runs + 1, runs)
    end
  end
  local output = wanted.output ~= "" and wanted.output or wanted.runs[1]:gsub("(.)/+$", "%1") .. "/report.html"
  local text = page_of(runs)
  local written, problem = pcall(mh._files.write, "report", output, text)
  if not written then fail(tostring(problem) .. (wanted.output == "" and ": --output PAGE.html" or "")) end
  print(output)
end

return report
