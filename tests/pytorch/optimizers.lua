-- SPDX-License-Identifier: Apache-2.0
-- Continues with the optimizers that check_optimizers.py has saved (Y03): moonhalo run optimizers.lua -- FOLDER
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local folder, ranks = arg[1], mh.world_size()
local mesh = mh.init_device_mesh("cpu", {ranks}, {"domain"})
local given = mh.json.load(folder .. "/cases.json")
local function double(list) return mh.tensor(list, {dtype = "float64"}) end
local rows = ranks == 1 and {11} or {4, 0, 7}
local x = mh.distribute_tensor(double(given.x), mesh, {mh.Shard(0, rows)})
local y = mh.distribute_tensor(double(given.y), mesh, {mh.Shard(0, rows)})

local function network() return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)):to("float64") end

for _, case in ipairs(given.cases) do
  for _, sharded in ipairs {false, true} do
    local net, file = network(), mh.load(folder .. "/" .. case.file)
    if sharded then mh.fully_shard(net, {mesh = mesh, min_numel = 1}) end
    net:load_state_dict(file.state_dict)
    local opt = mh.optim[case.name](net:parameters(), {lr = 1})
    mh.checkpoint.import_optimizer(opt, file.optimizer_states[1], case.names and {names = case.names, module = net})
    for _ = 1, 3 do
      opt:zero_grad()
      mh.mse_loss(net(x), y):backward()
      opt:step()
    end
    for name, tensor in net:state_dict() do
      local now = tensor.is_sharded and tensor:full_tensor() or tensor
      local off = (now - double(case.after[name])):abs():max():item()
      assert(off < 1e-12, ("%s %s: %g"):format(case.file, name, off))
    end
  end
end

local net = network()
local good = mh.load(folder .. "/AdamWFalse.ckpt").optimizer_states[1]
local function refused(opt, state, options, ...)
  local message = testing.assert_error(function() mh.checkpoint.import_optimizer(opt, state, options) end,
    "checkpoint.import_optimizer: ")
  for _, part in ipairs {...} do assert(message:find(part, 1, true), message) end
end
refused(mh.optim.Adam(net:parameters(), {lr = 1}), good, nil, "that of another optimizer", "fix   make mh.optim.AdamW")
refused(mh.optim.AdamW({net[0].weight}, {lr = 1}), good, nil,
    "other parameters\n  have  4 in the state, 1 in the optimizer")
refused(mh.optim.AdamW(net:parameters(), {lr = 1}), good.state, nil, "not a state_dict() of an optimizer")
refused(net, good, nil, "the first argument is not an optimizer")
refused(mh.optim.AdamW(net:parameters(), {lr = 1}), good, {names = {"a"}}, "names need the module")
refused(mh.optim.AdamW(net:parameters(), {lr = 1}), good, {names = {"a"}, module = net},
    "parameter 0 of the state is not")
refused(mh.optim.SGD({mh.ones{1}}, {lr = 1}), mh.load(folder .. "/maximize.pt"), nil,
    "SGD here has no option 'maximize'")
