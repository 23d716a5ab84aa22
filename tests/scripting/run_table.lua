-- SPDX-License-Identifier: Apache-2.0
-- Y11: moonhalo runs, by the table that it prints.
local mh = require "moonhalo"
local own_path = require "support.own_path"

local tests = {}

--- Runs the program. Returns its output, and whether its status was 0.
local function program(arguments, before)
  local pipe = assert(io.popen((before or "") .. "/proc/" .. mh._run.pid() .. "/exe " .. arguments .. " 2>&1"))
  local text = pipe:read("a")
  return text, pipe:close() == true
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  assert(file:write(text) and file:close())
  return path
end

--- A folder of `count` runs, written as run.json has them.
local function runs(name, count)
  local folder = own_path(name)
  for i = 1, count do
    local run = ("%s/2026-01-01_fit_%04x"):format(folder, i)
    mh.files.make_folder(run)
    local file = assert(io.open(run .. "/run.json", "w"))
    assert(file:write(mh.json.encode{format = 1, name = "fit", started = ("2026-01-01T00:00:%06.3fZ"):format(i / 100),
      status = i == 2 and "failed" or "done", seconds = i * 1.5, settings = {lr = 0.1 / i, net = {width = 8}, seed = 1},
      metrics = i ~= 3 and {["valid/rmse"] = {last = 10.0 - i, least = 1.0 / i, greatest = 11}} or {}}))
    assert(file:close())
  end
  return folder
end

local function lines(text)
  local list = {}
  for line in text:gmatch("[^\n]+") do list[#list + 1] = line end
  return list
end

function tests.test_Y11_the_table_has_settings_that_differ_and_last_metrics()
  local text, done = program("runs " .. runs("table", 4))
  assert(done, text)
  local all = lines(text)
  assert(#all == 5, text)
  assert(all[1]:find("^run +status +seconds +lr +valid/rmse$"), all[1])
  assert(all[2]:find("^2026%-01%-01_fit_0001  done +1.5 +0.1 +9$"), all[2])
  assert(all[3]:find("failed +3 +0.05 +8$"), all[3])
  assert(all[4]:find("done +4.5 +0.033333 +%-$"), all[4])
end

function tests.test_Y11_rows_are_chosen_and_sorted()
  local folder = runs("chosen", 4)
  local text = program("runs " .. folder .. " --columns lr,valid/rmse.min --sort valid/rmse.min --where 'lr < 0.09'")
  local all = lines(text)
  assert(#all == 4 and all[1]:find("^run +lr +valid/rmse.min$"), text)
  assert(all[2]:find("fit_0004") and all[3]:find("fit_0002") and all[4]:find("fit_0003"), text)
  text = program("runs " .. folder .. " --sort=-lr --where 'status = done' --csv --columns lr,seconds")
  assert(text == "run,lr,seconds\n2026-01-01_fit_0001,0.1,1.5\n2026-01-01_fit_0003,0.03333333333333333,4.5\n" ..
      "2026-01-01_fit_0004,0.025,6.0\n", text)
end

function tests.test_Y11_columns_of_all_runs_may_be_empty()
  local text, done = program("runs " .. runs("without_errors", 2) .. " --columns error --sort error")
  assert(done and lines(text)[1]:find("^run +error$") and lines(text)[2]:find("_0001  %-$"), text)
end

function tests.test_Y11_a_folder_of_sweeps_has_the_runs_of_each()
  local parent = own_path("sweeps")
  runs("sweeps/one", 1)
  runs("sweeps/two", 2)
  local text, done = program("runs " .. parent .. " --columns lr")
  local all = lines(text)
  assert(done and #all == 4 and all[2]:find("^one/2026%-01%-01_fit_0001 ") and all[4]:find("^two/.*_0002 "), text)
end

function tests.test_Y11_numbers_that_are_not_finite_are_shown_and_compared()
  local folder = own_path("infinite")
  for i, value in ipairs{"inf", 0.5, "nan"} do
    local run = ("%s/2026-01-01_fit_%04x"):format(folder, i)
    mh.files.make_folder(run)
    write(run .. "/run.json", mh.json.encode{format = 1, name = "fit", started = "2026-01-01T00:00:00.000Z",
      status = "done", seconds = 0, metrics = {loss = {last = value, least = i == 2 and 0.5 or nil}}})
  end
  local text = program("runs " .. folder .. " --columns loss,loss.min --sort loss")
  local all = lines(text)
  assert(all[2]:find("_0002 +0.5 +0.5$") and all[3]:find("_0001 +inf +%-$") and all[4]:find("_0003 +nan +%-$"), text)
  text = program("runs " .. folder .. " --where 'loss > 0.1' --columns loss")
  assert(#lines(text) == 2 and text:find("_0002"), text)
  text = program("runs " .. folder .. " --where 'loss = nan' --columns loss")
  assert(#lines(text) == 2 and text:find("_0003"), text)
  text = program("runs " .. folder .. " --where 'loss != nan' --columns loss")
  assert(#lines(text) == 3, text)
end

function tests.test_Y11_a_run_that_cannot_be_read_is_left_out()
  local folder = runs("broken", 3)
  write(folder .. "/2026-01-01_fit_0002/run.json", '{"format": 1, "name')
  local text, done = program("runs " .. folder)
  assert(done and text:find("runs: '" .. folder .. "/2026-01-01_fit_0002' is left out\n  have  ", 1, true), text)
  assert(text:find("fit_0001  done", 1, true) and text:find("fit_0003  done", 1, true), text)
end

function tests.test_Y11_wrong_questions_are_refused()
  local folder = runs("refused", 2)
  for arguments, expected in pairs{
    ["--columns rl"] = "runs: --columns: no run has 'rl'; did you mean 'lr'?",
    ["--sort nothing"] = "runs: --sort: no run has 'nothing'",
    ["--where 'lr'"] = "runs: --where 'lr' cannot be read",
  } do
    local text, done = program("runs " .. folder .. " " .. arguments)
    assert(not done and text:find(expected, 1, true), text)
  end
  mh.files.make_folder(own_path("empty"))
  local text, done = program("runs " .. own_path("empty"))
  assert(not done and text:find("has no runs\n  have  no folder with a run.json", 1, true), text)
end

function tests.test_Y11_the_script_may_stand_before_and_behind_the_options()
  local folder = own_path("words")
  mh.files.make_folder(folder)
  local script = folder .. "/fit.lua"
  local file = assert(io.open(script, "w"))
  assert(file:write("local run = require('moonhalo').run()\nprint(run.name, run:resume{} or 'new', run.resumed)\n" ..
    "run:epoch_done()"))
  assert(file:close())
  for _, case in ipairs{
    {"run --run fit.lua --ranks 1", "fit\tnew\tfalse"}, {"run --resume fit.lua --ranks 1", "fit\t1\ttrue"},
    {"run --run sea/small fit.lua --ranks 1", "small\tnew\tfalse"}, {"run --resume fit.lua", "fit\t2\ttrue"},
    {"run fit.lua --resume --run sea/small", "small\t1\ttrue"}, {"run fit.lua --resume", "fit\t3\ttrue"},
    {"run --ranks 1 --resume latest fit.lua", "fit\t4\ttrue"}, {"fit.lua --run other", "other\tnew\tfalse"},
    {"run --resume sea/*small* fit.lua", "small\t2\ttrue"}, {"run --run=fit fit.lua", "fit\tnew\tfalse"},
  } do
    local text = program(case[1], "cd " .. folder .. " && ")
    assert(text == case[2] .. "\n", case[1] .. "\n" .. text)
  end
end

function tests.test_Y11_a_run_that_was_done_says_so_when_it_is_resumed()
  local folder = own_path("again")
  mh.files.make_folder(folder)
  local file = assert(io.open(folder .. "/fit.lua", "w"))
  assert(file:write("local mh = require 'moonhalo'\nlocal run, cfg = mh.run(), mh.config{epochs = 2}\n" ..
    "for _ = run:resume{} or 0, cfg.epochs - 1 do run:step_done() run:epoch_done() end"))
  assert(file:close())
  local before = "cd " .. folder .. " && "
  assert(program("run --run fit.lua --ranks 1", before) == "")
  local text = program("run --resume fit.lua --ranks 1", before)
  assert(text:find("^moonhalo: run: 'runs/[^\n]*' was done before, at step 2 and epoch 2: nothing was left to do\n$"),
    text)
  text = program("run --resume fit.lua --ranks 1 --set epochs=3", before)
  assert(text == "", text)
end

function tests.test_Y11_a_run_whose_process_is_gone_was_killed()
  local folder = own_path("killed")
  local run = mh.run{folder = folder, name = "alive"}
  assert(program("runs " .. folder):find("running"))
  local data = mh.json.load(run.folder .. "/run.json")
  run:finish()
  data.process.start = "1"
  local file = assert(io.open(run.folder .. "/run.json", "w"))
  assert(file:write(mh.json.encode(data)) and file:close())
  assert(program("runs " .. folder):find("killed"))
end

return tests
