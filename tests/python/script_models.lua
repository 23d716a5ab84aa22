-- SPDX-License-Identifier: Apache-2.0
-- Models that Python saved, on blocks: TorchScript (Y01) and torch.export (Y02). Output, gradients and five steps of
-- AdamW are those of Python's plain run; so are three steps on some ranks and, from a checkpoint, two on others.
-- usage: script_models.lua -- FOLDER PARTS PART [save | resume]: the cases whose number leaves PART when divided by
--        PARTS; save: three steps of each, and a checkpoint; resume: two steps from it
local mh = require "moonhalo"

local folder, parts, part, mode = arg[1], math.tointeger(arg[2]), math.tointeger(arg[3]), arg[4]
local S, R = mh.Shard, mh.Replicate
local kModels = {"unet", "fno", "vit", "control", "counted", "convlstm", "mlp", "classifier"}
local kKinds = {"script", "trace", "static", "dynamic"}

local function load_model(name, kind)
  if kind == "static" or kind == "dynamic" then return mh.export.load(("%s/%s.%s.pt2"):format(folder, name, kind)) end
  return mh.jit.load(("%s/%s.%s.pt"):format(folder, name, kind))
end

--- A traced program does not keep that forward replaces a buffer.
local function is_kept(name, kind) return not (name == "counted" and kind == "trace") end

-- By number of ranks: a mesh and the placements of the input.
local kCuts = {
  [1] = {{{1}, {S(2)}}},
  [2] = {{{2}, {S(2, {5, 19})}}, {{2}, {S(3, {20, 0})}}},
  [3] = {{{3}, {S(2, {3, 13, 8})}}, {{3}, {S(2, {0, 16, 8})}}, {{3}, {S(3)}}},
  [4] = {{{2, 2}, {S(2, {7, 17}), S(3)}}, {{2, 2}, {S(0), S(3, {20, 0})}}, {{4}, {S(0)}}},
}

local function whole(x) return x:is_shard_tensor() and x:full_tensor() or x end

local function check_same(what, actual, expected)
  actual = whole(actual:detach())
  assert(table.concat(actual.shape, ",") == table.concat(expected.shape, ","), what .. ": another shape")
  local far = ((actual - expected):abs():max() / expected:abs():max():clamp{min = 1e-30}):item()
  if not (far <= 1e-10) then error(("%s: differs by %.1e"):format(what, far), 0) end
end

local function reference(name)
  local kept = {}
  for key, tensor in mh.jit.load(("%s/%s.reference.pt"):format(folder, name)):named_buffers() do
    kept[key:gsub("__", ".")] = tensor
  end
  return kept
end

-- Ways to hold the parameters.
local kHeld = {
  {"plain", function() end},
  {"replicated", function(net, mesh) mh.parallelize_module(net, mesh, {}) end},
  {"fully_shard", function(net, mesh)
    mh.fully_shard(net, {mesh = mesh.ndim == 1 and mesh or mesh["b"], min_numel = 1, input = false})
  end},
  {"replicate", function(net, mesh)
    mh.replicate(net, {mesh = mesh.ndim == 1 and mesh or mesh["b"], input = false})
  end},
}

local function check_gradients(what, net, x, expected)
  check_same(what .. ": the gradient of the input", x.grad, expected.gx)
  local count = 0
  for key, parameter in net:named_parameters() do
    check_same(what .. ": the gradient of " .. key, parameter.grad, expected["grad." .. key])
    count = count + 1
  end
  assert(count > 0, "no parameters")
end

--- Steps `first` to `last` of Python's five.
local function train(what, net, optimizer, place, expected, first, last)
  local losses = {}
  for step = first, last do
    optimizer:zero_grad()
    local x = place(expected.x):detach():requires_grad_(true)
    local y = net(x)
    local loss = y:square():mean()
    loss:backward()
    losses[#losses + 1] = whole(loss:detach())
    if step == 1 then
      check_same(what .. ": the output", y, expected.y)
      check_gradients(what, net, x, expected)
    end
    optimizer:step()
  end
  check_same(what .. ": the losses", mh.stack(losses), expected.losses:narrow(0, first - 1, #losses))
  if last < 5 then return end
  for key, tensor in net:state_dict() do
    check_same(what .. ": " .. key .. " at the end", tensor, expected["end." .. key])
  end
end

local function run_case(name, kind, held, cut)
  local mesh = mh.init_device_mesh(mh.device(), cut[1], #cut[1] == 1 and {"a"} or {"a", "b"})
  local net = load_model(name, kind)
  held[2](net, mesh)
  local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-2})
  local what = ("%s.%s, %s on %s"):format(name, kind, held[1], tostring(cut[2][1]))
  local path, state = ("%s/%s.%s.%s.run"):format(folder, name, kind, held[1]), {model = net, optimizer = optimizer}
  if mode == "resume" then mh.checkpoint.load(path, state) end
  local first, last = mode == "resume" and 4 or 1, mode == "save" and 3 or 5
  local function place(x) return mh.distribute_tensor(x, mesh, cut[2]) end
  train(what, net, optimizer, place, reference(name), first, last)
  if mode == "save" then mh.checkpoint.save(path, state) end
end

--- Runs of a checkpoint have one cut each, another on other numbers of ranks, so that both runs have the same cases.
local function cuts_of(number)
  local cuts = kCuts[mh.world_size()]
  return mode and {cuts[number % #cuts + 1]} or cuts
end

local number, ran = 0, 0
for _, name in ipairs(kModels) do
  for _, kind in ipairs(kKinds) do
    for _, held in ipairs(kHeld) do
      for _, cut in ipairs(cuts_of(number)) do
        number = number + 1
        if number % parts == part and is_kept(name, kind) then
          ran = ran + 1
          run_case(name, kind, held, cut)
        end
      end
    end
  end
end
assert(ran > 0, "no case")
if mh.rank() == 0 then print(("%d cases"):format(ran)) end
