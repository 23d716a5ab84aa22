-- SPDX-License-Identifier: Apache-2.0
-- Y12: moonhalo sweep: the same points everywhere, failed points, arrays of Slurm.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local points = require "moonhalo.internal.sweep_points"
local run_files = require "moonhalo.internal.run_files"

local tests = {}

local kProgram = "/proc/" .. mh._run.pid() .. "/exe "

--- Runs the program. Returns its output and status. `before`: what the shell does first.
local function program(arguments, before)
  local pipe = assert(io.popen((before or "") .. kProgram .. arguments .. " 2>&1"))
  local text = pipe:read("a")
  local _, _, status = pipe:close()
  return text, status
end

--- The same of a command line of the shell.
local function program_of(command)
  local pipe = assert(io.popen("(" .. command .. ") 2>&1"))
  local text = pipe:read("a")
  local _, _, status = pipe:close()
  return text, status
end

local function write(name, text)
  local path = own_path(name)
  local file = assert(io.open(path, "w"))
  assert(file:write(text) and file:close())
  return path
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("a")
  assert(file:close())
  return text
end

--- The folder of the only sweep in a folder.
local function only(folder)
  local names = mh._run.list(folder)
  assert(#names == 1, #names)
  return folder .. "/" .. names[1]
end

local function shown(list)
  local lines = {}
  for i, point in ipairs(list) do lines[i] = table.concat(point, " ") end
  return table.concat(lines, "\n")
end

local kScript = [[
local mh = require "moonhalo"
local cfg = mh.config {lr = 0.1, act = "gelu", cut = {0}, bad = false, mark = ""}
print("lr is", cfg.lr)
if cfg.act == "relu" and not mh.files.exists(cfg.mark) then error("no relu") end
mh.log {loss = cfg.lr * 2}
]]

function tests.test_Y12_a_grid_has_all_combinations()
  assert(shown(points.grid{"lr=1,2", "cut=[5,4],[9]"}) ==
      "lr=1 cut=[5,4]\nlr=1 cut=[9]\nlr=2 cut=[5,4]\nlr=2 cut=[9]")
end

function tests.test_Y12_drawn_points_are_a_function_of_seed_and_index()
  local path = write("space.lua", [[local mh = require "moonhalo"
    return {lr = mh.space.log(1e-5, 1e-2), ["net.width"] = mh.space.choice {16, 32},
      drop = mh.space.uniform(0, 0.5), layers = mh.space.integer(1, 4)}]])
  local list = points.random(40, path, 7)
  assert(#list == 40 and shown(points.random(3, path, 7)) == shown{list[1], list[2], list[3]})
  assert(shown(points.random(40, path, 8)) ~= shown(list))
  assert(shown{list[1], list[40]} ==
      "drop=0.289418 layers=4 lr=0.00361675 net.width=32\n" ..
      "drop=0.0658609 layers=3 lr=0.00477391 net.width=32")
  local seen = {}
  for _, point in ipairs(list) do
    for _, setting in ipairs(point) do
      local name, value = setting:match("^(.-)=(.*)$")
      seen[name] = seen[name] or {}
      table.insert(seen[name], tonumber(value))
    end
  end
  for name, range in pairs{lr = {1e-5, 1e-2}, drop = {0, 0.5}, layers = {1, 4}, ["net.width"] = {16, 32}} do
    local low, high = math.min(table.unpack(seen[name])), math.max(table.unpack(seen[name]))
    assert(low >= range[1] and high <= range[2] and low < high, name)
  end
end

function tests.test_Y12_a_failed_point_does_not_stop_the_others_and_runs_again()
  local folder, mark = own_path("sweep"), own_path("mark")
  local text, status = program(("sweep %s --name %s/fit --grid act=gelu,relu,tanh --set lr=0.5 --set mark=%s --jobs 3")
    :format(write("train.lua", kScript), folder, mark))
  assert(status == 1 and text:find("0001 failed with status 1", 1, true) and text:find("2 of 3 points done"), text)
  assert(text:find("/output/0001%.txt\n  %S*train%.lua:4: no relu\n"), text)
  local made = folder .. "/" .. mh._run.list(folder)[1]
  local found = {}
  for _, one in ipairs(run_files.list(made)) do found[one.data.name] = one.data end
  assert(found["0000"].status == "done" and found["0000"].settings.act == "gelu" and found["0000"].settings.lr == 0.5)
  assert(found["0001"].status == "failed" and found["0001"].error:find("no relu"))
  local output = assert(io.open(made .. "/output/0001.txt"))
  assert(output:read("a"):find("lr is\t0.5\n.*no relu"))
  assert(output:close())
  assert(program("runs " .. made):find("failed"))

  write("mark", "")
  text, status = program("sweep " .. made .. " --again failed")
  assert(status == 0 and text:find("1 of 1 points done"), text)
  assert(select(2, program("sweep " .. made .. " --index 9")) == 1)
end

function tests.test_Y12_a_point_that_failed_early_shows_its_settings()
  local script = write("early.lua", 'local mh = require "moonhalo"\nlocal run = mh.run_info()\n' ..
    'if run.run_name:find("0001$") then error("early") end\nmh.config {lr = 0.1, act = "gelu", seed = 1}')
  local folder = own_path("early")
  program(("sweep %s --name %s/fit --grid lr=0.5,0.25"):format(script, folder))
  local made = folder .. "/" .. mh._run.list(folder)[1]

  local text, status = program("runs " .. made)
  assert(status == 0 and text:find("^run +status +seconds +lr\n"), text)
  assert(text:find("_0001_%x+ +failed +[%d.]+ +0.25\n"), text)
  text, status = program("sweep " .. made)
  assert(status == 0 and text == "nothing to run: 1 done, 1 failed; --again failed runs them again\n", text)
end

function tests.test_Y12_points_of_a_list_and_an_array_job()
  local script = write("listed.lua", kScript)
  local list = write("points.jsonl", '{"lr": 0.25, "cut": [5, 4]}\n\n{"act": "tanh"}\n')
  local text = program(("sweep %s --name %s/array --list %s --slurm '--partition gpu -N 1' --at-most 8"):format(script,
    own_path("slurm"), list))
  local folder, job = text:match("^2 points in (%S+)\nsbatch (%S+)\n$")
  assert(folder, text)
  local lines, status = read(job), nil
  assert(lines:find("#SBATCH --array=0-1%8\n", 1, true), lines)
  assert(lines:find("#SBATCH --partition gpu -N 1\n", 1, true), lines)
  -- Other points are not looked at: thousands of elements would read thousands of files each.
  mh.files.make_folder(folder .. "/2026-01-01_0001_abcd")
  write("broken", "")
  assert(os.rename(own_path("broken"), folder .. "/2026-01-01_0001_abcd/run.json"))
  text, status = program_of("SLURM_ARRAY_TASK_ID=0 bash " .. job)
  assert(status == 0 and text:find("^%[1/1%] 0000 done in [%d.]+ s  cut=%[5,4%] lr=0.25\n"), text)
  assert(not text:find("left out"), text)
  os.remove(folder .. "/2026-01-01_0001_abcd/run.json")
  local runs = run_files.list(folder)
  assert(#runs == 1 and runs[1].data.name == "0000" and runs[1].data.settings.lr == 0.25)
  assert(mh.json.encode(runs[1].data.settings.cut) == "[5,4]")
end

--- Programs of Slurm that write how they were called into `log`.
local function slurm(name, status)
  local folder = own_path(name)
  mh.files.make_folder(folder)
  for _, one in ipairs{"sbatch", "srun"} do
    local path = folder .. "/" .. one
    local text = ('#!/bin/sh\nprintf "%%s|" %s "$@" >> "%s/log"\n'):format(one, folder)
    write(name .. "/" .. one, text .. (one == "srun" and 'exec "$@"\n' or ("exit %d\n"):format(status)))
    assert(os.execute("chmod +x '" .. path .. "'"))
  end
  return ('PATH="%s:$PATH" '):format(folder), folder .. "/log"
end

function tests.test_Y12_a_job_is_submitted_and_its_elements_start_ranks()
  local script, folder = write("submitted.lua", kScript), own_path("a job")
  local path, log = slurm("slurm programs", 0)
  local text, status = program(("sweep %s --name '%s/array' --grid lr=1,2,3 --slurm '-t 5' --submit"):format(script,
    folder), path)
  local made = only(folder)
  assert(status == 0 and text == ("3 points in %s\n"):format(made), text)
  assert(read(log) == ("sbatch|%s/job.sh|"):format(made), read(log))
  assert(read(made .. "/job.sh"):find(('#SBATCH --output="%s/output/job_%%a.txt"\n'):format(made), 1, true))

  text, status = program_of(path .. "SLURM_NTASKS=2 SLURM_ARRAY_TASK_ID=2 bash '" .. made .. "/job.sh'")
  assert(status == 0 and text:find("0002 done"), text)
  assert(text:find("moonhalo runs '" .. made .. "' shows", 1, true), text)
  assert(read(log):find("|srun|/[^|]*|run|" .. script:gsub("%p", "%%%0") .. "|%-%-run|"), read(log))
  assert(not read(log):find("--ranks", 1, true), read(log))

  -- An array of what is left.
  text = program(("sweep '%s' --slurm '-t 5'"):format(made))
  assert(text:find("^2 points in ") and read(made .. "/job.sh"):find("--array=0-1\n", 1, true), text)

  path = slurm("slurm that refuses", 1)
  text, status = program(("sweep '%s' --slurm '-t 5' --submit"):format(made), path)
  assert(status == 1 and text:find("sweep: sbatch refused the job\n  have  " .. made .. "/job.sh", 1, true), text)
end

local kEpochs = [[
local mh = require "moonhalo"
local cfg = mh.config {lr = 0.1, wait = ""}
local run = mh.run()
for _ = run:resume {net = mh.nn.Linear(1, 1)} or 0, 2 do
  run:step_done {loss = cfg.lr}
  if run.epoch == 1 and not mh.files.exists(cfg.wait) then
    io.open(cfg.wait .. "_begun", "a"):write("+"):close()
    while not mh.signalled() do os.execute "sleep 0.05" end
  end
  if run:epoch_done {loss = cfg.lr} then return end
end
]]

--- Waits until another process has done something.
local function wait_for(condition)
  while not condition() do os.execute "sleep 0.05" end
end

function tests.test_Y12_a_signal_stops_the_points_which_continue_later()
  local script, folder, wait = write("epochs.lua", kEpochs), own_path("stopped"), own_path("wait")
  local pipe = assert(io.popen(("%ssweep %s --name %s/fit --grid lr=1,2,3 --set wait=%s --ranks 1 --jobs 2 & " ..
    "echo $!; wait"):format(kProgram, script, folder, wait)))
  local sweep = pipe:read("l")
  wait_for(function() return mh.files.exists(wait .. "_begun") and #read(wait .. "_begun") == 2 end)
  os.execute("kill " .. sweep)
  local text = pipe:read("a")
  assert(pipe:close())
  local made = only(folder)
  assert(text:find("0 of 3 points done; stopped by SIGTERM, moonhalo sweep " .. made .. " continues", 1, true), text)
  assert(text:find("0000 stopped in") and text:find("0001 stopped in") and not text:find("] 0002", 1, true), text)

  write("wait", "")
  local again, status = program("sweep " .. made .. " --jobs 3")
  assert(status == 0 and again:find("3 of 3 points done"), again)
  local runs = run_files.list(made)
  assert(#runs == 3, #runs)
  for _, run in ipairs(runs) do
    assert(run.data.status == "done" and run.data.step == 3 and (run.data.resumed ~= nil) == (run.data.name ~= "0002"))
    assert(#run_files.read_metrics(run.folder) == 6)
  end
end

function tests.test_Y12_two_sweeps_of_a_folder_share_its_points()
  local script, folder, mark = write("shared.lua", kScript), own_path("shared"), own_path("none")
  program(("sweep %s --name %s/fit --grid lr=1,2,3,4,5,6 --set mark=%s --slurm '-t 5'"):format(script, folder, mark))
  local made = only(folder)
  local text = program_of(("%ssweep %s & %ssweep %s; wait"):format(kProgram, made, kProgram, made))
  local runs, seen = run_files.list(made), {}
  for _, run in ipairs(runs) do seen[run.data.name] = run.data.status end
  assert(#runs == 6, text)
  for index = 0, 5 do assert(seen[("%04d"):format(index)] == "done", text) end
  assert(program("sweep " .. made) == "nothing to run: 6 done\n")
end

function tests.test_Y12_a_sweep_continues_where_its_script_is()
  local folder = own_path("here")
  mh.files.make_folder(folder)
  write("here/fit.lua", kScript)
  program("sweep fit.lua --grid lr=1 --slurm '-t 5'", "cd " .. folder .. " && ")
  local text, status = program("sweep " .. only(folder .. "/sweeps"), "cd / && ")
  assert(status == 1 and text:find("sweep: the script 'fit.lua' is not here\n  have  working directory '/'", 1, true),
    text)
  assert(text:find("fix   go to '" .. folder, 1, true), text)
end

function tests.test_Y12_wrong_sweeps_are_refused()
  local script, empty = write("refused.lua", kScript), own_path("empty")
  mh.files.make_folder(empty)
  for arguments, expected in pairs{
    [script] = "sweep: the points come from one of --grid, --random and --list\n  have  none of them",
    [script .. " --grid lr"] = "sweep: --grid 'lr' is not of the form key=a,b,c",
    [script .. " --random 3"] = "sweep: --random has no space",
    [script .. " --list " .. write("bad.jsonl", '{"a": 1}\n[1]\n')] = "line 2 is not a JSON object",
    [script .. " --grid lr=1 --again failed"] = "sweep: --again is for the folder of a sweep",
    [empty] = "is not the folder of a sweep",
  } do
    local text, status = program("sweep " .. arguments)
    assert(status ~= 0 and text:find(expected, 1, true), arguments .. "\n" .. text)
  end
end

return tests
