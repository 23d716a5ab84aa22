-- SPDX-License-Identifier: Apache-2.0
-- Facts about program, machine and source for run.json. Rank 0 asks, except for `of_ranks`.

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local facts = {}

--- A whole file, or nil.
function facts.read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("a")
  assert(file:close())
  return text
end

--- The time when a process of this host began, which tells it from a later one with its number; nil if it is gone.
function facts.process_start(pid)
  local text = facts.read(("/proc/%d/stat"):format(pid))
  local rest = text and text:match("^.*%)%s+(.*)$")
  local state = rest and rest:sub(1, 1)
  if not rest or state == "Z" or state == "X" then return nil end
  local position = 2
  for field in rest:gmatch("%S+") do
    position = position + 1
    if position == 22 then return field end
  end
end

--- True if the process of a run.json is there; nil if that cannot be found out, as it was on another host.
function facts.is_alive(process)
  if type(process) ~= "table" or process.host ~= mh._run.host() then return nil end
  return facts.process_start(process.pid) == process.start
end

local function lines_of(command)
  local pipe = io.popen(command, "r")
  local text = pipe and pipe:read("a") or ""
  if pipe and not pipe:close() then return nil end
  return text
end

--- A word of a command line of the shell.
function facts.quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

--- The same, without quotes where none are needed: for commands that are printed.
function facts.word(text) return text:find("[^%w%./_-]") and facts.quoted(text) or text end

--- {revision, dirty} of the git work tree with the script, and the changes as a patch; nil outside one.
function facts.git(script)
  local git = "git -C " .. facts.quoted(script:match("^(.*)/[^/]*$") or ".") .. " "
  local revision = lines_of(git .. "rev-parse HEAD 2>/dev/null")
  revision = revision and revision:match("^%x+")
  if not revision then return nil end
  local patch = lines_of(git .. "diff HEAD 2>/dev/null") or ""
  return {revision = revision, dirty = patch ~= ""}, patch
end

--- The words of the command line.
function facts.command()
  local words = {}
  for word in (facts.read("/proc/self/cmdline") or ""):gmatch("([^\0]*)\0") do words[#words + 1] = word end
  return words
end

local kEnvironment = {
  "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NODELIST",
  "SLURM_NTASKS", "MOONHALO_TIMEOUT_S", "MOONHALO_CHECK_CALLS", "MOONHALO_MPI_CHUNK_BYTES", "MOONHALO_NCCL",
  "HDF5_PLUGIN_PATH", "LUA_PATH_5_4", "LUA_PATH", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG",
}

--- Variables that change what a run does. Others may hold secrets.
function facts.environment()
  local found = {}
  for _, name in ipairs(kEnvironment) do found[name] = os.getenv(name) end
  return found
end

local kLaunchers = {
  {"TORCHELASTIC_RUN_ID", "torchrun"}, {"OMPI_COMM_WORLD_SIZE", "mpirun"}, {"SLURM_STEP_ID", "srun"},
  {"PMI_SIZE", "mpiexec"},
}

function facts.launcher(ranks)
  for _, one in ipairs(kLaunchers) do
    if os.getenv(one[1]) then return one[2] end
  end
  return ranks > 1 and "threads" or "none"
end

--- Memory of rank 0 in bytes: {peak} of its tensors, {resident} of its process, {device_peak}; nil where nothing
--- counts it.
function facts.memory()
  local counted, use = pcall(mh._memory_use)
  if not counted then return nil end
  return {peak = use.peak, resident = use.resident, device_peak = use.device and use.device.peak}
end

function facts.processor() return (facts.read("/proc/cpuinfo") or ""):match("model name%s*:%s*([^\n]*)") end

--- {hosts = {...}, devices = {...}}, each once. Collective.
function facts.of_ranks()
  local hosts, devices = {}, {}
  for _, text in ipairs(mh._files.of_all_ranks(mh._run.host() .. "\n" .. tostring(mh.device()))) do
    local host, device = text:match("^(.*)\n(.*)$")
    hosts[host], devices[device] = true, true
  end
  return {hosts = sorted_keys(hosts), devices = sorted_keys(devices)}
end

--- The time now as in ISO 8601, and that time in seconds.
function facts.now()
  local seconds = mh._checkpoint_files.now()
  local whole = math.floor(seconds)
  return os.date("!%Y-%m-%dT%H:%M:%S", whole) .. (".%03dZ"):format(math.floor((seconds - whole) * 1000)), seconds
end

return facts
