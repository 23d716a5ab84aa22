-- SPDX-License-Identifier: Apache-2.0
-- N21: plans and weights on ranks that have no file system.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local runs = require "support.parallel_runs"
local nn = mh.nn
local seeded, plain = runs.seeded, runs.plain

local ranks = mh.world_size()
local tests = {}

local Mlp = nn.Module:extend("Mlp")
function Mlp:init() self.fc1, self.fc2 = nn.Linear(6, 9), nn.Linear(9, 5) end
function Mlp:forward(x) return self.fc2(self.fc1(x):gelu()) end

--- Calls fn while every function of files fails on ranks 1 and above.
local function without_files(fn)
  local replaced = {}
  local function fails(of, name, what)
    replaced[#replaced + 1] = {of, name, rawget(of, name)}
    rawset(of, name, function() error(("rank %d has no files: %s"):format(mh.rank(), what)) end)
  end
  for _, name in ipairs(mh.rank() > 0 and {"exists", "make_folder", "list", "copy", "remove", "rename"} or {}) do
    if rawget(mh.files, name) then fails(mh.files, name, "mh.files." .. name) end
  end
  if mh.rank() > 0 then
    fails(mh._files, "write", "write")
    for _, name in ipairs {"open", "lines"} do fails(io, name, "io." .. name) end
    for _, name in ipairs {"remove", "rename", "tmpname"} do fails(os, name, "os." .. name) end
  end
  local results = table.pack(pcall(fn))
  for _, one in ipairs(replaced) do rawset(table.unpack(one)) end
  if not results[1] then error(results[2], 0) end
  return results[2]
end

function tests.test_N21_one_rank_alone_needs_files()
  local x, config = runs.random(6, {4, 6}), runs.config_of(ranks, ranks)
  local expected = plain(seeded(Mlp)(x))
  for _, strategy in ipairs {"all", "code", "no_weights"} do
    local path = own_path("plans_" .. strategy)
    for k = 1, 2 do
      local net = without_files(function()
        return mh.parallelize(seeded(Mlp), {x = x}, "tp", config, {gen_savedir = path, broadcast_strategy = strategy})
      end)
      testing.assert_equal({net.parallel.planned, net.fc1.weight.placements[2]:is_shard(0)}, {k == 1, true})
      testing.assert_close(plain(net(x)), expected)
      mh.barrier()
    end
  end
end

return tests
