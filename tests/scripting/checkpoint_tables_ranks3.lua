-- SPDX-License-Identifier: Apache-2.0
-- Tables in checkpoints: what comes back is what was saved, or nothing is written.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, optim = mh.nn, mh.optim

--- A folder that all ranks agree on.
local function folder(name) return os.getenv("TMPDIR") .. "/moonhalo_test_tables_" .. name end

local function whole(tensor) return tensor:is_shard_tensor() and tensor:full_tensor() or tensor end

--- The first place where two values differ, or nil: in types, integers and floats too, keys, dtypes, shapes and bits.
local function difference(a, b, place)
  if mh.is_tensor(a) or mh.is_tensor(b) then
    if not (mh.is_tensor(a) and mh.is_tensor(b)) then return place end
    a, b = whole(a), whole(b)
    if a.dtype ~= b.dtype or table.concat(a.shape, " ") ~= table.concat(b.shape, " ") then return place end
    return not mh.equal(a, b) and place or nil
  end
  if type(a) ~= type(b) or math.type(a) ~= math.type(b) then return place end
  if type(a) ~= "table" then
    return not (a == b and (a ~= 0 or 1 / a == 1 / b) or a ~= a and b ~= b) and place or nil
  end
  for key, value in pairs(a) do
    local found = difference(value, b[key], place .. "." .. tostring(key))
    if found then return found end
  end
  for key in pairs(b) do
    if a[key] == nil then return place .. "." .. tostring(key) end
  end
end

local kDtypes = {mh.float64, mh.float32, mh.float16, mh.bfloat16, mh.int64, mh.int32, mh.int16, mh.int8, mh.uint8,
    mh.bool, mh.complex64, mh.complex128}

--- The values that trees are made of, drawn by `draw`, which is the same on all ranks.
local function leaf(draw, mesh)
  local shapes = {{}, {0}, {3}, {2, 0, 2}, {5, 2}}
  local function plain() return mh.arange(10):reshape{5, 2}:to(kDtypes[draw(#kDtypes)]) end
  local kinds = {
    function() return draw(1000) end, function() return math.mininteger end, function() return draw(1000) / 7 end,
    function() return -0.0 end,
    function() return 3.0 end, function() return 1e300 end, function() return 5e-324 end, function() return 0 / 0 end,
    function() return math.huge end, function() return -math.huge end, function() return draw(2) == 1 end,
    function() return "Grüße, \0, \"$tensor\"" end, function() return "\xff\xfe\0" end, function() return "" end,
    function() return mh.zeros(shapes[draw(#shapes)], {dtype = kDtypes[draw(#kDtypes)]}) end, plain,
    function() return plain()["1:4:2"] end, function() return mh.distribute_tensor(plain(), mesh,
    {mh.Shard(draw(2) - 1)}) end,
    function() return mh.distribute_tensor(plain():to(mh.float64), mesh, {mh.Replicate()}) end,
  }
  return kinds[draw(#kinds)]()
end

local function tree(draw, mesh, depth)
  local made, kind, count = {}, draw(5), draw(4) - 1
  local keys = {"a", "b.c", "a.b", "$tensor", "", "\xff", "1", "__metadata__", 1, 2, 5, -3, 0.5, math.huge, true, false}
  for i = 1, count do
    local value = depth < 4 and draw(3) == 1 and tree(draw, mesh, depth + 1) or leaf(draw, mesh)
    if kind == 1 then made[i] = value
    elseif kind == 2 then made[2 * i] = value  -- holes
    elseif kind == 3 then made[({"x", "y", "z"})[i]] = value
    else made[keys[draw(#keys)]] = value end
  end
  return made
end

local tests = {}

function tests.test_what_is_saved_comes_back_exactly()
  local mesh = mh.init_device_mesh(mh.device(), {3}, {"domain"})
  local seed = 1
  local function draw(most)
    seed = (seed * 1103515245 + 12345) % (1 << 31)
    return (seed >> 8) % most + 1
  end
  for round = 1, 40 do
    local path = folder("drawn")
    local state = {first = tree(draw, mesh, 0), second = tree(draw, mesh, 0), one = leaf(draw, mesh)}
    mh.checkpoint.save(path, state)
    testing.assert_equal(difference(state, mh.checkpoint.load(path), "state"), nil)
    local again = {first = {}, second = {more = {1}}, one = false}
    local first = again.first
    mh.checkpoint.load(path, again)
    testing.assert_equal(difference(state, again, "again"), nil)
    testing.assert_equal(again.first == first, true)  -- the same table
    mh.checkpoint.load(path, state)
    testing.assert_equal(difference(again, state, "round " .. round), nil)
  end
end

function tests.test_holes_and_names_beside_a_list_are_kept()
  local path = folder("holes")
  mh.checkpoint.save(path, {history = {0.5, 0.4, 0.3, nil, 0.2, 0.1}, best = {0.1, epoch = 17, name = "run7"},
    mask = {nil, mh.ones{2}}, by_step = {[100] = 0.5, [200] = 0.25}})
  local r = mh.checkpoint.load(path)
  testing.assert_equal({r.history[4] == nil, r.history[5], r.history[6]}, {true, 0.2, 0.1})
  testing.assert_equal({r.best[1], r.best.epoch, r.best.name}, {0.1, 17, "run7"})
  testing.assert_equal({r.mask[1] == nil, r.mask[2]:tolist()}, {true, {1, 1}})
  testing.assert_equal({r.by_step[100], r.by_step[200]}, {0.5, 0.25})
end

--- Tables and tensors of the state stay the same ones.
function tests.test_the_table_that_was_saved_is_filled()
  local path = folder("filled")
  local net = nn.Linear(2, 2)
  local state = {model = net, run = {epoch = 3, losses = {2, 1}}, step = 7, mean = mh.ones{2}, note = "a"}
  mh.checkpoint.save(path, state)
  local run, losses, mean = state.run, state.run.losses, state.mean
  state.run.epoch, state.run.other, losses[3], state.step, state.note = 9, true, 5, 0, "b"
  state.mean:zero_()
  mh.no_grad(function() net.weight:zero_() end)
  local rest = mh.checkpoint.load(path, state)
  testing.assert_equal({run.epoch, run.other == nil, #losses, state.step, state.note}, {3, true, 2, 7, "a"})
  testing.assert_equal(mean:tolist(), {1, 1})
  testing.assert_equal({state.run == run, run.losses == losses, rest.run == run, rest.step}, {true, true, true, 7})
  testing.assert_equal(net.weight:abs():max():item() > 0, true)
  local mesh = mh.init_device_mesh(mh.device(), {3}, {"domain"})
  local cut = {mean = mh.distribute_tensor(mh.zeros{2}, mesh, {mh.Shard(0)})}
  local held = cut.mean
  mh.checkpoint.load(path, cut)
  testing.assert_equal(held:full_tensor():tolist(), {1, 1})
end

function tests.test_what_cannot_be_kept_is_refused_before_anything_is_written()
  local path, net = folder("refused"), nn.Linear(2, 2)
  local opt = optim.SGD(net:parameters(), {lr = 0.1})
  local refused = {
    {net, "expected a table of entries by name, got one object that has a state\n" ..
    "  fix   mh.checkpoint.save(path, {model = net})"}, {opt, "expected a table of entries by name, got"},
    {mh.ones{2}, "expected a table of entries by name, got Tensor float32 [2]"},
    {{run = {net = net}}, "'run.net' is a module, an optimizer or the like inside of a table"},
    {{run = {{opts = {opt}}}}, "'run.1.opts.1' is a module, an optimizer or the like inside of a table"},
    {{run = {a = {print}}}, "'run.a.1' is a function, which cannot be saved"},
    {{run = {[mh.ones{2}] = 1}}, "has a tensor as a key"},
    {{run = {[{}] = 1}}, "has a table as a key"},
  }
  for i, case in ipairs(refused) do
    testing.assert_error(function() mh.checkpoint.save(path, case[1]) end, case[2])
    testing.assert_equal({i, mh.files.exists(path), mh.files.exists(path .. ".partial")}, {i, false, false})
  end
  testing.assert_error(function() mh.checkpoint.load(path, net) end, "fix   mh.checkpoint.load(path, {model = net})")
end

return tests
