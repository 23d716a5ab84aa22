-- SPDX-License-Identifier: Apache-2.0
-- X14: a rank in the middle of a dry run (--backend fake --ranks 8 --fake-rank 5): plain inputs, pipelines, and files.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

testing.assert_equal({mh.backend(), mh.world_size(), mh.rank()}, {"fake", 8, 5})
local mesh = mh.init_device_mesh("cpu", {2, 4}, {"data", "domain"})
testing.assert_equal({mesh:coordinate("data"), mesh:coordinate("domain")}, {1, 1})

-- Other ranks' blocks are as this rank's.
local x = mh.from_local(mh.ones{3, 5}, mesh, {mh.Replicate(), mh.Shard(0)})
testing.assert_equal({x.shape, x:shard_sizes(0)}, {{12, 5}, {3, 3, 3, 3}})

-- Those of a dim whose sizes are known are as they are: here rank 5 has the shorter block.
local rows = mh.distribute_tensor(mh.ones{7, 5}, mesh["domain"], {mh.Shard(0, {2, 1, 2, 2})})
local samples = mh.local_batch(rows:unsqueeze(0), mesh["data"])
testing.assert_equal({samples.shape, samples:shard_sizes(1)}, {{2, 7, 5}, {2, 1, 2, 2}})

-- Plain inputs, whose rows are this rank's samples.
local flat = mh.init_device_mesh("cpu", {8}, {"data"})
for _, how in ipairs {"fully_shard", "replicate"} do
  local net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
  mh[how](net, {mesh = flat})
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.1})
  mh.comm_stats{reset = true}
  for _ = 1, 2 do
    opt:zero_grad()
    local loss = nn.functional.mse_loss(net(mh.randn{6, 16}), mh.local_batch(mh.randn{6, 4}, flat))
    loss:backward()
    opt:step()
    testing.assert_equal(type(loss:item()), "number")
  end
  testing.assert_equal(mh.comm_stats().bytes > 0, true)
end

-- A rank runs its own stages.
local along = mh.init_device_mesh("cpu", {8}, {"pp"})
local stages = {}
for i = 1, 8 do stages[i] = nn.Sequential(nn.Linear(8, 8), nn.Tanh()) end
local pipe = mh.pipeline(nn.Sequential(table.unpack(stages)),
  {mesh = along, micros = 2})
local losses = pipe:train_step({mh.randn{3, 8}, mh.randn{3, 8}}, function(y) return y:square():mean() end)
testing.assert_equal({#losses, #pipe:parameters()}, {2, 2})
for _, parameter in ipairs(pipe:parameters()) do testing.assert_equal(parameter.grad.shape, parameter.shape) end
testing.assert_equal(pipe:infer_step({mh.randn{3, 8}, mh.randn{5, 8}})[2].shape, {5, 8})

-- No file is written; what would be is counted.
local before = {mh._files.unwritten()}
local function left_out(files, bytes)
  local now = {mh._files.unwritten()}
  testing.assert_equal({now[1] - before[1], now[2] - before[2]}, {files, bytes})
  before = now
end
local folder = "/no/such/folder"
mh.files.make_folder(folder)
mh.checkpoint.save(folder .. "/checkpoint", {x = x, step = 3})
left_out(1, 3 * 5 * 4)
local saving = mh.checkpoint.save(folder .. "/checkpoint", {x = x}, {async = true})
testing.assert_equal({saving:is_done(), saving:wait()}, {true, folder .. "/checkpoint"})
left_out(1, 3 * 5 * 4)
local file = mh.h5.open(folder .. "/a.h5", "w")
file:write("x", x)
file:append("y", mh.ones{2})
file:set_attr("title", "four")
file:close()
left_out(1, 3 * 5 * 4 + 2 * 4 + 4)
mh.files.write_npy(folder .. "/a.npy", mh.ones{4})
mh.safetensors.save(folder .. "/a.safetensors", {a = mh.ones{4}})
mh.save_pt(folder .. "/a.pt", {a = mh.ones{4}})
left_out(3, 3 * 16 + 1)
mh.plot.lines(folder .. "/a.png", {{y = {1, 2, 3}}})  -- rank 0 draws
left_out(0, 0)
local text <close> = io.open(folder .. "/a.txt", "w")
text:write("a")
testing.assert_equal({os.rename(folder, "/no"), os.remove(folder)}, {true, true})
left_out(1, 0)
testing.assert_equal(mh.files.exists(folder), false)
print "done"
