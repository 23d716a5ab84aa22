-- SPDX-License-Identifier: Apache-2.0
-- Tables in safetensors and JSON files: all that is in them is written, or an error names what is not.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local function file(name) return os.getenv("TMPDIR") .. "/moonhalo_test_files_" .. name end

local tests = {}

function tests.test_safetensors_take_state_dicts_and_tables_by_name()
  local path = file("state") .. ".safetensors"
  local net, other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
      nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
  local by_name, list = {}, {}
  for name, tensor in net:state_dict() do by_name[name], list[#list + 1] = tensor, {name, tensor} end
  for _, state in ipairs {net:state_dict(), by_name, list} do
    mh.safetensors.save(path, state, {note = "x"})
    mh.no_grad(function() for _, parameter in ipairs(other:parameters()) do parameter:zero_() end end)
    other:load_state_dict((mh.safetensors.load(path)))
    for name, tensor in other:state_dict() do
      testing.assert_equal({name, mh.equal(tensor, by_name[name])}, {name, true})
    end
    testing.assert_equal(#mh.safetensors.load(path), #list)
  end
  mh.safetensors.save(path, {b = mh.ones{2}, a = mh.zeros{0, 3}, ["ü.\0"] = mh.tensor(1 + 2 * mh.tensor(0):item())})
  local names = {}
  for i, pair in ipairs((mh.safetensors.load(path))) do names[i] = pair[1] end
  testing.assert_equal(names, {"a", "b", "ü.\0"})
end

function tests.test_safetensors_refuse_what_they_cannot_hold()
  local path, x = file("refused") .. ".safetensors", mh.ones{2}
  local cut = mh.distribute_tensor(x, mh.init_device_mesh(mh.device(), {1}, {"domain"}), {mh.Shard(0)})
  local refused = {
    {nn.Linear(2, 2), "a module or the like is not a table of tensors\n  fix   give its state_dict()"},
    {{model = nn.Linear(2, 2):state_dict()}, "'model' is not a tensor but"},
    {{step = 3, x = x}, "'step' is not a tensor but"},
    {{{"x", x}, y = x}, "'y' stands beside a list"},
    {{x, x}, "element 1 is no {name, tensor} but Tensor float32 [2]"},
    {{{"x", x}, {x, "y"}}, "element 2 has no name first"},
    {{[true] = x}, "element true is no {name, tensor}"},
    {{w = cut}, "'w' is a ShardTensor, of which this rank has a block\n" ..
    "  fix   mh.checkpoint.save(path, {model = net})"}, {{{"w", cut}}, "'w' is a ShardTensor"},
    {x, "expected a table of tensors by name, got Tensor float32 [2]"},
  }
  for _, case in ipairs(refused) do
    testing.assert_error(function() mh.safetensors.save(path, case[1]) end, "safetensors.save: " .. case[2])
    testing.assert_equal(mh.files.exists(path), false)
  end
  mh.safetensors.save(path, {{"x", x}, nil, {"y", x}})  -- a hole hides nothing
  testing.assert_equal(#mh.safetensors.load(path), 2)
end

function tests.test_json_writes_all_of_a_table_or_says_what_not()
  local nan = 0 / 0
  local function round(value) return mh.json.decode(mh.json.encode(value)) end
  testing.assert_equal(mh.json.encode{a = {0.5, nil, 0.2, nil, 0.1}}, '{"a":[0.5,null,0.2,null,0.1]}')
  testing.assert_equal(mh.json.encode{nil, 2}, "[null,2]")
  testing.assert_equal(round({a = {0.5, nil, 0.2}}).a[3], 0.2)
  testing.assert_equal(mh.json.encode{loss = nan, most = math.huge, list = {1, -math.huge}},
      '{"list":[1,null],"loss":null,"most":null}')
  testing.assert_equal(round{["a\0b"] = 1, ["a\0c"] = "x\0y"}, {["a\0b"] = 1, ["a\0c"] = "x\0y"})
  local refused = {
    {{run = {best = {0.1, epoch = 17}}}, "json: 'run.best' is a list with 1 other keys beside it"},
    {{0.1, epoch = 17}, "json: the table is a list with 1 other keys beside it"},
    {{run = {{[5] = 1}}}, "json: 'run.1' is a list of 1 elements, the last of which is number 5"},
    {{run = {[100] = 0.5, [200] = 0.4}}, "json: 'run' is a list of 2 elements, the last of which is number 200"},
    {{run = {[0] = 1}}, "json: 'run' has a key that is not a string"},
    {{run = {a = {print}}}, "json: cannot write"},
    {{run = "\xff"}, "json: a string is not UTF-8"},
  }
  for _, case in ipairs(refused) do testing.assert_error(function() mh.json.encode(case[1]) end, case[2]) end
  testing.assert_error(function() mh.json.encode{run = {a = {print}}} end, "which is 'run.a.1'")
end

return tests
