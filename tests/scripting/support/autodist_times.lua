-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: plans of the policy "autodist" by the time of their steps on a machine, on any number of ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local machine = require "support.planted_machine"
local own_path = require "support.own_path"
local runs = require "support.parallel_runs"
local nn = mh.nn
local seeded, plain, config_of = runs.seeded, runs.plain, runs.config_of

local ranks = mh.world_size()
local kF64 = {dtype = "float64"}
local tests = {}

--- Fails identically on all ranks, with all of the strings.
local function refused(texts, fn)
  local message = testing.assert_error(fn, texts[1])
  for _, text in ipairs(texts) do
    if not message:find(text, 1, true) then error("the message lacks '" .. text .. "':\n" .. message, 0) end
  end
end

--- Changes what a file says.
local function rewrite(path, change)
  mh._files.on_first_rank(function()
    local text
    do
      local file <close> = assert(io.open(path, "r"))
      text = change(file:read("a"))
    end
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
  end)
end

local function mlp() return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8)) end
local function slow() return machine(1e8, 1e11, 1e8, 1e-4) end

local function square() return nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96)) end
local function wide() return nn.Sequential(nn.Linear(32, 24 * 64), nn.GELU(), nn.Linear(24 * 64, 32)) end
local function convs() return nn.Sequential(nn.Conv2d(2, 6, 3, {padding = 1}), nn.GELU(),
    nn.Conv2d(6, 2, 3, {padding = 1})) end

local function plan(make, x, options, more)
  return mh.parallelize(seeded(make), {x = x}, "autodist",
    config_of(ranks, ranks, {pas_config = options}), more or {load_module = false})
end

-- Messages are slow: samples are cut where there are many, the domain of one sample, and layers of large weights.
function tests.test_V10_planted_machines_give_the_reckoned_plan()
  local function best(make, x, of)
    local placed, report = plan(make, x, {machine = of})
    local first = report.candidates[1]
    testing.assert_equal(placed.mesh, first.placed.mesh)
    for _, one in ipairs(report.candidates) do
      testing.assert_equal(one.bound.step <= (one.seconds or one.bound.step) * (1 + 1e-9), true)
      testing.assert_equal(one.seconds == nil or one.seconds >= first.seconds, true)
      testing.assert_equal(one.why ~= "", true)
    end
    return first.sizes, first, tostring(report)
  end
  local sizes, first, text = best(mlp, mh.zeros({12 * 512, 8}, kF64), slow())
  testing.assert_equal({sizes.dp, first.stored}, {ranks, false})
  testing.assert_equal(text:find("the fastest forecast: computing", 1, true) ~= nil, true)
  sizes = best(convs, mh.zeros({1, 2, 96, 96}, kF64), machine(1e10, 1e11, 1e8, 1e-5))
  testing.assert_equal(sizes.domain * sizes.columns, ranks)
  sizes = best(wide, mh.zeros({2, 32}, kF64), machine(1e11, 1e10, 1e8, 1e-6))
  testing.assert_equal(sizes.tp, ranks)
  sizes, first = best(square, mh.zeros({768, 96}, kF64), machine(1e13, 1e8, 1e12, 1e-7))
  testing.assert_equal({sizes.dp, first.stored}, {ranks, true})
end

function tests.test_V10_a_limit_of_memory_changes_the_plan()
  local of, x = machine(1e8, 1e11, 1e11, 1e-4), mh.zeros({12 * 64, 32}, kF64)  -- one sum of copies is the fastest
  local _, free = plan(wide, x, {machine = of, most_tensor = 1})
  local _, limited = plan(wide, x, {machine = of, most_tensor = 1, memory_limit = free.candidates[1].memory - 1})

  local first, last = limited.candidates[1], limited.candidates[#limited.candidates]
  testing.assert_equal({free.candidates[1].stored, first.stored}, {false, true})
  testing.assert_equal({first.fits, first.memory < free.candidates[1].memory, last.fits}, {true, true, false})
  testing.assert_equal(tostring(limited):find("needs ", 1, true) ~= nil, true)
  refused({"search: no division of " .. ranks .. " ranks fits into 100 bytes a rank"}, function()
    plan(wide, x, {machine = of, memory_limit = 100})
  end)
end

function tests.test_V10_the_best_three_are_measured_and_all_ranks_agree()
  local net, x = seeded(mlp), mh.ones({12, 8}, kF64)
  local expected = plain(net(x))
  local whole = {}
  for name, tensor in net:state_dict() do whole[name] = plain(tensor):clone() end
  mh.manual_seed(3)
  local drawn = mh.rand{4}
  mh.manual_seed(3)

  mh.parallelize(net, {x = x}, "autodist", config_of(ranks, ranks,
    {pas_config = {machine = slow(), measure = 3}}))

  testing.assert_equal(mh.rand{4}, drawn)
  testing.assert_close(plain(net(x)), expected)
  for name, tensor in net:state_dict() do testing.assert_equal(plain(tensor), whole[name]) end
  local report = net.parallel.report
  for _, text in ipairs(mh._files.of_all_ranks(report.json)) do testing.assert_equal(text, report.json) end
  local measured = 0
  for i, one in ipairs(report.candidates) do
    if one.measured then measured = measured + 1 end
    testing.assert_equal(one.measured ~= nil, i <= 3)
    testing.assert_equal(i == 1 or not one.measured or one.measured >= report.candidates[i - 1].measured, true)
  end
  testing.assert_equal(measured, 3)
end

-- Its name is the same, and its layout does not matter.
function tests.test_V10_a_kept_plan_of_an_edited_machine_is_none()
  local of, x, folder = machine(1e8, 1e11, 1e8, 1e-4), mh.ones({12, 8}, kF64), own_path("timed_plans")
  local function planned(reuse)
    local net = seeded(mlp)
    mh.parallelize(net, {x = x}, "autodist", config_of(ranks, ranks, {pas_config = {machine = of}}),
      {gen_savedir = folder, reuse = reuse})
    return net.parallel.planned
  end
  testing.assert_equal({planned("match"), planned("match")}, {true, false})
  rewrite(of, function(text) return "/* the same */\n" .. text end)
  testing.assert_equal(planned("match"), false)

  rewrite(of, function(text) return (text:gsub('"launch": 0', '"launch": 1e-3')) end)
  refused({"holds a plan of something else: 'machine' was "}, function() planned("match") end)
  testing.assert_equal({planned("moo"), planned("match")}, {true, false})
end

-- A plan for ranks that are not there, made by a process that is not simulated.
function tests.test_X14_plans_for_more_ranks_than_there_are()
  local config = mh.ComputeConfig{plan_ngpus = 4, runtime_ngpus = 8, pas_config = {machine = "h100", most_rows = 2,
    most_columns = 1, most_tensor = 2}}
  local placed, report = mh.parallelize(seeded(convs), {x = mh.zeros({8, 2, 16, 16}, kF64)}, "autodist", config,
    {load_module = false})

  local product, json = 1, mh.json.decode(report.json)
  for _, size in ipairs(placed.mesh[1]) do product = product * size end
  testing.assert_equal({product, json.ranks, json.units, json.backend}, {4, 4, 2, "nccl"})
  refused({"search: divisions of 16 ranks cannot be measured on " .. ranks}, function()
    config = mh.ComputeConfig{plan_ngpus = 16, pas_config = {machine = "h100", measure = 1}}
    mh.parallelize(seeded(convs), {x = mh.zeros({16, 2, 16, 16}, kF64)}, "autodist", config, {load_module = false})
  end)
end

function tests.test_V10_mistakes_are_one_error()
  local of, x = slow(), mh.zeros({12, 8}, kF64)
  local function try(options) return function() plan(mlp, x, options) end end
  refused({"no_such_machine"}, try{machine = "no_such_machine"})
  refused({"machine = ", "expected a file of moonhalo calibrate"}, try{machine = 7})
  refused({"unknown backend 'gloo'"}, try{machine = of, backend = "gloo"})
  refused({"measure = ", "expected an integer of at least 0"}, try{machine = of, measure = -1})
  refused({"most_rows = ", "expected an integer of at least 1"}, try{machine = of, most_rows = 0})
  refused({"policy 'autodist' has no option 'measures'", "measure"}, try{machine = of, measures = 1})
  refused({"policy 'autodist' has no option 'measure' without a machine", "add pas_config.machine"}, try{measure = 1})
  refused({"search: there is no division of " .. ranks .. " ranks"}, try{machine = of, most_data = 1,
    most_tensor = 1})
end

-- A cache outside of the fields of a module keeps a tensor of a dry run, which has no values. Rank 0 searches.
function tests.test_X14_a_tensor_that_a_dry_run_has_left_is_refused()
  local cache = {}
  local Scaled = nn.Module:extend("Scaled")
  function Scaled:init() self.inner = mlp() end
  function Scaled:forward(x)
    if x:is_shard_tensor() then cache.mask = cache.mask or mh.zeros({64, 64}, kF64) end
    return self.inner(x)
  end
  mh.parallelize(seeded(Scaled), {x = mh.zeros({12, 8}, kF64)}, "autodist",
    config_of(ranks, ranks, {pas_config = {machine = slow()}}))

  testing.assert_equal(cache.mask ~= nil, mh.rank() == 0)
  if mh.rank() > 0 then return end
  local function read() return cache.mask + 1 end
  local message = testing.assert_error(read, "a dry run of a search has made this tensor")
  testing.assert_equal(message:find("fix   empty its caches behind the search", 1, true) ~= nil, true)
end

-- An error in one candidate names it, and leaves the module as it was.
function tests.test_V10_a_failing_candidate_is_named()
  local Fails = nn.Module:extend("Fails")
  function Fails:init() self.inner = mlp() end
  function Fails:forward(x)
    if x:is_shard_tensor() and x.placements[#x.placements]:is_shard(0) then error("no cut samples here") end
    return self.inner(x)
  end
  local net = seeded(Fails)
  local before = plain(net.inner[0].weight):clone()
  local function failing(options)
    return function()
      mh.parallelize(net, {x = mh.zeros({12, 8}, kF64)}, "autodist", config_of(ranks, ranks, {pas_config = options}),
        {load_module = false})
    end
  end
  local of = slow()
  refused({"search: the dry run of 'data " .. ranks, "failed on rank 0 of " .. ranks, "no cut samples here"},
    failing{machine = of})
  testing.assert_equal({net.inner[0].weight:is_shard_tensor(), mh.world_size(), mh.backend() ~= "fake"},
    {false, ranks, true})
  testing.assert_equal(net.inner[0].weight:detach(), before)
  failing{machine = of, most_data = 1}()
end

return tests
