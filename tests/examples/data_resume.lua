-- SPDX-License-Identifier: Apache-2.0
-- X12, X20, X21: training from files through mh.data, saved within an epoch on some ranks and continued on others, with
-- other cuts. With --set folder=PATH: `save` (the default) makes the files, trains, saves and writes down what follows;
-- --set
-- resume=true goes on from there and fails where a sample, a loss or a bit of the statistics differs.
package.path = arg[0]:gsub("examples/data_resume%.lua$", "scripting/?.lua") .. ";" .. package.path

local mh = require "moonhalo"
local files = require "support.data_files"
local nn = mh.nn

local cfg = mh.config {folder = "", resume = false}
local ranks = mh.world_size()
local mesh = ranks == 4 and mh.init_device_mesh(mh.device(), {2, 2}, {"data", "domain"})
    or mh.init_device_mesh(mh.device(), {ranks}, {"domain"})
local kCuts = {
  [4] = {batch = "data", longitude = {"domain", {2, 3}}},
  [3] = {latitude = {"domain", {4, 1, 2}}},
  [2] = {longitude = {"domain", {4, 1}}},
  [1] = {},
}

files.path = function(name) return cfg.folder .. "/" .. name end

local written = cfg.folder .. "/written.json"
local expected = cfg.resume and mh.json.load(written) or nil
local paths = expected and expected.paths or {
  files.cf("resume_a.nc", 0, 21, {missing = true, compression = 1, chunks = {4, 7, 5}}),
  files.cf("resume_b.nc", 21, 14, {scale = 0.02, chunks = {1, 7, 5}, compression = 1})}

local set = mh.data.open(paths):windows{inputs = {fields = {"t2m", "z"}, steps = {-1, 0}},
  targets = {fields = {"t2m"}, steps = {1}}, static = {"orography"}}
local train = set:split{train = 0.7, valid = 0.3}
local stats = train:statistics{weights = "latitude"}
local loader = train:loader{mesh = mesh, cut = kCuts[ranks], batch = 5, shuffle = "chunks", seed = 11,
  normalize = stats, missing = {fill = 0, mask = true}, dtype = "float64"}

mh.manual_seed(3)
local net = nn.Sequential(nn.Conv2d(7, 8, 3, {padding = 1}), nn.GELU(), nn.Conv2d(8, 1, 3, {padding = 1})):double()
local opt = mh.optim.AdamW(net:parameters(), {lr = 0.01})
local state = {model = net, optimizer = opt, data = loader}

--- Trains `count` batches; returns their samples and losses.
local function train_on(count)
  local seen = {}
  while #seen < count do
    for batch in loader:batches() do
      opt:zero_grad()
      local y = net(mh.cat({batch.inputs, batch.static}, 1))
      local loss = ((y - batch.targets) * batch.mask:double()):square():mean()
      loss:backward()
      opt:step()
      seen[#seen + 1] = {index = batch.index:tolist(), loss = loss:item()}
      if #seen == count then break end
    end
  end
  return seen
end

if not cfg.resume then
  train_on(3)
  mh.checkpoint.save(cfg.folder .. "/checkpoint", state)
  local text = mh.json.encode {paths = paths, after = train_on(8), stats = stats.fields}
  mh._files.on_first_rank(function() mh._files.write("data_resume", written, text) end)
  return
end

mh.checkpoint.load(cfg.folder .. "/checkpoint", state)
assert(mh.json.encode(stats.fields) == mh.json.encode(expected.stats), "the statistics have other bits")
for i, step in ipairs(train_on(8)) do
  local before = expected.after[i]
  assert(mh.json.encode(step.index) == mh.json.encode(before.index), "batch " .. i .. " has other samples")
  assert(math.abs(step.loss - before.loss) <= 1e-10 * math.abs(before.loss),
      ("loss %d is %.17g, was %.17g"):format(i, step.loss, before.loss))
end
