-- SPDX-License-Identifier: Apache-2.0
-- Y12: moonhalo report, by the structure of its page. docs/tools/check_report.py opens one in Chromium.
local mh = require "moonhalo"
local own_path = require "support.own_path"

local tests = {}

--- Runs the program. Returns its output, and whether its status was 0.
local function program(arguments)
  local pipe = assert(io.popen("/proc/" .. mh._run.pid() .. "/exe " .. arguments .. " 2>&1"))
  local text = pipe:read("a")
  return text, pipe:close() == true
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("a")
  assert(file:close())
  return text
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  assert(file:write(text) and file:close())
end

--- A run folder with `count` metrics of `steps` steps. Metric m has at step s the value of value(m, s).
local function make_run(name, settings, metrics, steps, value)
  local folder = own_path("reports") .. "/" .. name
  mh.files.make_folder(folder .. "/pictures")
  write(folder .. "/run.json", mh.json.encode{format = 1, name = name, started = "2026-01-01T00:00:00.000Z",
    status = "done", seconds = 2, settings = settings, error = "a < b & c", command = {"moonhalo", "<script>"}})
  local lines = {}
  for s = 1, steps do
    local record = {step = s, seconds = s / 10}
    for m = 1, metrics do record["metric/" .. m] = value(m, s) end
    lines[s] = mh.json.encode(record)
  end
  write(folder .. "/metrics.jsonl", table.concat(lines, "\n") .. (steps > 0 and "\n" or "") .. '{"step": 3, "half')
  return folder
end

--- True if every element that is opened is closed in its turn.
local function is_nested(html)
  local open, alone = {}, {meta = true, img = true, input = true, path = true, rect = true,
    ["!DOCTYPE"] = true}
  html = html:gsub("<script[^>]*>.-</script>", ""):gsub("<style>.-</style>", "")
  for closing, name in html:gmatch("<(/?)([%w!]+)[^>]*>") do
    if closing == "/" then
      if table.remove(open) ~= name then return false end
    elseif not alone[name] then
      open[#open + 1] = name
    end
  end
  return #open == 0
end

function tests.test_Y12_the_page_has_curves_settings_and_pictures_and_asks_no_host()
  local one = make_run("one", {lr = 0.1, same = "<b>"}, 2, 30, function(m, s) return m + 1 / s end)
  local two = make_run("two", {lr = 0.2, same = "<b>"}, 1, 20, function(_, s) return 2 / s end)
  mh.plot.lines(one .. "/pictures/loss.png", {{y = {1, 2}}})
  local output = own_path("page.html")
  local text, done = program(("report %s %s/ --output %s"):format(one, two, output))
  assert(done and text == output .. "\n", text)
  local html = read(output)

  assert(is_nested(html))
  assert(not html:find("https?:") and not html:find("<link") and not html:find("@import") and not html:find("url%("))
  for source in html:gmatch('src="([^"]*)"') do assert(source:find("^data:image/png;base64,iVBORw0KGgo")) end
  assert(html:find("default-src 'none'", 1, true))
  assert(select(2, html:gsub('<path class="curve" fill', "")) == 4)  -- three curves, and one in the script
  assert(html:find('<tr class="differs"><td>lr</td><td>0.1</td><td>0.2</td></tr>', 1, true))
  assert(html:find("<tr><td>same</td><td>&lt;b&gt;</td><td>&lt;b&gt;</td></tr>", 1, true))
  assert(html:find("a &lt; b &amp; c", 1, true) and html:find("moonhalo &lt;script&gt;", 1, true))
  local charts = mh.json.decode(html:match('<script type="application/json" id="data">(.-)</script>'))
  assert(#charts == 2 and charts[1].name == "metric/1" and #charts[1].series == 2 and #charts[2].series == 1)
  assert(charts[2].series[1].x[7] == 7 and charts[2].series[1].y[7] == 2 + 1 / 7)
  assert(charts[1].series[2].run == "two" and charts[1].series[2].y[20] == 2 / 20)
end

function tests.test_Y12_long_curves_are_small_and_keep_their_spikes()
  local function value(m, s) return s == 5003 and 1e3 or math.sin(s / 500 + m) end
  local run = make_run("long", {}, 20, 10000, value)
  local text, done = program("report " .. run)
  assert(done, text)
  local html = read(run .. "/report.html")
  assert(#html < 2e6, #html)
  local charts = mh.json.decode(html:match('<script type="application/json" id="data">(.-)</script>'))
  assert(#charts == 20)
  for _, chart in ipairs(charts) do
    local series, spike = chart.series[1], false
    assert(#series.x <= 1002 and series.x[1] == 1)
    for i, x in ipairs(series.x) do
      assert(series.y[i] == value(tonumber(chart.name:match("%d+")), x))
      spike = spike or x == 5003
      assert(i == 1 or x > series.x[i - 1])
    end
    assert(spike)
  end
end

--- The charts of a page, after a look at its structure.
local function charts_of(run, arguments)
  local text, done = program("report '" .. run .. "' " .. (arguments or ""))
  assert(done, text)
  local html = read(run .. "/report.html")
  assert(is_nested(html) and not html:find("nan") and not html:find("inf[^o]"), html)
  return mh.json.decode(html:match('<script type="application/json" id="data">(.-)</script>')), html
end

function tests.test_Y12_runs_without_time_steps_or_growing_steps_have_a_page()
  local charts, html = charts_of(make_run("no metrics", {}, 0, 0))
  assert(#charts == 0 and not html:find("logarithmic") and not html:find("<h2>Settings"))
  assert(html:find("<td>no metrics</td><td>2</td><td>-</td><td>-</td><td>-</td><td>-</td>", 1, true), html)

  charts = charts_of(make_run("one step", {}, 1, 1, function() return 7 end))
  assert(#charts[1].series[1].x == 1 and charts[1].series[1].y[1] == 7)

  local run, lines = make_run("same step", {}, 0, 0), {}
  for i = 1, 3000 do lines[i] = ('{"step": 4, "seconds": 1, "loss": %s, "deep": {"er": null}}'):format(i / 7) end
  write(run .. "/metrics.jsonl", table.concat(lines, "\n") .. "\n")
  charts = charts_of(run)
  assert(#charts == 1 and charts[1].name == "loss" and #charts[1].series[1].x <= 1000, #charts)

  for i = 1, 3000 do lines[i] = ('{"step": %d, "loss": %s}'):format(i % 100, i % 2 == 0 and "1e308" or "-1e308") end
  write(run .. "/metrics.jsonl", table.concat(lines, "\n") .. "\n")
  charts = charts_of(run)
  assert(#charts[1].series[1].x <= 1000, #charts[1].series[1].x)
end

function tests.test_Y12_the_page_says_what_a_step_took_and_has_the_profile()
  local script = own_path("profiled.lua")
  write(script, [[local mh = require "moonhalo"
    local net = mh.nn.Sequential(mh.nn.Linear(50, 50), mh.nn.Linear(50, 1))
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
    for step = 1, 4 do
      net(mh.ones{8, 50}):sum():backward()
      opt:step()
      mh.log {step = step, seconds = step * step / 4, rmse = {one = step, two = 2}}
    end]])
  local text, done = program(("run %s --quiet --ranks 2 --profile --profile-steps 2:3 --run %s/fit"):format(script,
    own_path("profiles")))
  assert(done, text)
  local parent = own_path("profiles")
  local run = parent .. "/" .. mh._run.list(parent)[1]
  local charts, html = charts_of(run)
  assert(#charts == 2 and charts[2].name == "rmse.two")
  assert(html:find("<td>4</td><td>0</td><td>1250</td><td>%d+%.%d MB</td><td>%-</td><td>%d[%d.]+ %uB</td></tr>"), html)
  local first = read(run .. "/profile/table.txt"):match("^[^\n]*")
  assert(html:find("<pre>" .. first, 1, true) and html:find("(optimizer)", 1, true), first)
  local flame = html:match('<svg class="flame".-</svg>')
  for _, name in ipairs{"rank 0", "rank 1", "aten::addmm"} do
    assert(flame:find("<title>" .. name .. ": ", 1, true), name)
  end
  local wide = 0.0
  for y, width in flame:gmatch('y="(%d+)" width="([%d.]+)" height') do
    if y == "0" then wide = wide + tonumber(width) end
  end
  assert(math.abs(wide - 1320) < 1, wide)
end

function tests.test_Y12_points_that_failed_early_have_their_settings()
  local parent = own_path("points")
  for i = 0, 1 do
    local run = ("%s/2026-01-01_%04d_000%d"):format(parent, i, i)
    mh.files.make_folder(run)
    write(run .. "/run.json", mh.json.encode{format = 1, name = ("%04d"):format(i), status = "failed",
      started = "2026-01-01T00:00:00.000Z", seconds = 0, settings = {}})
  end
  write(parent .. "/sweep.json", mh.json.encode{format = 1, points = {{"lr=0.5"}, {"lr=0.25"}}})
  local _, html = charts_of(parent)
  assert(html:find('<tr class="differs"><td>lr</td><td>0.5</td><td>0.25</td></tr>', 1, true), html)
end

function tests.test_Y12_a_folder_of_sweeps_is_one_page()
  local parent = own_path("sweeps")
  for i = 0, 1 do
    local run = ("%s/sweep_%d/2026-01-01_0000_000%d"):format(parent, i, i)
    mh.files.make_folder(run)
    write(run .. "/run.json", mh.json.encode{format = 1, name = "0000", status = "failed",
      started = "2026-01-01T00:00:00.000Z", seconds = 0, settings = {}})
    write(("%s/sweep_%d/sweep.json"):format(parent, i), mh.json.encode{format = 1, points = {{"lr=0." .. i + 1}}})
  end
  local _, html = charts_of(parent)
  assert(html:find('<tr class="differs"><td>lr</td><td>0.1</td><td>0.2</td></tr>', 1, true), html)
  assert(html:find("sweep_1/2026-01-01_0000_0001", 1, true), html)
end

function tests.test_Y12_what_is_not_a_run_is_refused()
  local folder = own_path("no_run")
  mh.files.make_folder(folder)
  local text, done = program("report " .. folder)
  assert(not done and text:find("report: '" .. folder .. "' is neither a run nor a folder of runs", 1, true), text)

  local run = make_run("taken", {}, 1, 1, function() return 1 end)
  mh.files.make_folder(run .. "/report.html/in")
  text, done = program("report " .. run)
  assert(not done and text:find("report: cannot give '", 1, true) and text:find("Is a directory", 1, true), text)
  assert(text:find("--output PAGE.html", 1, true), text)
end

return tests
