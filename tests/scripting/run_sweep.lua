-- SPDX-License-Identifier: Apache-2.0
-- Y12: moonhalo sweep: the same points everywhere, failed points, arrays of Slurm.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local points = require "moonhalo.internal.sweep_points"
local run_files = require "moonhalo.internal.run_files"

local tests = {}

--- Runs the program. Returns its output and status.
local function program(arguments)
  local pipe = assert(io.popen("/proc/" .. mh._run.pid() .. "/exe " .. arguments .. " 2>&1"))
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
  local file = assert(io.open(job))
  local lines = file:read("a")
  assert(file:close())
  assert(lines:find("#SBATCH --array=0-1%8\n", 1, true), lines)
  assert(lines:find("#SBATCH --partition gpu -N 1\n", 1, true), lines)
  local status = select(3, os.execute("SLURM_ARRAY_TASK_ID=0 bash " .. job .. " > /dev/null"))
  assert(status == 0)
  local runs = run_files.list(folder)
  assert(#runs == 1 and runs[1].data.name == "0000" and runs[1].data.settings.lr == 0.25)
  assert(mh.json.encode(runs[1].data.settings.cut) == "[5,4]")
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
