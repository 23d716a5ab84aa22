-- SPDX-License-Identifier: Apache-2.0
-- Reads the files that check_read.py has made, whole and by blocks (Y03): moonhalo run read.lua -- FOLDER
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local folder = arg[1]
local ranks, rank = mh.world_size(), mh.rank()
local mesh = mh.init_device_mesh("cpu", {ranks}, {"domain"})
local function file(name) return folder .. "/" .. name end

local loaded = {}
local function load_once(name)
  loaded[name] = loaded[name] or mh.load(file(name))
  return loaded[name]
end

local function numbers(x)
  if x:is_complex() then x = mh.view_as_real(x:to("complex128")) end
  return x:to("float64"):reshape({-1}):tolist()
end

local function at(value, path)
  for _, key in ipairs(path) do value = value[key] end
  return value
end

-- Every tensor is what Python saved.
local cases = mh.json.load(file "cases.json")
for _, case in ipairs(cases) do
  local x = at(load_once(case.file), case.path)
  local name = case.file .. " " .. table.concat(case.path, ".")
  assert(mh.is_tensor(x), name)
  testing.assert_equal({x.dtype, x.shape}, {case.dtype, case.shape})
  testing.assert_equal(numbers(x), case.values)
end

-- Other values.
local values = load_once "values.pt"
testing.assert_equal({values.none, values.yes, values.no, values.small, values.negative, values.large},
  {nil, true, false, 7, -123456, 1 << 62})
testing.assert_equal({values.number, values.text, values.bytes, values.long},
    {-0.1, "ü✓", "\0\xff\x80a", ("x"):rep(300)})
testing.assert_equal({values.huge.python, #values.huge.bytes}, {"int", 13})
assert(values.list[2] == mh.none)
testing.assert_equal({values.list[1], values.list[3], #values.list}, {1, {2.5, "a"}, 3})
testing.assert_equal({values.tuple, values.set, values.frozen, values.size, values.empty},
    {{1, {2, 3}}, {5}, {6}, {2, 3}, {}})
testing.assert_equal({values.dtype, values.device}, {"bfloat16", "cuda:1"})
local order = {}
for key in values.ordered do order[#order + 1] = key end
testing.assert_equal(order, {"z", "a", "m"})
testing.assert_equal(values.default.k, {1})
testing.assert_equal({values.by_number[0], values.by_number[7], values.by_number[true]}, {"zero", "seven", "true"})
testing.assert_equal(values.by_pair["[1, 2]"], 3)
assert(rawequal(values.cycle[2], values.cycle))
testing.assert_equal(values.class.python, "__main__.Config")
testing.assert_equal({values.complex.python, values.complex.args}, {"builtins.complex", {1.0, 2.0}})

-- Classes are names with their data, and nothing of them runs.
local lightning = load_once "lightning.ckpt"
testing.assert_equal({lightning.epoch, lightning.scheduler}, {3, nil})
testing.assert_equal({lightning.config.python, lightning.config.state.rate}, {"__main__.Config", 1e-3})
testing.assert_equal(lightning.hyper_parameters.python, "argparse.Namespace")
testing.assert_equal(lightning.hyper_parameters.state.when.args, {3, 0, 0})
testing.assert_equal(lightning["function"].python, "functools.partial")
local evil = load_once "evil.pt"
testing.assert_equal({evil.weight:tolist(), evil.harm.args}, {{1.0, 1.0}, {"touch harmed"}})
assert(evil.harm.python:find("system", 1, true), evil.harm.python)
assert(not mh.files.exists(file "harmed"))
local sparse = load_once("sparse.pt").sparse
testing.assert_equal(sparse.python, "torch._utils._rebuild_sparse_tensor")
testing.assert_equal(load_once("numpy.pt").scalar, 1.0)
testing.assert_equal(load_once("numpy.pt").objects.python, "numpy.core.multiarray._reconstruct")

-- State dicts of every kind fit a module of the same shape.
local function network() return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)) end
local wanted = network()
wanted:load_state_dict(load_once "state2.pt")
for _, given in ipairs {load_once "module.pt", load_once("lightning.ckpt").state_dict,
    load_once("zip.mdlus").state_dict, load_once("tar.mdlus").state_dict} do
  local net = network()
  net:load_state_dict(given)
  for name, tensor in net:state_dict() do assert(mh.equal(tensor, wanted:state_dict()[name]), name) end
end
testing.assert_equal({load_once("zip.mdlus").args.__args__.width, load_once("tar.mdlus").metadata.mdlus_file_version},
  {8, "0.1.0"})
nn.Linear(2, 3):load_state_dict(load_once "script.pt")

-- A rank reads the bytes of its own block, once, whatever the order of the elements in the file.
local function uneven(rows)
  if ranks == 1 then return {rows} end
  return {rows // 3, 0, rows - rows // 3}
end
local whole = mh.load(file "blocks.pt")
for name, x in whole do
  for dim = 0, 2 do
    local net = nn.Sequential()
    net.weight = nn.Parameter(mh.distribute_tensor(mh.zeros(x.shape), mesh, {mh.Shard(dim, uneven(x.shape[dim + 1]))}))
    local given = mh.load(file "blocks.pt")[name]
    mh.io_stats{reset = true}
    net:load_state_dict({weight = given})
    local read, own = mh.io_stats().stored, net.weight:to_local():numel() * 4
    assert(name == "gaps" and read <= 2 * own or read == own, ("%s %d: %d bytes for %d"):format(name, dim, read, own))
    assert(mh.equal(net.weight:full_tensor(), x), name)
  end
end
local copied = nn.Sequential()
copied:register_buffer("field", mh.distribute_tensor(mh.zeros(whole.turned1.shape), mesh, {mh.Replicate()}))
copied:load_state_dict({field = mh.load(file "blocks.pt").turned1})
assert(mh.equal(copied.field:full_tensor(), whole.turned1))

-- Tensors that are not used are not read. Freed ones stay freed. Views share memory as they did.
mh.io_stats{reset = true}
local tensors = mh.load(file "tensors.pt")
tensors.float64:free()
testing.assert_equal(mh.io_stats().stored, 0)
testing.assert_error(function() return tensors.float64.shape end, "the tensor was freed")
tensors.same:zero_()
testing.assert_equal(tensors.view:sum():item(), 0.0)

-- Errors name the file, what it is, and the remedy.
local refused = {
  {"nowhere.pt", "does not exist", "check the path"},
  {".", "is a folder or a device", "as a checkpoint"},
  {"old.pt", "is in the format of PyTorch before 1.6", "_use_new_zipfile_serialization=True"},
  {"exported.pt2", "is a program of torch.export", "moonhalo inspect lists"},
  {"other.zip", "is a zip archive without a pickle", "moonhalo inspect lists"},
  {"cases.json", "is not a file of torch.save", "give a file that torch.save wrote"},
  {"packed.pt", "its pickle is compressed", "zip -0"},
  {"protocol0.pt", "an instruction that is not read\n  have  instruction 'p' at byte 2", "pickle_protocol=2"},
  {"big_endian.pt", "byte order of another machine", "little-endian"},
}
for _, case in ipairs(refused) do
  local message = testing.assert_error(function() mh.load(file(case[1])) end, "load: file \"" .. file(case[1]) .. "\"")
  assert(message:find(case[2], 1, true) and message:find(case[3], 1, true), message)
end
testing.assert_error(function() mh.load(7) end, "load: the path is a string, got 7")
if rank == 0 then print("read " .. #cases .. " tensors") end
