-- SPDX-License-Identifier: Apache-2.0
-- V10: plans for more ranks than there are, counted on simulated ranks (--backend fake --ranks 64).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

testing.assert_equal({mh.backend(), mh.world_size()}, {"fake", 64})
local function make() return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) end
local config = mh.ComputeConfig{plan_ngpus = 64}

local plan, report = mh.parallelize(make, {x = mh.zeros{1024, 512}}, "autodist", config, {load_module = false})

testing.assert_equal(#report.candidates, 13)  -- 7 ways to share 64 out, 6 of them also in blocks
testing.assert_equal(plan, {mesh = report.candidates[1].placed.mesh, inputs = plan.inputs, parameter = plan.parameter,
  stored = report.candidates[1].placed.stored})
local seen = {}
for _, one in ipairs(report.candidates) do seen[("%d %d %s"):format(one.sizes.dp, one.sizes.tp, one.stored)] = one end
local numbers = 2 * 512 * 2048 + 2048 + 512
local data, stored, tensor = seen["64 1 false"], seen["64 1 true"], seen["1 64 false"]
testing.assert_equal(data.memory > 4 * 4 * numbers and stored.memory < data.memory / 10, true)
-- Two products forward, three backward: x needs no gradient.
testing.assert_equal({tensor.macs, tensor.bytes < data.bytes}, {5 * 1024 * 512 * 2048 // 64, true})
-- The output is summed up over tp, in a ring.
testing.assert_equal(tensor.bytes, 2 * 63 * 1024 * 512 * 4 // 64)
for _, one in ipairs(report.candidates) do testing.assert_equal(one.bytes > 0, true) end
print(report)

-- X21: batches of files on simulated ranks.
package.path = arg[0]:gsub("support/dry_run%.lua$", "?.lua") .. ";" .. package.path
local files = require "support.data_files"
local open_h5 = mh.h5.open
mh.h5.open = mh._unwritten.open_h5
local path = files.cf("dry_run.nc", 0, 6, {compression = 1, chunks = {1, 7, 5}})
mh.h5.open = open_h5
local set = mh.data.open(path):windows{inputs = {"z"}, targets = {fields = {"t2m"}, steps = {1}}}
local mesh = mh.init_device_mesh(mh.device(), {8, 8}, {"data", "domain"})
for _, cut in ipairs{{batch = "data", latitude = "domain"}, {latitude = "domain"}} do
  for batch in set:loader{mesh = mesh, cut = cut, batch = 5, normalize = set:statistics()}:batches() do
    testing.assert_equal({batch.inputs.shape, batch.inputs:to_local().shape},
        {{5, 2, 7, 5}, {cut.batch and 1 or 5, 2, 1, 5}})
  end
end
files.remove{path}
