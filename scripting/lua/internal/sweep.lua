-- SPDX-License-Identifier: Apache-2.0
-- moonhalo sweep: a folder with sweep.json, a run folder for each point, and what each point printed in output/. Points
-- are processes of their own, so that one that fails or crashes does not stop the others.

local mh = require "moonhalo"
local files = require "moonhalo.internal.run_files"
local run_folder = require "moonhalo.internal.run_folder"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local sweep_points = require "moonhalo.internal.sweep_points"

local fail = mh.fail
local sweep = {}

local function point_name(index) return ("%04d"):format(index) end

--- Makes the folder of a new sweep and its sweep.json.
local function make(wanted)
  if mh.files.exists(wanted.target .. "/.") then
    fail(("sweep: '%s' is not the folder of a sweep\n  have  no sweep.json in it\n" ..
        "  fix   give a script, or the folder that a sweep has printed"):format(wanted.target))
  end
  for _, option in ipairs {"again", "index"} do
    if wanted[option] ~= "" and wanted[option] ~= -1 then
      fail(("sweep: --%s is for the folder of a sweep\n  have  the script '%s'"):format(option, wanted.target))
    end
  end
  local data = {format = 1, script = wanted.target, points = sweep_points.of(wanted), ranks = wanted.ranks,
    device = wanted.device, settings = wanted.settings, config_files = wanted.config_files, seed = wanted.seed}
  local name = wanted.name ~= "" and wanted.name or wanted.target:match("([^/]*)$"):gsub("%.lua$", "")
  local parent, own = name:match("^(.*)/([^/]+)$")
  local folder = run_folder.make_unique(parent or "sweeps", ((own or name):gsub("[^%w%.%-]", "-")))
  mh.files.make_folder(folder .. "/output")
  mh._files.write("sweep", folder .. "/sweep.json", mh.json.encode(data, 1) .. "\n")
  return folder, data
end

local function open(folder)
  local data = mh.json.load(folder .. "/sweep.json")
  if type(data) ~= "table" or data.format ~= 1 or type(data.points) ~= "table" then
    fail(("sweep: '%s/sweep.json' is not one of this program's"):format(folder))
  end
  return data
end

--- The words that run one point.
local function command_of(wanted, folder, data, index)
  local words = {wanted.program, "run", data.script, "--run", folder .. "/" .. point_name(index), "--quiet"}
  local function add(option, value) words[#words + 1], words[#words + 2] = option, value end
  if (tonumber(os.getenv("SLURM_NTASKS")) or 1) > 1 and wanted.index >= 0 then
    table.insert(words, 1, "srun")
  elseif data.ranks > 0 then
    add("--ranks", tostring(data.ranks))
  end
  if data.device ~= "" then add("--device", data.device) end
  for _, file in ipairs(data.config_files) do add("--config", file) end
  for _, setting in ipairs(data.settings) do add("--set", setting) end
  for _, setting in ipairs(data.points[index + 1]) do add("--set", setting) end
  return words
end

--- Status of the latest run of each point, by its name.
local function statuses(folder)
  local found = {}
  for _, one in ipairs(files.list(folder)) do found[one.data.name] = files.status(one.data) end
  return found
end

--- The numbers of the points to run.
local function choose(wanted, status, data)
  local chosen = {}
  for index = 0, #data.points - 1 do
    local now = status[point_name(index)]
    local left = now == nil or now == "killed"
    if wanted.again == "failed" then left = now ~= "done" and now ~= "running" end
    if left then chosen[#chosen + 1] = index end
  end
  return chosen
end

--- Runs points, some at the same time. Returns how many failed.
local function run_points(wanted, folder, data, chosen)
  local running, next_one, ended, failed = {}, 1, 0, 0
  while ended < #chosen do
    while next_one <= #chosen and next_one - 1 - ended < wanted.jobs do
      local index = chosen[next_one]
      local output = ("%s/output/%s.txt"):format(folder, point_name(index))
      local pid = mh._run.spawn(command_of(wanted, folder, data, index), output)
      running[pid] = {index = index, output = output, began = mh.clock()}
      next_one = next_one + 1
    end
    local pid, status = mh._run.wait()
    local one = running[pid]
    if one then
      running[pid], ended = nil, ended + 1
      if status ~= 0 then failed = failed + 1 end
      print(("[%d/%d] %s %s in %.1f s  %s%s"):format(ended, #chosen, point_name(one.index),
        status == 0 and "done" or "failed with status " .. status, mh.clock() - one.began,
        table.concat(data.points[one.index + 1], " "), status == 0 and "" or "  see " .. one.output))
    end
  end
  return failed
end

--- Says why no point is left to run.
local function print_nothing_left(status, data)
  local counts, parts = {}, {}
  for index = 0, #data.points - 1 do
    local now = status[point_name(index)] or "not begun"
    counts[now] = (counts[now] or 0) + 1
  end
  for _, name in ipairs(sorted_keys(counts)) do parts[#parts + 1] = counts[name] .. " " .. name end
  print(("nothing to run: %s%s"):format(table.concat(parts, ", "),
    counts.failed and "; --again failed runs them again" or ""))
end

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

--- Writes the array job, and submits it with --submit.
local function write_job(wanted, folder, data)
  local pipe = assert(io.popen("pwd -P"))
  local here = pipe:read("l")
  assert(pipe:close())
  local limit = wanted.at_most > 0 and "%" .. wanted.at_most or ""
  local path = folder .. "/job.sh"
  mh._files.write("sweep", path, table.concat({
    "#!/bin/bash", ("#SBATCH --array=0-%d%s"):format(#data.points - 1, limit),
    "#SBATCH --output=/dev/null", "#SBATCH " .. wanted.slurm, "cd " .. quoted(here) .. " || exit 1",
    ("exec %s sweep %s --index \"$SLURM_ARRAY_TASK_ID\""):format(quoted(wanted.program), quoted(folder)), "",
  }, "\n"))
  if not wanted.submit then
    print(("%d points in %s\nsbatch %s"):format(#data.points, folder, path))
    return 0
  end
  return os.execute("sbatch " .. quoted(path)) and 0 or 1
end

--- Carries out the command with its options. Returns the exit status.
function sweep.main(wanted)
  local folder, data = (wanted.target:gsub("(.)/+$", "%1")), nil
  local old = mh.files.exists(folder .. "/sweep.json")
  if old then data = open(folder) else folder, data = make(wanted) end
  if wanted.slurm ~= "" then return write_job(wanted, folder, data) end
  if wanted.index >= #data.points then
    fail(("sweep: there is no point %d\n  have  points 0 to %d"):format(wanted.index, #data.points - 1))
  end
  local status = statuses(folder)
  local chosen = wanted.index >= 0 and {wanted.index} or choose(wanted, status, data)
  if #chosen == 0 then
    print_nothing_left(status, data)
    return 0
  end
  if not old then print(("%d points in %s"):format(#data.points, folder)) end
  local failed = run_points(wanted, folder, data, chosen)
  print(("%d of %d points done; moonhalo runs %s shows them"):format(#chosen - failed, #chosen, folder))
  return failed > 0 and 1 or 0
end

return sweep
