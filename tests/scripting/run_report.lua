-- SPDX-License-Identifier: Apache-2.0
-- Y12: moonhalo report, by the structure of its page. MOONHALO_BROWSER=chromium also opens it in that browser.
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
  write(folder .. "/metrics.jsonl", table.concat(lines, "\n") .. "\n" .. '{"step": 3, "half')
  return folder
end

--- True if every element that is opened is closed in its turn.
local function is_nested(html)
  local open, alone = {}, {meta = true, img = true, input = true, path = true, ["!DOCTYPE"] = true}
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

function tests.test_Y12_what_is_not_a_run_is_refused()
  local folder = own_path("no_run")
  mh.files.make_folder(folder)
  local text, done = program("report " .. folder)
  assert(not done and text:find("report: '" .. folder .. "' is neither a run nor a folder of runs", 1, true), text)
end

--- Moves the pointer over the middle of the first curve, with and without logarithm, and writes what stands there.
local kProbe = [[<script>
const first = document.querySelector(".chart"), area = first.querySelector("svg").getBoundingClientRect();
const at = () => {
  first.dispatchEvent(new MouseEvent("mousemove", {clientX: area.left + area.width * 0.55, clientY: area.top + 50}));
  return first.querySelector(".tip").textContent;
};
const plain = at();
byId("log").click();
document.body.dataset.said = plain + "|" + at() + "|" + performance.getEntriesByType("resource").length;
</script></body>]]

function tests.test_Y12_a_browser_shows_the_values_under_the_pointer()
  local browser = os.getenv("MOONHALO_BROWSER")
  if not browser then return end
  local run = make_run("shown", {}, 1, 30, function(_, s) return 1 / s end)
  program("report " .. run)
  local path = own_path("probe.html")
  write(path, (read(run .. "/report.html"):gsub("script%-src 'unsafe%-inline'", "%0"):gsub("</body>", function()
    return kProbe
  end)))
  local pipe = assert(io.popen(browser .. " --headless --no-sandbox --disable-gpu --enable-logging=stderr" ..
    " --dump-dom --user-data-dir=" .. own_path("browser") .. " file://" .. path .. " 2>&1"))
  local text = pipe:read("a")
  assert(pipe:close())
  local said = text:match('data%-said="([^"]*)"')
  assert(said, text:sub(1, 3000))
  local step, value = said:match("step (%d+): ([%d.e-]+)|")
  assert(tonumber(value) == 1 / tonumber(step) and math.abs(tonumber(step) - 15) < 3, said)
  assert(said:match("|[^|]*step (%d+)") == step and said:find("|0$"), said)
  assert(not text:find("CONSOLE"), text)
end

return tests
