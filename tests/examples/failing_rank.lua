-- SPDX-License-Identifier: Apache-2.0
-- X16: a run that ends badly after it has finished a checkpoint, for failures.cmake.
--   how   error, killed: what happens to rank 1 in the midst of collectives; disk, disk_json, disk_log, disk_h5: what
--   is too large to
--         be written (the caller limits files); stdout: the caller makes it a full device; check: the finished
--         checkpoint is whole
local mh = require "moonhalo"

local cfg = mh.config {how = "check", folder = ""}
local path, values = cfg.folder .. "/finished", mh.arange(24.0):reshape{6, 4}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()})

if cfg.how == "check" then
  local saved = mh.checkpoint.load(path)
  assert(mh.equal(saved.x, values) and saved.step == 7)
  assert(not mh.files.exists(path .. ".partial/checkpoint.json") or cfg.how ~= "error")
  return print("the finished checkpoint is whole")
end

local x = mh.distribute_tensor(values, mesh, {mh.Shard(0)})
mh.checkpoint.save(path, {x = x, step = 7})
if cfg.how == "disk" then mh.checkpoint.save(path, {x = mh.ones{1000, 1000}, step = 8}) end
if cfg.how == "disk_h5" then
  local file = mh.h5.open(cfg.folder .. "/x.h5", "w")
  file:write("x", mh.distribute_tensor(mh.ones{1000, 1000}, mesh, {mh.Shard(0)}))
end
if cfg.how == "stdout" then
  print("nothing reads this")
  io.write("nor that")
  return mh.checkpoint.save(path, {x = x, step = 7})
end
if cfg.how == "disk_json" then
  local history = {}
  for i = 1, 100000 do history[i] = i / 7 end
  local _, problem = pcall(mh.checkpoint.save, path, {x = x, step = 8, history = history})
  assert(not mh.files.exists(path .. ".partial"))
  assert(x:sum():item() == 276)  -- all ranks have the error, and may go on
  error(problem, 0)
end

for step = 1, 100000 do
  local sum = (x * step):sum():item()
  if step == 10 and mh.rank() == 0 then io.stderr:write("all ranks are at work\n") end
  if step == 20 and mh.rank() == 1 then
    if cfg.how == "error" then error("the pressure is negative") end
    if cfg.how == "killed" then os.execute("kill -9 " .. io.popen("echo $PPID"):read("n")) end
  end
  if cfg.how == "disk_log" then mh.log {step = step, sum = sum} end
end
