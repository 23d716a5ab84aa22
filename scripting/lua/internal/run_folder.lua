-- SPDX-License-Identifier: Apache-2.0
-- The folder of a run: run.json, source/, metrics.jsonl, output.txt. Rank 0 writes; what fails there fails on all ranks
-- where the call is collective. run.json is written under another name first, so that it is whole at any moment.

local mh = require "moonhalo"
local facts = require "moonhalo.internal.run_facts"
local files = require "moonhalo.internal.run_files"
local run_log = require "moonhalo.internal.run_log"

local fail = mh.fail
local info = mh.run_info()
local kWho, kMostNames, kMostPatch = "run", 65536, 1 << 20

--- current: {folder, name, data (run.json, on rank 0), lines, seconds, began, object, ...}; nil without one.
local run_folder = {current = nil}

-- ---- Making --------------------------------------------------------------------------------------------------------

--- Makes PARENT/DATE_NAME_XXXX. Its last digits are those that no other run has: mkdir decides.
local function make_unique(parent, name)
  mh.files.make_folder(parent)
  local date = os.date("%Y-%m-%d")
  local first = mh._run.crc32c(("%s %d %.9f"):format(mh._run.host(), mh._run.pid(), mh._checkpoint_files.now()))
  for attempt = 0, kMostNames - 1 do
    local path = ("%s/%s_%s_%04x"):format(parent, date, name, (first + attempt) % kMostNames)
    if mh._run.make_folder(path) then return path end
  end
  fail(("run: '%s' has %d runs '%s' of this day\n  fix   give the run another name or folder"):format(parent,
      kMostNames, name))
end

local function write(current, name, text) mh._files.write(kWho, current.folder .. "/" .. name, text) end

--- Writes run.json.
function run_folder.save(current)
  local data, now, seconds = current.data, facts.now()
  data.written, data.seed, data.memory, current.saved_at = now, mh.initial_seed(), facts.memory(), seconds
  data.seconds = math.floor((current.seconds + seconds - current.began) * 1000 + 0.5) / 1000
  -- A script without step_done counts by the steps that it logs.
  data.step = current.step > 0 and current.step or current.logged_step or data.step
  data.epoch = current.epoch > 0 and current.epoch or current.logged_epoch or data.epoch
  write(current, "run.json", mh.json.encode(data, 1) .. "\n")
end

local function without_dot(path) return (path:gsub("^%./", "")) end

--- Where a module of the script's folder is: its name below source/, its path. Nil for others.
local function source_of(module, here)
  local path = package.searchpath(module, package.path)
  local below = path and without_dot(path)
  below = below and below:sub(1, #here) == here and below:sub(#here + 1) or ""
  if below:match("^[^/.]") and not below:find("/..", 1, true) then return below, path end
end

local function copy_source(current, name, path)
  local text = facts.read(path)
  if not text then return end
  mh.files.make_folder((current.folder .. "/source/" .. name):match("^(.*)/"))
  write(current, "source/" .. name, text)
end

--- Copies the script, and the modules of its folder that are loaded, into source/. Each is looked for once.
local function copy_sources(current)
  if not info.script then return end
  local script = without_dot(info.script)
  local here, own = script:match("^(.*/)[^/]*$") or "", script:match("[^/]*$")
  if not current.copied[""] then copy_source(current, own, script) end
  current.copied[""] = true
  for module in pairs(package.loaded) do
    if not current.copied[module] then
      local name, path = source_of(module, here)
      if name then copy_source(current, name, path) end
      current.copied[module] = true
    end
  end
end

--- Makes the contents of a new run.json and source/.
local function describe(current, of_ranks)
  local now, seconds = facts.now()
  current.began = seconds
  local script = info.script and facts.read(info.script)
  local git, patch
  if info.script then git, patch = facts.git(info.script) end
  current.data = {
    format = 1, name = current.name, status = "running", started = now, command = facts.command(),
    script = info.script, script_crc32c = script and ("%08x"):format(mh._run.crc32c(script)), git = git,
    ranks = info.world_size, launcher = facts.launcher(info.world_size),
    hosts = of_ranks.hosts, devices = of_ranks.devices, processor = facts.processor(),
    versions = mh._run.versions(), environment = facts.environment(), process = run_folder.process(),
    settings = run_log.settings, sources = run_log.sources, epoch = 0, step = 0, metrics = {},
  }
  mh.files.make_folder(current.folder .. "/source")
  if patch and patch ~= "" and #patch < kMostPatch then write(current, "source/changes.patch", patch) end
  copy_sources(current)
end

function run_folder.process()
  local pid = mh._run.pid()
  return {host = mh._run.host(), pid = pid, start = facts.process_start(pid)}
end

--- Directs mh.log, mh.config and print to the folder, once all files are open.
local function attach(current)
  if info.rank == 0 then
    local path = current.folder .. "/output.txt"
    local output, problem = io.open(path, "a")
    if not output then fail("run: cannot write the output: " .. problem) end
    run_log.open_metrics(current)
    current.output = output
    run_log.copy_output(output, path)
  end
  run_log.run, run_folder.current = current, current
end

local function split(name, parent)
  local above, last = name:match("^(.*)/([^/]*)$")
  return (last or name), above and (parent and parent .. "/" .. above or above) or parent or "runs"
end

--- Makes a new run folder. `name` may be a path below `parent`. Collective.
function run_folder.make(name, parent)
  local own, above = split(name or info.script and info.script:match("([^/]*)$"):gsub("%.lua$", "") or "run", parent)
  own = own:gsub("[^%w%.%-]", "-")
  if own == "" or own:match("^%.+$") then
    fail(("run: '%s' is not a name of a run\n  fix   give letters and digits"):format(tostring(name)))
  end
  local of_ranks = facts.of_ranks()
  local current = {name = own, parent = above, seconds = 0, lines = 0, copied = {}, step = 0, epoch = 0}
  current.folder = mh._files.on_first_rank(function()
    current.folder = make_unique(above, own)
    describe(current, of_ranks)
    run_folder.save(current)
    attach(current)
    return current.folder
  end)
  if info.rank ~= 0 then attach(current) end
  return current
end

-- ---- Resuming ------------------------------------------------------------------------------------------------------

--- The latest folder of runs called `name`. On rank 0.
local function latest(parent, name)
  local newest
  for _, one in ipairs(files.list(parent)) do
    if one.data.name == name and (not newest or one.data.started > newest.data.started) then newest = one end
  end
  if newest then return newest.folder end
  fail(("run: no run '%s' to resume\n  have  the folder '%s'\n  fix   begin one by --run %s, or give --resume FOLDER")
    :format(name, parent, name))
end

--- Checks that no process writes the folder, and reads run.json. On rank 0.
local function take_over(current, of_ranks)
  local data = files.read_run(current.folder)
  if data.status == "running" and facts.is_alive(data.process) then
    fail(("run: '%s' is still written\n  have  process %d\n  fix   end that process first"):format(current.folder,
      data.process.pid))
  end
  pcall(os.remove, current.folder .. "/failing")  -- left by a process that was killed while it wrote its error
  local now, seconds = facts.now()
  current.began, current.data, current.name, current.was_done = seconds, data, data.name, data.status == "done"
  current.seconds = type(data.seconds) == "number" and data.seconds or 0
  data.resumed = data.resumed or {}
  table.insert(data.resumed, {started = now, ranks = info.world_size, command = facts.command()})
  data.status, data.ended, data.exit_status, data.error, data.ended_by = "running", nil, nil, nil, nil
  data.process, data.ranks, data.hosts, data.devices = run_folder.process(), info.world_size, of_ranks.hosts,
      of_ranks.devices
  data.launcher = facts.launcher(info.world_size)
  data.metrics = data.metrics or {}
  current.lines = files.repair_metrics(current.folder)
  current.old_lines = current.lines
  copy_sources(current)
  run_folder.save(current)
end

--- Continues in a folder. Collective.
function run_folder.resume(which, name)
  local own, above = split(name)
  local of_ranks, current = facts.of_ranks(), {copied = {}, step = 0, epoch = 0, lines = 0, resumed = true}
  local text = mh._files.on_first_rank(function()
    current.folder = which == "latest" and latest(above, (own:gsub("[^%w%.%-]", "-"))) or which:gsub("(.)/+$", "%1")
    take_over(current, of_ranks)
    attach(current)
    return mh.json.encode{folder = current.folder, name = current.name, settings = current.data.settings}
  end)
  local shared = mh.json.decode(text)
  current.folder, current.name, current.settings = shared.folder, shared.name, shared.settings
  if info.rank ~= 0 then attach(current) end
  return current
end

--- At the begin of a script that --run or --resume is given to. Collective.
function run_folder.begin()
  if info.resume then
    run_folder.resume(info.resume, info.run_name)
  else
    run_folder.make(info.run_name)
  end
end

-- ---- The end -------------------------------------------------------------------------------------------------------

--- Writes the error of a rank other than 0 into run.json. Rank 0 may be killed next, or may write the file at this
--- moment, so nothing else is changed: the file keeps its place, and has the error at its end.
local function write_failure_in_place(current, status, problem)
  local file <close> = assert(io.open(current.folder .. "/run.json", "r+b"))
  local text, running = file:read("a"), '\n "status": "running"'
  local at, last = text:find(running, 1, true), text:find("\n}%s*$")
  if not (at and last) then return end  -- another error was first
  local facts_of_end = {error = ("rank %d: %s"):format(info.rank, problem), exit_status = status, ended = (facts.now())}
  local added = mh.json.encode(facts_of_end, 1)
  assert(file:seek("set", last - 1) and file:write(",", added:sub(2), "\n") and file:flush())
  assert(file:seek("set", at - 1) and file:write('\n "status": "failed" ') and file:flush())
end

--- The same, where no other rank of a failing run does so at this moment. What cannot be written is left out: the first
--- error is the one to show.
local function write_failure(current, status, problem)
  local taken = current.folder .. "/failing"
  local made, is_own = pcall(mh._run.make_folder, taken)
  if not (made and is_own) then return end
  pcall(write_failure_in_place, current, status, problem)
  return os.remove(taken)
end

--- The error and status that another rank has written.
local function first_failure(current, status, problem)
  local known, data = pcall(files.read_run, current.folder)
  if known and data.status == "failed" and data.error then return data.exit_status, data.error end
  return status, problem
end

--- Writes how the run ended. On rank 0.
local function write_end(current, status, problem)
  local data = current.data
  data.status = problem ~= "" and "failed" or current.signal and "stopped" or "done"
  data.exit_status, data.ended = status, (facts.now())
  data.error, data.ended_by = problem ~= "" and problem or nil, current.ended_by
  if problem ~= "" then assert(current.output:write(problem, "\n")) end
  assert(current.output:close())
  run_log.close_metrics()
  run_log.close_events()
  files.write_csv(current.folder)
  copy_sources(current)
  run_folder.save(current)
end

--- The disk takes no new run.json: writes the status over the one that it has, which needs no space. Without it the run
--- would count as killed.
local function write_status_in_place(current)
  local running = '\n "status": "running"'
  local status = current.data.status == "stopped" and '\n "status": "stopped"' or '\n "status": "failed" '
  local file <close> = io.open(current.folder .. "/run.json", "r+b")
  local at = file and (file:read("a") or ""):find(running, 1, true)
  if at and not (file:seek("set", at - 1) and file:write(status) and file:flush()) then
    io.stderr:write(("moonhalo: run: '%s/run.json' says that the run goes on\n"):format(current.folder))
  end
end

--- Says that a resumed run was done before and has done nothing more: otherwise it ends without any output.
local function say_that_nothing_was_left(current)
  local run, restored = current.object, current.restored
  if not (current.was_done and run and restored) then return end
  if run.step ~= restored.step or run.epoch ~= restored.epoch then return end
  io.stderr:write(("moonhalo: run: '%s' was done before, at step %d and epoch %d: nothing was left to do\n"):format(
    current.folder, run.step, run.epoch))
end

--- At the end of the script, or before by run:finish(). After a failure the disk may refuse this, too: the first error
--- is the one to show. `follows`: the problem follows from the failure of another rank. Not collective.
function run_folder.finish(status, problem, follows)
  local current = run_folder.current
  if not current then return end
  run_folder.current, run_log.run = nil, nil
  if info.rank ~= 0 then
    if problem ~= "" and not follows then write_failure(current, status, problem) end
    return
  end
  if problem ~= "" then status, problem = first_failure(current, status, problem) end
  mh._run.copy_output(nil)
  local done, refusal = pcall(write_end, current, status, problem)
  if not done then write_status_in_place(current) end
  if problem == "" then
    if not done then error(refusal, 0) end
    say_that_nothing_was_left(current)
    if current.resumed and not current.loaded then
      mh._plans.warn("run: the script began again\n  have  --resume, and no run:resume{...} in "
        .. info.script .. "\n  fix   call it before the training")
    end
  end
end

run_folder.copy_sources, run_folder.make_unique = copy_sources, make_unique

return run_folder
