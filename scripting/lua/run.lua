-- SPDX-License-Identifier: Apache-2.0
-- `local run = mh.run{keep = {best = 3, by = "valid/rmse"}}`: a folder of this run, to which mh.log, checkpoints and
-- pictures go (internal/run_folder.lua, internal/run_object.lua). Also `moonhalo run --run [NAME]`.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local folder = require "moonhalo.internal.run_folder"
local new_run = require "moonhalo.internal.run_object"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local kSignature = arguments.signature("run", {arguments.optional("name"), arguments.optional("folder"),
  arguments.optional("keep"), arguments.optional("stop")})

--- A table of options of mh.run, with defaults; `known`: {name = default}.
local function read_options(what, given, known)
  local values = {}
  for name, default in pairs(known) do values[name] = default end
  for name, value in pairs(arguments.options("run: " .. what, given)) do
    arguments.choice("run", "option of " .. what, name, sorted_keys(known))
    values[name] = value
  end
  if type(values.by) ~= "string" or values.by == "" then
    fail(("run: %s.by is %s, expected the name of a metric\n  fix   write %s = {by = \"valid/loss\", ...}"):format(what,
      mh._describe(values.by), what))
  end
  arguments.choice("run", what .. ".mode", values.mode, {"max", "min"})
  return values
end

--- mh.run({name = nil, folder = nil, keep = nil, stop = nil}) -> Run
---   Makes the folder of this run, FOLDER/DATE_NAME_XXXX: run.json, source/, metrics.jsonl, metrics.csv, output.txt,
---   checkpoints/, pictures/. What mh.log is given goes there, too. Under `moonhalo run --run` and `--resume` it gives
---   the folder that is there.
---   name        string?     in the name of the folder; the name of the script if left out
---   folder      string?     of all runs, "runs" if left out
---   keep        table?      {by = NAME, best = 1, mode = "min"}: epoch_done keeps the checkpoints of the `best` epochs
---     by the metric NAME
---   stop        table?      {by = NAME, patience = 10, at_least = 0.0, mode = "min"}: epoch_done ends the training
---     after this many epochs in which the metric did not improve by `at_least`
---   returns     Run         {folder, name, epoch, step, resumed, ended_by}
---   collective  over all ranks; rank 0 writes
---   errors      ValueError: an unknown option, a second run, or the disk refuses; on all ranks
---   example
---     local run = mh.run{name = "small", folder = folder, stop = {by = "loss", patience = 2}}
---     for epoch = run:resume{net = nn.Linear(2, 2)} or 0, 9 do
---       if run:epoch_done{loss = 1.0} then break end
---     end
---     run.epoch, run.ended_by    --> 3  early stopping
---     run:finish()
return function(...)
  local values = arguments.read(kSignature, ...)
  for _, name in ipairs {"name", "folder"} do
    if values[name] ~= nil then arguments.text("run", name, values[name]) end
  end
  local keep = values.keep and read_options("keep", values.keep, {by = false, best = 1, mode = "min"})
  local stop = values.stop
      and read_options("stop", values.stop, {by = false, patience = 10, at_least = 0.0, mode = "min"})
  if keep then arguments.count("run", "keep.best", keep.best, 1) end
  if stop then
    arguments.count("run", "stop.patience", stop.patience, 1)
    arguments.number("run", "stop.at_least", stop.at_least)
  end
  if folder.current and folder.current.object then
    fail("run: this run has a folder\n  have  " .. folder.current.folder
      .. "\n  fix   call mh.run once, or run:finish() before the next")
  end
  return new_run(folder.current or folder.make(values.name, values.folder), keep, stop)
end
