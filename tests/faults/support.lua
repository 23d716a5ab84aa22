-- SPDX-License-Identifier: Apache-2.0
-- Shared by the scripts of `./dev faults`. A file of version v holds v in each of its parts, so that a half-written or
-- mixed one shows.
local mh = require "moonhalo"

local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local support = {mh = mh, mesh = mesh, rank = mh.rank()}

--- A field of `version`s, cut into rows.
function support.field(version, rows, columns)
  return mh.distribute_tensor(mh.full({rows or 96, columns or 128}, version + 0.0), mesh, {mh.Shard(0)})
end

local nine = mh.distribute_tensor(mh.ones{9}, mesh, {mh.Shard(0)})

--- One collective, all_reduce.
function support.collective() return nine:sum():item() end

--- Tells the runner that all ranks are at the place of the fault; the next call is the fault.
function support.ready()
  if mh.world_size() > 1 then mh.barrier() end
  local name = "../ready." .. mh.rank()
  local file = assert(io.open(name .. ".new", "w"))
  file:write(assert(io.open("/proc/self/stat")):read("n"))
  file:close()
  assert(os.rename(name .. ".new", name))
end

--- The same, and waits until the runner has done its part: reading a pipe ends when the runner opens it.
function support.wait()
  support.ready()
  assert(io.open("../go." .. mh.rank())):read("a")
end

function support.open_h5(version, options)
  local file = mh.h5.open(options and options.path or "field.h5", "w")
  file:write("plain", mh.full({48, 64}, version + 0.0))
  file:write("field", support.field(version, options and options.rows))
  if options and options.packed then
    file:write("packed", support.field(version, options.rows), {compression = 1, chunks = {17, 128}})
  end
  file:set_attr("version", version)
  return file
end

function support.save_h5(version, options) support.open_h5(version, options):close() end

function support.save_ck(version, options)
  local net = mh.nn.Linear(64, 64)
  for _, parameter in ipairs(net:parameters()) do parameter:detach():fill_(version) end
  mh.checkpoint.save(options and options.path or "ck", {net = net, field = support.field(version, options
    and options.rows), version = version, notes = options and options.notes or "none"})
end

function support.save_safetensors(version, elements)
  if mh.rank() == 0 then
    mh.safetensors.save("weights.safetensors", {{"a", mh.full({elements or 64}, version + 0.0)},
        {"b", mh.full({8}, version + 0.0)}})
  end
end

local function all_are(tensor, version, what)
  if not (tensor:min():item() == version and tensor:max():item() == version) then
    error(("%s: parts of version %s and of others"):format(what, tostring(version)))
  end
end

--- Noise, which no filter makes smaller.
function support.noise(rows) return mh.distribute_tensor(mh.rand{rows, 128}, mesh, {mh.Shard(0)}) end

--- A file beside those that are watched: t2m of 12 compressed steps.
function support.write_series(name)
  if mh.rank() > 0 then return end
  local out <close> = mh.h5.open(name, "w")
  out:write("t2m", (mh.arange(12 * 30 * 64) * 0.37):sin():view{12, 30, 64},
      {dims = {"time", "y", "x"}, chunks = {1, 30, 64}, compression = 1})
end

--- Batches of that file, in blocks of rows, that keep nothing of what was read. `damage`: what is done to it before.
function support.loader(damage)
  support.write_series("../series.nc")
  if damage then damage() end
  mh.barrier()
  return mh.data.open("../series.nc", {layout = "plain"}):windows{inputs = {"t2m"}}:loader{mesh = mesh,
    cut = {y = "domain"}, batch = 2,
    -- read for others
    memory = 5 * 2 * (30 // mh.world_size()) * 64 * 4 + (mh.world_size() > 1 and 3 * 30 * 64 * 4 or 0)}
end

--- Epochs of a loader without an end.
function support.load(loader)
  while true do
    for batch in loader:batches() do batch.inputs:sum():item() end
  end
end

--- Spoils the streams of all chunks but the first few.
function support.damage_series()
  if mh.rank() > 0 then return end
  local file = assert(io.open("../series.nc", "r+b"))
  local bytes, at, count = file:read("a"), 1, 0
  while true do
    at = bytes:find("\x78[\x01\x5e\x9c\xda]", at)
    if not at then break end
    count = count + 1
    if count > 4 then
      file:seek("set", at - 1)
      assert(file:write("\0\0"))
    end
    at = at + 1000
  end
  assert(count > 8, count)
  assert(file:close())
end

--- The version of a file, or an error when its parts disagree.
support.version = {}

support.version["field.h5"] = function(path)
  local file = mh.h5.open(path)
  local version = file.attrs.version
  all_are(file["plain"]:read(), version, "plain")
  all_are(file["field"]:read(), version, "field")
  if file:has("packed") then all_are(file["packed"]:read(), version, "packed") end
  file:close()
  return version
end

function support.version.ck(path)
  local net = mh.nn.Linear(64, 64)
  local rest = mh.checkpoint.load(path, {net = net})
  all_are(net.weight:detach(), rest.version, "net.weight")
  all_are(net.bias:detach(), rest.version, "net.bias")
  all_are(rest.field, rest.version, "field")
  return rest.version
end

support.version["weights.safetensors"] = function(path)
  local version
  for _, pair in ipairs((mh.safetensors.load(path))) do
    version = version or pair[2]:max():item()
    all_are(pair[2], version, pair[1])
  end
  return version
end

--- The last whole line's version. Only the last line may be cut short, and versions never go back.
support.version["log.jsonl"] = function(path)
  local text, latest = assert(io.open(path)):read("a"), 0
  for line in text:gmatch("([^\n]*)\n") do
    local read, record = pcall(mh.json.decode, line)
    if read and record.version then
      if record.version < latest then error("log: version " .. record.version .. " after " .. latest) end
      latest = record.version
    end
  end
  return latest
end

return support
