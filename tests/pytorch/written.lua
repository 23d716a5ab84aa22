-- SPDX-License-Identifier: Apache-2.0
-- Writes files for torch.load (Y04), and reads them back: moonhalo run written.lua -- FOLDER
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local folder = arg[1]
local function file(name) return folder .. "/" .. name end

local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1))
mh.save_pt(file "net.pt", net:state_dict())
mh.safetensors.save(file "net.safetensors", net:state_dict())
local other = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1))
other:load_state_dict(mh.load(file "net.pt"))
for name, tensor in other:state_dict() do assert(mh.equal(tensor, net:state_dict()[name]), name) end
-- A file may take the place of the one that its tensors are read from.
mh.save_pt(file "again.pt", net:state_dict())
mh.save_pt(file "again.pt", mh.load(file "again.pt"))
for name, tensor in mh.load(file "again.pt") do assert(mh.equal(tensor, net:state_dict()[name]), name) end

local base = mh.arange(12):to("float32"):reshape{3, 4}
local values = {
  none = {1, mh.none, 2}, yes = true, no = false, small = -5, large = 1 << 62, number = 0.1, text = "ü✓",
  bytes = "\xff\0a",
  list = {1, {2, "x"}, {key = 3}}, by_number = {[0] = "zero", [7] = "seven"}, empty = {}, inf = math.huge,
  tensors = {turned = base:t(), again = {base, base}, scalar = mh.tensor(2.5), empty = mh.empty{0, 3},
    complex = mh.complex(base, -base), conj = mh.complex(base, base):conj()},
}
for _, name in ipairs {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "uint16", "uint32", "uint64"} do
  values.tensors[name] = base:to(name)
end
mh.save_pt(file "values.pt", values)
local back = mh.load(file "values.pt")
testing.assert_equal({back.list[1], back.list[2], back.list[3].key, back.by_number[7]}, {1, {2, "x"}, 3, "seven"})
assert(back.none[2] == mh.none and back.bytes == values.bytes and mh.equal(back.tensors.turned, base:t()))
mh.save_pt(file "single.pt", base)

local mesh = mh.init_device_mesh("cpu", {1}, {"domain"})
local own = {}
own.self = own
local refused = {
  {mh.distribute_tensor(base, mesh, {mh.Shard(0)}), "a ShardTensor, of which this rank has a block"},
  {{a = {b = print}}, "'a.b' cannot be saved: it is function"},
  {net, "the value cannot be saved: it is "},
  {{net = net}, "'net' cannot be saved: it is "},
  {own, "is nested deeper than 100, or contains itself"},
  {{[base] = 1}, "has a key that is not a string, a number or a boolean"},
}
for i, case in ipairs(refused) do
  local message = testing.assert_error(function() mh.save_pt(file "refused.pt", case[1]) end, "save_pt: '"
      .. file "refused.pt")
  assert(message:find(case[2], 1, true) and message:find("\n  fix   ", 1, true), i .. message)
end
assert(not mh.files.exists(file "refused.pt"))
testing.assert_error(function() mh.save_pt(file "no/folder.pt", base) end, "save_pt: ")
