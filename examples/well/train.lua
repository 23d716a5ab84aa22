-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * files in the layouts of The Well and PDEBench as one data set: runs, their fields, vectors as channels
--  * whole runs set apart for the test, statistics of the rest, batches over a mesh of samples x rows
--  * a network that predicts a step from two, in a periodic box, and is tried against the assumption that nothing
--  changes
--
-- The files are small and made by make.py beside this script:
--
--     .venv-tests/bin/python examples/well/make.py examples/well/output
--     ./dev run examples/well/train.lua --ranks 4
--     ./dev run examples/well/train.lua --ranks 3 --set data=examples/well/output/stirred.hdf5

local mh = require "moonhalo"
local nn, optim = mh.nn, mh.optim

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cfg = mh.config {
  data = here .. "/output/well",   -- a folder of The Well, or a file of PDEBench
  epochs = 6,
  batch = 8,                       -- samples per step
  lr = 3e-3,                       -- AdamW
  width = 24,                      -- channels
  dtype = "float32",
  seed = 7,
}

local rank, ranks = mh.rank(), mh.world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end
mh.manual_seed(cfg.seed)

-- ---- Data -----------------------------------------------------------------------------------------------------------

local data = mh.data.open(cfg.data)
say("%s", tostring(data))
local fields = {}
for name in pairs(data.fields) do fields[#fields + 1] = name end
local target = rawget(data.fields, "dye") and "dye" or fields[1]
local set = data:windows{inputs = {fields = fields, steps = {-1, 0}}, targets = {fields = {target}, steps = {1}}}
local train, test = set:split{train = 0.75, test = 0.25, by = "trajectory"}
local stats = train:statistics()

-- Samples over the first dim of the mesh, rows of the box over the second.
local mesh = mh.init_device_mesh(mh.device(), ranks % 2 == 0 and {2, ranks // 2} or {1, ranks}, {"data", "domain"})
local function loader_of(samples, shuffle)
  return samples:loader{mesh = mesh, cut = {batch = "data", [data.space[1]] = "domain"}, batch = cfg.batch,
                        shuffle = shuffle, seed = cfg.seed, normalize = stats, dtype = cfg.dtype}
end

-- ---- The model: what changes, from two steps of all fields ----------------------------------------------------------

local newest = 0  -- the channel of the inputs that the target continues
for i, name in ipairs(set.inputs.channels) do
  if name == target .. "@+0" then newest = i - 1 end
end

local Net = nn.Module:extend("Net")
function Net:init(channels, width)
  local function conv(from, to) return nn.Conv2d(from, to, 5, {padding = 2, padding_mode = "circular"}) end
  self.enter, self.between, self.leave = conv(channels, width), conv(width, width), conv(width, 1)
  nn.init.zeros_(self.leave.weight)
  nn.init.zeros_(self.leave.bias)
end
function Net:forward(x)
  local h = mh.gelu(self.enter(x))
  h = h + mh.gelu(self.between(h))
  return x:narrow(1, newest, 1) + self.leave(h)
end

local net = Net(#set.inputs.channels, cfg.width):to(cfg.dtype)
local opt = optim.AdamW(net:parameters(), {lr = cfg.lr})
local loader = loader_of(train, true)
while loader.epoch < cfg.epochs do
  for batch in loader:batches() do
    local loss = mh.mse_loss(net(batch.inputs), batch.targets)
    opt:zero_grad()
    loss:backward()
    opt:step()
    mh.log {epoch = loader.epoch, loss = loss:item()}
  end
end

-- ---- Test on runs that were set apart -------------------------------------------------------------------------------

local network, unchanged, values = 0, 0, 0
mh.inference_mode(function()
  for batch in loader_of(test, false):batches() do
    network = network + (net(batch.inputs) - batch.targets):square():sum():item()
    unchanged = unchanged + (batch.inputs:narrow(1, newest, 1) - batch.targets):square():sum():item()
    values = values + batch.targets:numel()
  end
end)
say("")
say("  test on other runs, RMSE over the standard deviation of %s", target)
say("  nothing changes %8.4f", math.sqrt(unchanged / values))
say("  network         %8.4f", math.sqrt(network / values))
