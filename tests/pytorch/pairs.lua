-- SPDX-License-Identifier: Apache-2.0
-- The Lua halves of docs/from_pytorch.md, compared with what the Python halves left (check_pairs.py writes
-- pairs.json). On several ranks the inputs are cut into uneven blocks; weights are whole. Y10.
local mh = require "moonhalo"

local kPage = "docs/from_pytorch.md"
local kTolerance = 1e-12
-- Dim that is cut.
local kCut = {x = 0, y = 0, v = 0, labels = 0, image = 2}

local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"domain"})
local given = mh.json.load("pairs.json")

local kNotFinite = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

--- Numbers of Python are strings, because JSON has no infinity.
local function number_of(value)
  if type(value) ~= "string" then return value end
  return kNotFinite[value] or tonumber(value)
end

local function plain_input(one)
  local values = {}
  for i, value in ipairs(one.values) do values[i] = number_of(value) end
  return mh.tensor(values, {dtype = one.dtype}):reshape(one.shape)
end

local function input(name)
  local plain = plain_input(given.inputs[name])
  if ranks == 1 or not kCut[name] then return plain end
  return mh.distribute_tensor(plain, mesh, {mh.Shard(kCut[name])})
end

--- Initial values that would be drawn are sines, as in check_pairs.py.
local function use_the_same_weights()
  local function fill(tensor)
    local values = {}
    for i = 0, tensor:numel() - 1 do values[i + 1] = 0.4 * math.sin(0.3 + 0.7 * i) end
    mh.no_grad(function() tensor:copy_(mh.tensor(values, {dtype = "float64"}):reshape(tensor.shape)) end)
    return tensor
  end
  for _, name in ipairs(given.drawn) do rawset(mh.nn.init, name, fill) end
end

local function same_number(have, wanted)
  wanted = number_of(wanted)
  if type(have) == "boolean" or type(wanted) == "boolean" then return have == wanted end
  if wanted ~= wanted or have ~= have then return wanted ~= wanted and have ~= have end
  return have == wanted or math.abs(have - wanted) <= kTolerance * math.max(1, math.abs(wanted))
end

local function flat_numbers(tensor)
  if tensor:is_complex() then tensor = mh.view_as_real(tensor) end
  local numbers = tensor:flatten():tolist()
  return type(numbers) == "table" and numbers or {numbers}
end

--- Where a value of Lua differs from that of Python, as a string; nil where they are equal.
local difference

local function tensor_difference(have, wanted)
  if not mh.is_tensor(have) then return ("a %s, but Python has a tensor"):format(type(have)) end
  have = have:detach()
  if have.is_sharded then have = have:full_tensor() end
  if table.concat(have.shape, ",") ~= table.concat(wanted.shape, ",") then
    return ("shape {%s}, Python {%s}"):format(table.concat(have.shape, ","), table.concat(wanted.shape, ","))
  end
  if have.dtype ~= wanted.dtype then return ("%s, Python %s"):format(have.dtype, wanted.dtype) end
  local numbers = flat_numbers(have)
  for i, number in ipairs(wanted.values) do
    if not same_number(numbers[i], number) then
      return ("element %d is %s, Python %s"):format(i - 1, numbers[i], number)
    end
  end
end

function difference(have, wanted)
  if wanted.kind == "tensor" then return tensor_difference(have, wanted) end
  if wanted.kind == "list" then
    if type(have) ~= "table" then return ("a %s, but Python has a list"):format(type(have)) end
    if #have ~= #wanted.values then return ("%d entries, Python %d"):format(#have, #wanted.values) end
    for i, one in ipairs(wanted.values) do
      local what = difference(have[i], one)
      if what then return ("entry %d: %s"):format(i, what) end
    end
    return nil
  end
  if type(have) ~= wanted.kind then return ("a %s, but Python has a %s"):format(type(have), wanted.kind) end
  local same = wanted.kind == "number" and same_number(have, wanted.value) or have == wanted.value
  if not same then return ("%s, Python %s"):format(have, wanted.value) end
end

local function run(pair)
  local scope = {nn = mh.nn, F = mh.functional, optim = mh.optim, mh = mh}
  for name in pairs(given.inputs) do scope[name] = input(name) end
  setmetatable(scope, {__index = _G, __newindex = function(_, name) error("global " .. name .. ": use local", 2) end})
  local code = ("\n"):rep(pair.line - 1) .. pair.code .. "\nreturn out"
  return assert(load(code, "@" .. kPage, "t", scope))()
end

mh.set_default_dtype("float64")
use_the_same_weights()
local wrong = 0
for _, pair in ipairs(given.pairs) do
  local ok, out = pcall(run, pair)
  local what = not ok and tostring(out) or nil
  if ok then
    ok, what = pcall(difference, out, pair.out)
  end
  if what then
    wrong = wrong + 1
    if mh.rank() == 0 then print(("%s:%d, %d ranks: %s"):format(kPage, pair.line, ranks, what)) end
  end
end
if wrong > 0 then mh.fail(("%d of %d pairs differ on %d ranks"):format(wrong, #given.pairs, ranks)) end
if mh.rank() == 0 then print(("%d pairs are the same on %d ranks"):format(#given.pairs, ranks)) end
