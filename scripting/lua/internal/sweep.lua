-- SPDX-License-Identifier: Apache-2.0
-- moonhalo sweep: a folder with sweep.json, a run folder for each point, and what each point printed in output/. Points
-- are processes of their own, so that one that fails or crashes does not stop the others. Each holds the lock of its
-- output file, so that several sweeps of one folder share the points.

local mh = require "moonhalo"
local facts = require "moonhalo.internal.run_facts"
local files = require "moonhalo.internal.run_files"
local run_folder = require "moonhalo.internal.run_folder"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local sweep_points = require "moonhalo.internal.sweep_points"

local fail, quoted, word = mh.fail, facts.quoted, facts.word
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
    device = wanted.device, settings = wanted.settings, config_files = wanted.config_files, seed = wanted.seed,
    working_directory = mh._run.working_directory()}
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
  if not mh.files.exists(data.script) then
    fail(("sweep: the script '%s' is not here\n  have  working directory '%s'\n" ..
      "  fix   go to '%s', where the sweep began"):format(data.script, mh._run.working_directory(),
      data.working_directory or "the folder"))
  end
  return data
end

-- ---- Points --------------------------------------------------------------------------------------------------------

--- {folder, status, error} of a run; empty where there is none.
local function state_of(run)
  return run and {folder = run.folder, status = files.status(run.data), error = run.data.error} or {}
end

--- The state of the latest run of a point. Runs of other points are not read.
local function latest(folder, index)
  local runs = files.list(folder, "_" .. point_name(index) .. "_%x+$")
  return state_of(runs[#runs])
end

--- The same of all points, by their numbers.
local function all_latest(folder, data)
  local by_name, found = {}, {}
  for _, one in ipairs(files.list(folder)) do by_name[one.data.name] = one end
  for index = 0, #data.points - 1 do found[index] = state_of(by_name[point_name(index)]) end
  return found
end

--- True if a point whose latest run has this status is to be run.
local function is_left(status, again)
  return status == nil or status == "killed" or status == "stopped" or status == again
end

--- The numbers of the points to run.
local function choose(wanted, points, data)
  local chosen = {}
  for index = 0, #data.points - 1 do
    if is_left(points[index].status, wanted.again) then chosen[#chosen + 1] = index end
  end
  return chosen
end

--- The words that run one point. It continues a run that did not end, if that has a checkpoint.
local function command_of(wanted, folder, data, index, last)
  local words = {wanted.program, "run", data.script, "--run", folder .. "/" .. point_name(index), "--quiet"}
  local function add(option, value) words[#words + 1], words[#words + 2] = option, value end
  if (tonumber(os.getenv("SLURM_NTASKS")) or 1) > 1 and wanted.index >= 0 then
    table.insert(words, 1, "srun")
  elseif data.ranks > 0 then
    add("--ranks", tostring(data.ranks))
  end
  local ended = last.status == nil or last.status == "done" or last.status == "failed"
  if not ended and mh.files.exists(last.folder .. "/checkpoints/last") then add("--resume", last.folder) end
  if data.device ~= "" then add("--device", data.device) end
  for _, file in ipairs(data.config_files) do add("--config", file) end
  for _, setting in ipairs(data.settings) do add("--set", setting) end
  for _, setting in ipairs(data.points[index + 1]) do add("--set", setting) end
  return words
end

-- ---- Processes -----------------------------------------------------------------------------------------------------

--- Starts a point. Returns its process; nil where another sweep runs it, or has run it since `seen` was read.
local function start(wanted, folder, data, index, seen)
  local output = ("%s/output/%s.txt"):format(folder, point_name(index))
  local claim = mh._run.claim(output)
  if not claim then return nil end
  local last = latest(folder, index)
  if wanted.index < 0 and (last.folder ~= seen.folder or not is_left(last.status, wanted.again)) then
    mh._run.release(claim)
    return nil
  end
  local pid = mh._run.spawn(command_of(wanted, folder, data, index, last), claim)
  return {pid = pid, index = index, output = output, began = mh.clock()}
end

--- The end of a process of a point: done, failed or stopped, and what to print about a failure.
local function outcome_of(folder, one, status)
  local last = latest(folder, one.index)
  if status == 0 then return last.status == "stopped" and "stopped" or "done", "" end
  local problem = last.status == "failed" and type(last.error) == "string" and last.error:match("^[^\n]*")
  return "failed", ("  see %s%s"):format(word(one.output), problem and "\n  " .. problem or "")
end

--- Runs points, some at the same time, until a signal comes. Returns how many ended how; `elsewhere`: in another sweep.
local function run_points(wanted, folder, data, chosen, seen)
  local running, active, next_one, ended = {}, 0, 1, 0
  local counts = {done = 0, failed = 0, stopped = 0, elsewhere = 0}
  while true do
    while next_one <= #chosen and active < wanted.jobs and not mh._run.stop_signal() do
      local one = start(wanted, folder, data, chosen[next_one], seen[chosen[next_one]] or {})
      if one then running[one.pid], active = one, active + 1 else counts.elsewhere = counts.elsewhere + 1 end
      next_one = next_one + 1
    end
    if active == 0 then return counts end
    local pid, status = mh._run.wait()
    local one = running[pid]
    if one then
      running[pid], active, ended = nil, active - 1, ended + 1
      local outcome, about = outcome_of(folder, one, status)
      counts[outcome] = counts[outcome] + 1
      print(("[%d/%d] %s %s%s in %.1f s  %s%s"):format(ended, #chosen, point_name(one.index), outcome,
        outcome == "failed" and " with status " .. status or "", mh.clock() - one.began,
        table.concat(data.points[one.index + 1], " "), about))
    end
  end
end

--- Says why no point is left to run.
local function print_nothing_left(points, data)
  local counts, parts = {}, {}
  for index = 0, #data.points - 1 do
    local now = points[index].status or "not begun"
    counts[now] = (counts[now] or 0) + 1
  end
  for _, name in ipairs(sorted_keys(counts)) do parts[#parts + 1] = counts[name] .. " " .. name end
  local remedy = counts.failed and "; --again failed runs them again"
      or counts.running and "; --again running runs those whose process is gone" or ""
  print("nothing to run: " .. table.concat(parts, ", ") .. remedy)
end

--- Says how the points ended. Returns the exit status.
local function print_end(folder, chosen, counts)
  local text = ("%d of %d points done"):format(counts.done, #chosen)
  if counts.elsewhere > 0 then text = text .. (", %d in another sweep of this folder"):format(counts.elsewhere) end
  local signal = mh._run.stop_signal()
  if signal then
    print(("%s; stopped by %s, moonhalo sweep %s continues"):format(text, signal, word(folder)))
  else
    print(("%s; moonhalo runs %s shows them"):format(text, word(folder)))
  end
  return counts.failed > 0 and 1 or 0
end

-- ---- Slurm ---------------------------------------------------------------------------------------------------------

--- "0-3,7" for a list of increasing numbers.
local function ranges(numbers)
  local parts, first = {}, 1
  for i = 1, #numbers do
    if numbers[i + 1] ~= numbers[i] + 1 then
      parts[#parts + 1] = first == i and tostring(numbers[i]) or numbers[first] .. "-" .. numbers[i]
      first = i + 1
    end
  end
  return table.concat(parts, ",")
end

--- Writes the array job, and submits it with --submit. Returns the exit status.
local function write_job(wanted, folder, chosen)
  local here = mh._run.working_directory()
  local path = folder .. "/job.sh"
  local output = (folder:find("^/") and folder or here .. "/" .. folder) .. "/output/job_%a.txt"
  mh._files.write("sweep", path, table.concat({
    "#!/bin/bash", ("#SBATCH --array=%s%s"):format(ranges(chosen), wanted.at_most > 0 and "%" .. wanted.at_most or ""),
    ('#SBATCH --output="%s"'):format(output), "#SBATCH " .. wanted.slurm, "cd " .. quoted(here) .. " || exit 1",
    ("exec %s sweep %s --index \"$SLURM_ARRAY_TASK_ID\""):format(quoted(wanted.program), quoted(folder)), "",
  }, "\n"))
  print(("%d points in %s"):format(#chosen, folder))
  if not wanted.submit then
    print("sbatch " .. word(path))
    return 0
  end
  if os.execute("sbatch " .. quoted(path)) then return 0 end
  fail(("sweep: sbatch refused the job\n  have  %s\n  fix   correct its options and submit it: sbatch %s"):format(path,
    word(path)))
end

--- Carries out the command with its options. Returns the exit status.
function sweep.main(wanted)
  local folder, data = (wanted.target:gsub("(.)/+$", "%1")), nil
  local old = mh.files.exists(folder .. "/sweep.json")
  if old then data = open(folder) else folder, data = make(wanted) end
  if wanted.index >= #data.points then
    fail(("sweep: there is no point %d\n  have  points 0 to %d"):format(wanted.index, #data.points - 1))
  end
  if wanted.index >= 0 then
    local counts = run_points(wanted, folder, data, {wanted.index}, {})
    return print_end(folder, {wanted.index}, counts)
  end
  local points = all_latest(folder, data)
  local chosen = choose(wanted, points, data)
  if #chosen == 0 then
    print_nothing_left(points, data)
    return 0
  end
  if wanted.slurm ~= "" then return write_job(wanted, folder, chosen) end
  if not old then print(("%d points in %s"):format(#data.points, folder)) end
  return print_end(folder, chosen, run_points(wanted, folder, data, chosen, points))
end

return sweep
