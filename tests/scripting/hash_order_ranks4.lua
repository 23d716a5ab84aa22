-- SPDX-License-Identifier: Apache-2.0
-- Moonhalo's own Lua gives the same on ranks whose hashes are seeded differently: strings, files, messages, weights,
-- and the sequence of operators.

local mh = require "moonhalo"
local t = require "moonhalo.testing"
local same = require "support.same_on_all_ranks"
local own_path = require "support.own_path"

local nn, optim = mh.nn, mh.optim
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"x"})
local kNames = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"}
local tests = {}

local function named(fn)
  local map = {}
  for i, name in ipairs(kNames) do map[name] = fn(i, name) end
  return map
end

local function message(fn, ...)
  local done, text = pcall(fn, ...)
  assert(not done)
  return tostring(text)
end

-- Were the seeds equal, nothing below would show anything.
function tests.test_ranks_hash_differently()
  local seen = {}
  for name in rawpairs(named(function() return true end)) do seen[#seen + 1] = name end
  local done = pcall(same, table.concat(seen, " "))
  t.assert_equal(done, false)
end

local Net = nn.Module:extend("Net")
function Net:init()
  self.parts = nn.ModuleDict(named(function(i) return nn.Linear(4, 4, {bias = i % 2 == 0}) end))
  self.norm = nn.LayerNorm({4}, {eps = 1e-4})
  self.act = nn.GELU{approximate = "tanh"}
end
function Net:forward(x, options)
  for _, part in self.parts._modules do x = self.act(part(x)) end
  return {mean = self.norm(x) * options.scale, last = x, first = x:sin()}
end

local function network()
  mh.manual_seed(3)
  return Net():double()
end

function tests.test_modules_and_their_state()
  local net = network()
  local words = {tostring(net)}
  for name, value in pairs(net:state_dict()) do words[#words + 1] = name .. tostring(value:sum():item()) end
  for name in net:named_modules() do words[#words + 1] = name end
  for name in pairs(nn) do words[#words + 1] = name end
  same(table.concat(words, "\n"))
end

local kSum = {mean = mh.square, first = mh.exp, last = mh.cos}

function tests.test_operators_of_a_training_step()
  local net = network()
  net = mh.parallelize_module(net, mesh, {
    ["parts.alpha"] = mh.ColwiseParallel(), ["parts.beta"] = mh.RowwiseParallel(),
    [""] = mh.PrepareModuleInput{input_layouts = {mh.Shard(0)}, desired_input_layouts = {mh.Replicate()}},
  })
  local opt = optim.AdamW(net:parameters(), {lr = 0.01, weight_decay = 0.1, betas = {0.8, 0.9}})
  local schedule = optim.StepLR(opt, 1, {gamma = 0.5})
  local x = mh.distribute_tensor(mh.linspace(0, 1, 32, {dtype = "float64"}):view(8, 4), mesh, {mh.Shard(0)})
  local losses = {}
  local names = mh.op_trace(function()
    for _ = 1, 2 do
      local out = net(x, {scale = 2})
      local total = 0
      for name, y in pairs(out) do total = total + kSum[name](y):mean() end
      opt:zero_grad()
      total:backward()
      mh.clip_grad_norm(net:parameters(), 1.0)
      opt:step()
      schedule:step()
      losses[#losses + 1] = ("%.17g"):format(total:item())
    end
  end)
  assert(#names > 100)
  same(table.concat(names, "\n") .. table.concat(losses, "\n") .. mh.json.encode(schedule:state_dict()))
end

function tests.test_files()
  local stem = own_path("")
  local net = network()
  local opt = optim.SGD(net:parameters(), {lr = 0.1, momentum = 0.9})
  local notes = named(function(i) return {value = i, half = i / 2, x = mh.ones(2) * i} end)
  mh.checkpoint.save(stem .. "checkpoint", {model = net, optimizer = opt, notes = notes, step = 3,
      other = named(tostring)})
  local loaded = mh.checkpoint.load(stem .. "checkpoint", {model = net, optimizer = opt})
  t.assert_all_close(named(function(_, name) return loaded.notes[name].x end),
      named(function(i) return mh.ones(2) * i end))
  local text = {}
  for key, value in pairs(loaded.notes) do text[#text + 1] = key .. value.half end
  same(table.concat(text, " ") .. mh.json.encode(loaded.other) .. mh.json.encode(notes.beta.half))
  mh.barrier()
  if mh.rank() == 0 then os.execute(("rm -r '%scheckpoint'"):format(stem)) end
end

function tests.test_messages()
  local two = {strid = 1, paddin = 2, out = 3, kernel = 4, bia = 5, dilatio = 6}
  local texts = {
    message(nn.Conv2d, 3, 4, 3, two),
    message(mh.conv2d, mh.ones(1, 1, 4, 4), mh.ones(1, 1, 3, 3), two),
    message(mh.distribute_tensor, mh.ones(4), mesh, {mh.Shard(0)}, two),
    message(mh.local_map, print, two),
    message(optim.Adam, {mh.ones(2):requires_grad_()}, two),
    message(mh.plot.lines, "never.png", {{y = {1, 2}}}, two),
    message(mh.parallelize_module, network(), mesh, named(function() return mh.ColwiseParallel() end)),
    message(network().load_state_dict, network(), named(function() return mh.ones(1) end)),
    message(t.assert_equal, named(tostring), named(function(i) return i end)),
    message(t.assert_close, mh.ones(1), mh.ones(1), two),
    message(mh.config, 3), message(function() return nn.Conv2f end), message(function() return optim.Adan end),
    message(function() return mh.sofmax end), message(function() return mh.ones(1).unsqeeze end),
    message(mh.log, {[{}] = 1}):gsub("0x%x+", ""),
    message(mh.sum, two), message(mh.testing.assert_all_close, named(function() return mh.ones(1) end), {}),
  }
  same(table.concat(texts, "\n"))
end

return tests
