-- SPDX-License-Identifier: Apache-2.0
-- Batches of Zarr folders: those of plain reading, and folders that change while they are read.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local files = require "support.data_files"
local refused = require "support.refused"

local tests = {}

local function full(x) return x:is_shard_tensor() and x:full_tensor() or x end

--- Writes a Zarr folder of one array [steps, 7, 5], a chunk a step, on rank 0. Returns its path.
local function zarr(name, values)
  local path, steps = files.path(name), values.shape[1]
  mh._files.on_first_rank(function()
    local function put(file, text)
      local out = assert(io.open(path .. "/" .. file, "wb"))
      assert(out:write(text))
      assert(out:close())
    end
    os.execute("rm -rf '" .. path .. "'")
    mh.files.make_folder(path .. "/u")
    put(".zgroup", '{"zarr_format": 2}')
    put("u/.zarray", ('{"zarr_format": 2, "dtype": "<f4", "fill_value": 0, "order": "C", "filters": null, "shape": ' ..
        '[%d, 7, 5], "chunks": [1, 7, 5], '
      .. '"compressor": null}'):format(steps))
    for step = 0, steps - 1 do
      local numbers = values[tostring(step)]:flatten():tolist()
      put(("u/%d.0.0"):format(step), string.pack("<" .. ("f"):rep(#numbers), table.unpack(numbers)))
    end
  end)
  return path
end

function tests.test_X21_a_folder_replaced_in_an_epoch()
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  local values = files.values(0, 12, 7, 5, 1):float()
  local path = zarr("d_new.zarr", values)
  local rows = (7 + mh.world_size() - 1) // mh.world_size()
  local function loader()
    return mh.data.open(path):windows{inputs = {"u"}}:loader{mesh = mesh, cut = {height = "domain"}, batch = 2,
        prefetch = 0, memory = 3 * 2 * rows * 5 * 4}
  end
  local during = loader()
  testing.assert_equal(full(during:batches()().inputs), values["0:2"]:unsqueeze(1))
  mh.barrier()
  zarr("d_new.zarr", values + 1)
  refused(function() for _ = 1, 2 do for _ in during:batches() do end end end, 'file "' .. path
      .. '" has changed since it was opened\n  have  ')
  for batch in loader():batches() do
    testing.assert_equal(full(batch.inputs), (values + 1)[("%d:%d"):format(batch.index:tolist()[1],
        batch.index:tolist()[2] + 1)]:unsqueeze(1))
  end
  mh.barrier()
  if mh.rank() == 0 then os.execute("rm -rf '" .. path .. "'") end
end

return tests
