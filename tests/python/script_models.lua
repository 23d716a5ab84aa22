-- SPDX-License-Identifier: Apache-2.0
-- Models that Python saved, on blocks: TorchScript (Y01) and torch.export (Y02). Output, gradients and five steps of
-- AdamW are those of Python's plain run.
-- usage: script_models.lua -- FOLDER PARTS PART: the cases whose number leaves PART when divided by PARTS
local mh = require "moonhalo"

local folder, parts, part = arg[1], math.tointeger(arg[2]), math.tointeger(arg[3])
local S, R = mh.Shard, mh.Replicate
local kModels = {"unet", "fno", "vit", "control", "counted", "convlstm", "mlp"}
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

local function train(what, name, net, x0, place)
  local expected = reference(name)
  local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-2})
  local losses = {}
  for step = 1, 5 do
    optimizer:zero_grad()
    local x = place(x0):detach():requires_grad_(true)
    local y = net(x)
    local loss = y:square():mean()
    loss:backward()
    losses[step] = whole(loss:detach())
    if step == 1 then
      check_same(what .. ": the output", y, expected.y)
      check_same(what .. ": the gradient of the input", x.grad, expected.gx)
      local count = 0
      for key, parameter in net:named_parameters() do
        check_same(what .. ": the gradient of " .. key, parameter.grad, expected["grad." .. key])
        count = count + 1
      end
      assert(count > 0, "no parameters")
    end
    optimizer:step()
  end
  check_same(what .. ": the losses", mh.stack(losses), expected.losses)
  for key, tensor in net:state_dict() do
    check_same(what .. ": " .. key .. " at the end", tensor, expected["end." .. key])
  end
end

local number, ran = 0, 0
for _, name in ipairs(kModels) do
  for _, kind in ipairs(kKinds) do
    for _, cut in ipairs(kCuts[mh.world_size()]) do
      for _, held in ipairs(kHeld) do
        number = number + 1
        if number % parts == part and is_kept(name, kind) then
          ran = ran + 1
          local mesh = mh.init_device_mesh(mh.device(), cut[1], #cut[1] == 1 and {"a"} or {"a", "b"})
          local net = load_model(name, kind)
          held[2](net, mesh)
          local what = ("%s.%s, %s on %s"):format(name, kind, held[1], tostring(cut[2][1]))
          train(what, name, net, reference(name).x, function(x) return mh.distribute_tensor(x, mesh, cut[2]) end)
        end
      end
    end
  end
end
assert(ran > 0, "no case")
if mh.rank() == 0 then print(("%d cases"):format(ran)) end
