-- SPDX-License-Identifier: Apache-2.0
-- The object of mh.run: counts steps and epochs, keeps checkpoints, decides when to stop by the numbers of rank 0.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local folders = require "moonhalo.internal.checkpoint_folders"
local run_files = require "moonhalo.internal.run_files"
local run_folder = require "moonhalo.internal.run_folder"
local run_log = require "moonhalo.internal.run_log"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"

local fail, files = mh.fail, mh._files
local Run = {}
local meta = strict.class {name = "Run", methods = Run,
  fields = "folder name epoch step resumed ended_by _current _keep _stop _state _best _bad _least _signal"}

--- run.folder -> string
---   The folder of this run, FOLDER/DATE_NAME_XXXX.
---   example
---     local run = mh.run{name = "small", folder = folder}
---     mh.files.exists(run.folder .. "/run.json")    --> true
---     run:finish()

--- run.name -> string
---   The name that the folder has in its middle.
---   example
---     local run = mh.run{name = "small", folder = folder}
---     run.name    --> small
---     run:finish()

--- run.step -> integer
---   The number of steps that are done: calls of run:step_done.
---   example
---     local run = mh.run{name = "small", folder = folder}
---     run:resume{net = nn.Linear(2, 2)}
---     run:step_done{loss = 1.0}
---     run.step    --> 1
---     run:finish()

--- run.epoch -> integer
---   The number of epochs that are done: calls of run:epoch_done.
---   example
---     local run = mh.run{name = "small", folder = folder}
---     run:resume{net = nn.Linear(2, 2)}
---     run:epoch_done{loss = 1.0}
---     run.epoch    --> 1
---     run:finish()

--- run.resumed -> boolean
---   Whether this run continues an earlier one (`moonhalo run --resume`).
---   example
---     local run = mh.run{name = "small", folder = folder}
---     run.resumed    --> false
---     run:finish()

--- run.ended_by -> string?
---   Why the training is to end: "early stopping", or the signal that came; nil before.
---   example
---     local run = mh.run{name = "small", folder = folder, stop = {by = "loss", patience = 1}}
---     run:resume{net = nn.Linear(2, 2)}
---     run:epoch_done{loss = 1.0}, run:epoch_done{loss = 1.0}, run.ended_by    --> false  true  early stopping
---     run:finish()

--- `current`: of run_folder.lua. `keep` and `stop`: options of mh.run, or nil.
local function new(current, keep, stop)
  local self = setmetatable({
    folder = current.folder, name = current.name, epoch = 0, step = 0, resumed = current.resumed == true,
    _current = current, _keep = keep, _stop = stop, _best = {}, _bad = 0,
  }, meta)
  current.object = self
  return self
end

local function check_open(self)
  if run_folder.current == self._current then return end
  fail("run: '" .. self.folder .. "' is finished\n  fix   call mh.run for another one")
end

--- The signal that announced the end of the job, or nil. A host program has its own way to say so. Collective.
local function signal() return rawget(mh, "host") == nil and mh.signalled() or nil end

-- ---- Checkpoints ---------------------------------------------------------------------------------------------------

local kReserved = {run = true, generator = true}

local function check_state(state)
  if type(state) ~= "table" or getmetatable(state) then
    fail("run: resume takes a table of entries by name, got " .. mh._describe(state)
      .. "\n  fix   write run:resume{model = net, optimizer = opt}")
  end
  for name in pairs(state) do
    if kReserved[name] then
      fail(("run: '%s' cannot be the name of an entry\n  have  run, generator: the run's own\n" ..
        "  fix   give it another name"):format(name))
    end
  end
end

local function checkpoint_path(self, name) return self.folder .. "/checkpoints/" .. name end

--- Saves the entries of resume with what the run itself needs to continue.
local function save(self, name)
  local current, all = self._current, {}
  for key, value in pairs(self._state) do all[key] = value end
  all.generator = mh.get_rng_state()
  all.run = {
    epoch = self.epoch, step = self.step, best = self._best, bad = self._bad, least = self._least or false,
    lines = current.lines, seconds = current.began and current.seconds + mh._checkpoint_files.now() - current.began
        or 0,  -- rank 0's are saved
  }
  mh.checkpoint.save(checkpoint_path(self, name), all)
end

--- Removes the checkpoints of epochs that are no longer among the best.
local function prune(self)
  local kept = {}
  for _, one in ipairs(self._best) do kept[one.name] = true end
  files.on_first_rank(function()
    local folder = self.folder .. "/checkpoints"
    for _, name in ipairs(folders.list("run", folder)) do
      if name:match("^best_") and not kept[name] then folders.discard("run", folder .. "/" .. name) end
    end
  end)
end

--- run:save() -> nothing
---   Saves the entries of run:resume as checkpoints/last.
---   returns     nothing
---   collective  over all ranks
---   errors      ValueError: run:resume was not called, or the disk refuses
---   example
---     local run = mh.run{folder = folder}
---     run:resume{net = nn.Linear(2, 2)}
---     run:save()
---     mh.files.exists(run.folder .. "/checkpoints/last/net.safetensors")    --> true
---     run:finish()
function Run:save()
  check_open(self)
  if not self._state then
    fail("run: nothing to save is known\n  fix   call run:resume{model = net, optimizer = opt} before the training")
  end
  files.on_first_rank(function() mh.files.make_folder(self.folder .. "/checkpoints") end)
  save(self, "last")
end

--- A checkpoint stores how many lines metrics.jsonl had: those behind them are written again, but for what this process
--- has logged before.
local function mark_lines(self, kept)
  files.on_first_rank(function()
    run_log.close_metrics()
    run_files.mark_replaced(self.folder, kept + 1, self._current.old_lines)
    run_log.open_metrics(self._current)
    run_log.close_events()
    run_log.open_events(self._current, self.step + 1)
    self._current.data.metrics = run_log.extremes(run_files.read_metrics(self.folder))
  end)
end

local function restore(self, saved)
  local current = self._current
  self.epoch, self.step, self._best, self._bad = saved.run.epoch, saved.run.step, saved.run.best, saved.run.bad
  self._least = saved.run.least or nil
  mh.set_rng_state(saved.generator)
  current.restored = {step = self.step, epoch = self.epoch}
  if mh.rank() == 0 then
    current.step, current.epoch, current.seconds = self.step, self.epoch, saved.run.seconds
    current.began = mh._checkpoint_files.now()
  end
  mark_lines(self, saved.run.lines)
end

--- run:resume(state) -> integer?
---   Says what the checkpoints of the run have, and under --resume restores it from the last one, on any number of
---   ranks, with step, epoch, and the random numbers of mh.get_rng_state. Lines of metrics.jsonl that come after that
---   checkpoint are marked as replaced. Call it once, before the training.
---   state       table       entries by name, as of mh.checkpoint.save; numbers and strings in it are replaced
---   returns     integer?    the number of epochs that are done, which is the next one counted from 0; nil where the
---     run begins
---   collective  over all ranks
---   errors      ValueError: a checkpoint that does not fit
---   example
---     local run = mh.run{folder = folder}
---     run:resume{net = nn.Linear(2, 2)}    --> nil
---     run:finish()
function Run:resume(state)
  check_open(self)
  check_state(state)
  if self._state then fail("run: resume was called before\n  fix   give all entries in one call") end
  signal()  -- from here on they are noted
  local path = checkpoint_path(self, "last")
  local has_saved = self.resumed and files.on_first_rank(function() return mh._checkpoint_files.find("run", path) end)
  if has_saved then
    restore(self, mh.checkpoint.load(path, state, {entries = {"run", "generator"}}))
  elseif self.resumed then
    if mh.rank() == 0 then self._current.data.step, self._current.data.epoch = 0, 0 end
    mark_lines(self, 0)
  end
  self._state, self._current.loaded = state, true
  return has_saved and self.epoch or nil
end

-- ---- Steps and epochs ----------------------------------------------------------------------------------------------

local function check_begun(self, call, metrics)
  check_open(self)
  arguments.options("run: " .. call, metrics)
  if self.resumed and not self._state then
    fail(("run: %s before the run is resumed\n  fix   call run:resume{model = net, optimizer = opt} before the " ..
      "training"):format(call))
  end
end

local function log(metrics, names)
  if metrics == nil then return end
  local record = {}
  for name, value in pairs(metrics) do record[name] = value end
  for name, value in pairs(names) do
    if record[name] == nil then record[name] = value end
  end
  mh.log(record)
end

--- Writes into run.json how far the run is.
local function save_facts(self)
  files.on_first_rank(function()
    self._current.data.best = #self._best > 0 and self._best or nil
    run_folder.copy_sources(self._current)
    run_folder.save(self._current)
  end)
end

--- Saves, if that is not `saved` already, and says so, if a signal has come.
local function stop_by_signal(self, saved)
  local name = signal()
  if not name then return false end
  if self._state and not saved then self:save() end
  if not saved then save_facts(self) end
  self.ended_by, self._current.ended_by, self._current.signal = name, name, name
  return true
end

--- run:step_done(metrics = nil) -> boolean
---   Counts a step and logs metrics with it. After SIGTERM or SIGUSR1 it saves and gives true. The script then
---   ends, and `--resume` continues.
---   metrics     table?      as of mh.log
---   returns     boolean     true: leave the training
---   collective  over all ranks: one sum of 8 bytes
---   errors      ValueError: a resumed run without run:resume, or the disk refuses
---   example
---     local run = mh.run{folder = folder}
---     run:resume{net = nn.Linear(2, 2)}
---     run:step_done{loss = 0.5}, run.step    --> false  1
---     run:finish()
function Run:step_done(metrics)
  check_begun(self, "step_done", metrics)
  self.step = self.step + 1
  self._current.step = self.step
  log(metrics, {step = self.step})
  return stop_by_signal(self, false)
end

--- The numbers of `metrics` that keep and stop ask for, as they are on rank 0.
local function agreed(self, metrics)
  local names, values = {}, {}
  if self._keep then names[1] = self._keep.by end
  if self._stop and names[1] ~= self._stop.by then names[#names + 1] = self._stop.by end
  for _, name in ipairs(names) do
    local value = metrics and metrics[name]
    if mh.is_tensor(value) then value = value:item() end
    if type(value) ~= "number" then
      fail(("run: epoch_done has no metric '%s'%s\n  have  %s\n  fix   give it a number, as mh.run asks for"):format(
        name, mh.did_you_mean(name, sorted_keys(metrics or {})), mh._describe(value)))
    end
    values[#values + 1] = value + 0.0
  end
  if #values == 0 then return {} end
  local text = files.on_first_rank(function() return string.pack(("<d"):rep(#values), table.unpack(values)) end)
  local shared = {string.unpack(("<d"):rep(#values), text)}
  local found = {}
  for i, name in ipairs(names) do found[name] = shared[i] end
  return found
end

local function better(rule, value, than)
  if rule.mode == "max" then return value > than end
  return value < than
end

--- Saves the epoch if it is among the best.
local function keep_best(self, values)
  local rule, value = self._keep, self._keep and values[self._keep.by]
  if not rule or value ~= value then return end
  local list, position = self._best, 1
  while list[position] and not better(rule, value, list[position].value) do position = position + 1 end
  if position > rule.best then return end
  table.insert(list, position, {name = ("best_%04d"):format(self.epoch), epoch = self.epoch, value = value})
  list[rule.best + 1] = nil
  save(self, list[position].name)
end

--- True if the metric has not improved for too many epochs.
local function is_over(self, values)
  local rule, value = self._stop, self._stop and values[self._stop.by]
  if not rule or mh.backend() == "fake" then return false end  -- a dry run does not know the metric
  local least = self._least
  local margin = rule.mode == "max" and rule.at_least or -rule.at_least
  if value == value and (least == nil or better(rule, value, least + margin)) then
    self._least, self._bad = value, 0
  else
    self._bad = self._bad + 1
  end
  return self._bad >= rule.patience
end

--- run:epoch_done(metrics = nil) -> boolean
---   Counts an epoch, logs metrics with it, and saves checkpoints/last and, if it is among the best,
---   checkpoints/best_EPOCH.
---   metrics     table?      as of mh.log, with those that keep and stop of mh.run ask for
---   returns     boolean     true: leave the training, since it does not improve or a signal has come (run.ended_by)
---   collective  over all ranks; the numbers of rank 0 decide
---   errors      ValueError: a metric is missing, a resumed run without run:resume, or the disk refuses
---   example
---     local run = mh.run{folder = folder, keep = {by = "loss", best = 1}}
---     run:resume{net = nn.Linear(2, 2)}
---     run:epoch_done{loss = 0.5}, run.epoch    --> false  1
---     mh.files.exists(run.folder .. "/checkpoints/best_0001")    --> true
---     run:finish()
function Run:epoch_done(metrics)
  check_begun(self, "epoch_done", metrics)
  local values = agreed(self, metrics)
  self.epoch = self.epoch + 1
  self._current.epoch = self.epoch
  log(metrics, {epoch = self.epoch, step = self.step > 0 and self.step or nil})
  local over = is_over(self, values)
  if self._state then
    files.on_first_rank(function() mh.files.make_folder(self.folder .. "/checkpoints") end)
    keep_best(self, values)
    save(self, "last")
    prune(self)
  end
  save_facts(self)
  if over then self.ended_by, self._current.ended_by = "early stopping", "early stopping" end
  return stop_by_signal(self, true) or over
end

-- ---- Files ---------------------------------------------------------------------------------------------------------

--- run:path(name) -> string
---   The path of a file in the folder of the run. Folders above it are made.
---   name        string      relative to the folder, as "prediction.h5"
---   returns     string      the same on all ranks
---   collective  over all ranks
---   errors      ValueError: the disk refuses
---   example
---     local run = mh.run{folder = folder}
---     run:path("fields/u.h5"):sub(#run.folder + 1)    --> /fields/u.h5
---     run:finish()
function Run:path(name)
  check_open(self)
  local path = self.folder .. "/" .. arguments.text("run", "the name of a file", name)
  files.on_first_rank(function() mh.files.make_folder(path:match("^(.*)/")) end)
  return path
end

--- run:picture(name, list, options = nil) -> string
---   Draws pictures/NAME.png, also for TensorBoard: curves where the elements of the list have y, else maps.
---   name        string      without its ending
---   list        {table}     series of mh.plot.lines or panels of mh.plot.maps
---   options     table?      of that function
---   returns     string      the path
---   collective  over all ranks; ShardTensors are gathered
---   errors      ValueError: as of mh.plot
---   example
---     local run = mh.run{folder = folder}
---     run:picture("loss", {{y = {1, 0.5}}}):match("[^/]*$")    --> loss.png
---     run:finish()
function Run:picture(name, list, options)
  local path = self:path("pictures/" .. arguments.text("run", "the name of a picture", name) .. ".png")
  local curves = type(list) == "table" and type(list[1]) == "table" and rawget(list[1], "y") ~= nil
      and rawget(list[1], "data") == nil
  mh.plot[curves and "lines" or "maps"](path, list, options)
  files.on_first_rank(function() run_log.write_picture(self._current, name, path) end)
  return path
end

--- The finite elements of a tensor in bins, as event_file.lua has them; nil if there are none. Collective.
local function histogram_of(x, bins)
  local values = x:detach():to("float64")
  local finite = values:isfinite()
  local least = mh.where(finite, values, mh.full_like(values, math.huge)):min():item()
  local greatest = mh.where(finite, values, mh.full_like(values, -math.huge)):max():item()
  if least > greatest then return nil end
  local low, high = least, greatest
  if low == high then low, high = low - 0.5, high + 0.5 end
  local zeroed, limits = mh.where(finite, values, mh.zeros_like(values)), {}
  for i = 1, bins do limits[i] = low + (high - low) * i / bins end
  return {least = least, greatest = greatest, count = finite:sum():item() + 0.0, sum = zeroed:sum():item(),
    squares = zeroed:square():sum():item(), limits = limits, counts = values:histc(bins, low, high):tolist()}
end

--- run:histogram(name, x, {bins = 30}) -> nothing
---   Adds a histogram of a tensor for TensorBoard, such as weights, gradients or a field. Elements that are not finite
---   are left out.
---   name        string      of the curve of histograms
---   x           Tensor      of any shape and a real dtype, plain or cut
---   bins        integer     of equal width, from the least to the greatest element; at most 10000
---   returns     nothing
---   collective  over all ranks; x may be a ShardTensor, of which the counts are summed
---   errors      ValueError: an empty tensor, or the disk refuses
---   example
---     local run = mh.run{folder = folder}
---     run:histogram("weight", nn.Linear(4, 4).weight)
---     mh.files.exists(run.folder .. "/tb")    --> true
---     run:finish()
function Run:histogram(name, x, options)
  check_open(self)
  arguments.text("run", "the name of a histogram", name)
  local given = arguments.options("run", options)
  for key in pairs(given) do arguments.choice("run", "option of histogram", key, {"bins"}) end
  local bins = arguments.bins("run", given.bins or 30)
  if not mh.is_tensor(x) or x:numel() == 0 then
    fail("run: histogram takes a tensor with elements, got " .. mh._describe(x))
  end
  local histogram = histogram_of(x, bins)
  if histogram then
    files.on_first_rank(function() run_log.write_histogram(self._current, name, histogram) end)
  end
end

--- run:finish() -> nothing
---   Ends the run before the script ends: writes metrics.csv and the status.
---   returns     nothing
---   collective  over all ranks
---   errors      RuntimeError: the disk refuses
---   example
---     local run = mh.run{folder = folder}
---     run:finish()
---     mh.json.load(run.folder .. "/run.json").status    --> done
function Run:finish()
  check_open(self)
  local current = self._current
  files.on_first_rank(function() run_folder.finish(0, "") end)
  if mh.rank() ~= 0 then run_folder.finish(0, "") end
  current.object = nil
end

return new
