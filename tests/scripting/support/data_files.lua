-- SPDX-License-Identifier: Apache-2.0
-- Files for tests of mh.data, in the layouts that others write, made of numbers that anyone can compute again. Rank 0
-- writes.
local mh = require "moonhalo"

local files = {}

--- A path of this run that is the same on every rank.
files.path = require "support.own_path"

--- Runs write(file) on rank 0 for a new file; returns its path on all.
function files.make(name, write)
  local path = files.path(name)
  mh._files.on_first_rank(function()
    local out <close> = mh.h5.open(path, "w")
    write(out)
  end)
  return path
end

function files.remove(paths)
  mh.barrier()
  if mh.rank() == 0 then
    for _, path in ipairs(paths) do os.remove(path) end
  end
end

--- The value of the field `seed` at a step, row and column; steps count over all files.
function files.values(first, steps, height, width, seed)
  local t = mh.arange(first, first + steps, {dtype = "float64"}):reshape{steps, 1, 1}
  local y = mh.arange(height, {dtype = "float64"}):reshape{1, height, 1}
  local x = mh.arange(width, {dtype = "float64"}):reshape{1, 1, width}
  return ((t * 7 + y * 3 + x + seed) * 0.37):sin() * 100 + t
end

files.height, files.width = 7, 5

--- One file of `steps` six-hourly steps from step `first` on: t2m packed in int16 with a scale of the file's own (its
--- third step has one missing value if `missing`), z [time, level, latitude, longitude] in compressed steps, and a
--- static field.
function files.cf(name, first, steps, options)
  options = options or {}
  local height, width = files.height, files.width
  return files.make(name, function(out)
    out:set_attr("Conventions", "CF-1.8")
    local units = options.time_units or "hours since 2000-12-30"
    out:write("time", mh.arange(first, first + steps, {dtype = "float64"}) * (options.hours or 6),
      {dims = {"time"}, attrs = {units = units, standard_name = "time", calendar = options.calendar}})
    out:write("latitude", mh.linspace(60, options.south or -60, height),
        {dims = {"latitude"}, attrs = {units = "degrees_north"}})
    out:write("longitude", mh.arange(width, {dtype = "float32"}) * 30,
        {dims = {"longitude"}, attrs = {units = "degrees_east"}})
    out:write("level", mh.tensor{500, 850}, {dims = {"level"}, attrs = {positive = "down"}})
    local scale = options.scale or 0.01
    local packed = (files.values(first, steps, height, width, 0) / scale):round():to("int16")
    if options.missing then packed["2, 3, 4"] = -32767 end
    out:write("t2m", packed, {dims = {"time", "latitude", "longitude"}, compression = options.compression or 0,
      chunks = options.chunks,
      attrs = {units = options.units or "K", scale_factor = scale, add_offset = 10.0, _FillValue = -32767}})
    if not options.without_z then
      local z = mh.stack({files.values(first, steps, height, width, 1), files.values(first, steps, height, width, 2)},
          1)
      out:write("z", z:float(), {dims = {"time", "level", "latitude", "longitude"}, chunks = {1, 2, height, width},
          compression = 1})
    end
    out:write("orography", files.values(0, 1, height, width, 5)["0"]:float(), {dims = {"latitude", "longitude"}})
  end)
end

--- The values of t2m in a file, decoded as that file says, in float32 or as it is.
function files.t2m_float64(first, steps, scale)
  local packed = (files.values(first, steps, files.height, files.width, 0) / (scale or 0.01)):round()
  return packed * (scale or 0.01) + 10.0
end
function files.t2m(first, steps, scale) return files.t2m_float64(first, steps, scale):float() end

function files.z(first, steps)
  local of = function(seed) return files.values(first, steps, files.height, files.width, seed) end
  return mh.stack({of(1), of(2)}, 1):float()
end

--- The Well: `count` trajectories of `steps`, [trajectory, time, x, y]; a vector; a field that does not change in time.
function files.well(name, count, steps, first)
  local height, width = 6, 4
  local function runs(seed)
    local list = {}
    for k = 1, count do list[k] = files.values((first + k - 1) * 100, steps, height, width, seed) end
    return mh.stack(list, 0):float()
  end
  return files.make(name, function(out)
    out:set_attr("n_trajectories", count)
    out:write("dimensions/time", mh.arange(steps, {dtype = "float32"}) * 0.5)
    out:write("dimensions/x", mh.linspace(0, 1, height))
    out:write("dimensions/y", mh.linspace(0, 2, width))
    out:set_attr("spatial_dims", {"x", "y"}, "dimensions")
    out:write("boundary_conditions/y_wall/mask", mh.zeros{width})
    out:set_attr("associated_dims", "y", "boundary_conditions/y_wall")  -- some files have a string for a list of one
    out:set_attr("bc_type", "WALL", "boundary_conditions/y_wall")
    out:write("t0_fields/tracer", runs(0), {attrs = {dim_varying = {1, 1}, sample_varying = true, time_varying = true}})
    out:write("t0_fields/mask", files.values(0, 1, height, width, 3)["0"]:float(),
      {attrs = {dim_varying = {1, 1}, sample_varying = false, time_varying = false}})
    out:write("t1_fields/velocity", mh.stack({runs(1), runs(2)}, -1),
        {attrs = {dim_varying = {1, 1}, sample_varying = true}})
  end)
end

--- PDEBench, diffusion-reaction: a group a trajectory.
function files.seeds(name, count, steps)
  return files.make(name, function(out)
    for k = 0, count - 1 do
      local group = ("%04d"):format(k)
      local of = function(seed) return files.values(k * 50, steps, 6, 4, seed) end
      out:write(group .. "/data", mh.stack({of(0), of(1)}, -1):float())
      out:write(group .. "/grid/x", mh.linspace(0, 1, 6))
      out:write(group .. "/grid/y", mh.linspace(0, 1, 4))
      out:write(group .. "/grid/t", mh.arange(steps, {dtype = "float32"}))
    end
  end)
end

--- PDEBench, compressible flow: a dataset a variable; t-coordinate has one more than there are steps.
function files.flow(name, count, steps)
  return files.make(name, function(out)
    for seed, field in ipairs {"density", "pressure", "Vx", "Vy"} do
      local list = {}
      for k = 1, count do list[k] = files.values(k * 50, steps, 6, 4, seed) end
      out:write(field, mh.stack(list, 0):float())
    end
    out:write("x-coordinate", mh.linspace(0, 1, 6))
    out:write("y-coordinate", mh.linspace(0, 1, 4))
    out:write("t-coordinate", mh.arange(steps + 1, {dtype = "float32"}))
  end)
end

return files
