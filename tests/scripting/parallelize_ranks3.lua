-- SPDX-License-Identifier: Apache-2.0
-- Plans and styles on modules in Lua: what they place, and that a divided model computes what the whole one does. The
-- same file runs on 2, 3 and 4 ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local parallelize = require "moonhalo.internal.parallelize"
local own_path = require "support.own_path"
local nn, optim = mh.nn, mh.optim

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"tp"})
local kF64 = {dtype = "float64"}
local S, R, P = mh.Shard, mh.Replicate, mh.Partial
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end
local function where(x)
  if not x:is_shard_tensor() then return "plain" end
  local texts = {}
  for i, p in ipairs(x.placements) do
    texts[i] = p:is_shard() and ("S(%d)"):format(p.dim) or p:is_partial() and "P" or "R"
  end
  return table.concat(texts, " ")
end
local function calls(kind) return mh.comm_stats().by_kind[kind].calls end

local MLP = require "support.mlp"
local training_runs = require "support.training_runs"

local function mlp(hidden)
  mh.manual_seed(5)
  return MLP(6, hidden or 7):double()
end
local function mlp_plan(input)
  return {
    parameter = {["fc1.weight"] = {S(0)}, ["fc1.bias"] = {S(0)}, ["fc2.weight"] = {S(1)}, ["fc2.bias"] = {R()}},
    forward = {["fc1.input"] = {{input or R()}}, ["fc2.output"] = {{R()}}},
  }
end
local function styles(first, second)
  return {fc1 = mh.ColwiseParallel(first or {}), fc2 = mh.RowwiseParallel(second or {})}
end

local function batch(rows)
  mh.manual_seed(8)
  return mh.randn({rows or 5, 6}, kF64)
end

local function train(net, x, make, sync)
  return training_runs.three_steps(net, x, make(net:parameters()), function(y) return (y * y):sum() + y:sin():sum() end,
    sync and mh.finish_grad_sync)
end

local function adamw(p) return optim.AdamW(p, {lr = 0.05}) end
local function sgd(p) return optim.SGD(p, {lr = 0.01, momentum = 0.9, weight_decay = 0.1}) end

-- ---- The MLP --------------------------------------------------------------------------------------------------------

-- V03 V05 V06 V07 V19 V20 V21 P02 P05 P06: name, plan, hidden size, optimizer, explicit reduction of gradients
for _, case in ipairs {
  {"V21_plan", mlp_plan(), 7, adamw},
  {"V21_plan_more_ranks_than_hidden", mlp_plan(), 3, adamw},
  {"V11_explicit_sync", mlp_plan(), 10, adamw, true},
  {"V20_sgd_without_sync", mlp_plan(), 10, sgd},
  {"V19_sequence_input", mlp_plan(S(0)), 7, adamw},
  {"P05_P06_styles", styles(), 7, adamw},
  {"P08_styles_without_local_output", styles({use_local_output = false}, {use_local_output = false}), 7, adamw},
  {"P06_rows_out", styles({}, {output_layouts = S(0), use_local_output = false}), 7, adamw},
  {"replicated_only", {}, 7, adamw},
} do
  tests["test_" .. case[1]] = function()
    local expected = train(mlp(case[3]), batch(), case[4])

    local net = mlp(case[3])
    local returned = mh.parallelize_module(net, mesh, case[2])
    local actual = train(net, batch(), case[4], case[5])

    testing.assert_equal(rawequal(returned, net), true)  -- P03
    testing.assert_all_close(actual, expected)
  end
end

function tests.test_V02_V05_every_parameter_and_buffer_is_placed()
  local net = nn.Sequential(mlp(7), nn.BatchNorm1d(6))
  local names = {}
  mh.parallelize_module(net, mesh, {parameter = {["0.fc1.weight"] = {S(0)}, ["0.fc2.weight"] = S(1)}})
  for name, p in net:named_parameters() do names[name] = where(p) end
  for name, b in net:named_buffers() do names[name] = where(b) end

  testing.assert_equal(names, {["0.fc1.weight"] = "S(0)", ["0.fc1.bias"] = "R", ["0.fc2.weight"] = "S(1)",
    ["0.fc2.bias"] = "R",
    ["1.weight"] = "R", ["1.bias"] = "R", ["1.running_mean"] = "R", ["1.running_var"] = "R",
      ["1.num_batches_tracked"] = "R"})
  testing.assert_equal(net[0].fc1.weight:to_local().shape, {net[0].fc1.weight:shard_sizes(0)[mesh.rank + 1], 6})
  testing.assert_equal(net[0].fc1.weight.is_sharded, true)
end

function tests.test_V07_unlisted_parameters_stay_equal_on_all_ranks()
  local net = mh.parallelize_module(mlp(), mesh, mlp_plan(S(0)))
  train(net, batch(), adamw)

  local mine = net.fc2.bias:to_local():detach()
  local all = mh.from_local(mine:reshape{1, -1}, mesh, {S(0)}):full_tensor()

  testing.assert_equal(mh.equal(all:amax(0), all:amin(0)), true)
end

function tests.test_V11_no_gradient_is_partial_after_the_sync()
  local net = mh.parallelize_module(mlp(), mesh, mlp_plan(S(0)))
  net(batch()):sum():backward()
  local before = {}
  for name, p in net:named_parameters() do before[name] = where(p.grad) end
  local reduces = calls "all_reduce"
  mh.finish_grad_sync(net:parameters())

  local after = {}
  for name, p in net:named_parameters() do after[name] = where(p.grad) end
  testing.assert_equal(after, {["fc1.weight"] = "S(0)", ["fc1.bias"] = "S(0)", ["fc2.weight"] = "S(1)",
      ["fc2.bias"] = "R"})
  testing.assert_equal(calls "all_reduce" - reduces, 0)

  net = mh.parallelize_module(mlp(), mesh, {})  -- replicated weights, many cut rows: gradients are sums
  net(mh.distribute_tensor(batch(300), mesh, {S(0)})):sin():sum():backward()
  testing.assert_equal(where(net.fc1.weight.grad) .. where(net.fc2.weight.grad), "PP")
  reduces = calls "all_reduce" + calls "all_gather"
  mh.finish_grad_sync(net)
  for _, p in net:named_parameters() do testing.assert_equal(where(p.grad), "R") end
  -- all in one message; small ones as addends
  testing.assert_equal(calls "all_reduce" + calls "all_gather" - reduces, 1)
end

function tests.test_D09_a_pairwise_mlp_needs_one_all_reduce()
  for _, plan in ipairs {mlp_plan(), styles()} do
    local net = mh.parallelize_module(mlp(), mesh, plan)
    local x = batch()
    local before, reduces = mh.comm_stats().calls, calls "all_reduce"
    mh.no_grad(function() net(x) end)

    testing.assert_equal(calls "all_reduce" - reduces, 1)
    testing.assert_equal(mh.comm_stats().calls - before, 1)
  end
end

-- ---- Plans ----------------------------------------------------------------------------------------------------------

local Deep = nn.Module:extend("Deep")
function Deep:init()
  self.layers = nn.ModuleList(mlp(), mlp(), mlp())
  self.head = nn.Linear(6, 2):double()
end
function Deep:forward(x)
  for _, layer in self.layers:each() do x = x + layer(x) end
  return self.head(x)
end

local function placed(net)
  local found = {}
  for name, p in net:named_parameters() do found[#found + 1] = name .. " " .. where(p) end
  return table.concat(found, "\n")
end

function tests.test_V22_patterns_name_all_layers()
  local exact = {}
  for i = 0, 2 do exact[("layers.%d.fc1.weight"):format(i)] = {S(0)} end
  local expected = placed(mh.parallelize_module(Deep(), mesh, {parameter = exact}))

  testing.assert_equal(#expected > 0 and select(2, expected:gsub("S%(0%)", "")), 3)
  for _, pattern in ipairs {"layers.*.fc1.weight", "l*s.?.fc1.w*", "layers%.%d+%.fc1.weight",
      "layers\\.\\d+\\.fc1\\.weight"} do
    testing.assert_equal(placed(mh.parallelize_module(Deep(), mesh, {parameter = {[pattern] = {S(0)}}})), expected)
  end
end

function tests.test_the_exact_name_wins_over_a_pattern()
  local net = mh.parallelize_module(Deep(), mesh, {parameter = {["layers.*.fc1.weight"] = {S(0)},
      ["layers.1.fc1.weight"] = {S(1)}}})

  testing.assert_equal(where(net.layers[0].fc1.weight) .. where(net.layers[1].fc1.weight), "S(0)S(1)")
  testing.assert_error(function()
    mh.parallelize_module(Deep(), mesh, {parameter = {["layers.*.fc1.weight"] = {S(0)},
        ["layers.?.fc1.weight"] = {S(1)}}})
  end, "both match parameter 'layers.0.fc1.weight' and differ")
end

function tests.test_V09_json_and_lua_say_the_same()
  local path = own_path(("plan_%d.json"):format(mesh.rank))
  local tables = {mlp_plan(S(0)), styles({use_local_output = false}, {output_layouts = S(0)})}
  local texts = {
    [=[{"parameter": {"fc1.weight": ["S(0)"], "fc1.bias": "Shard(0)", "fc2.weight": ["S(1)"],
                     "fc2.bias": ["Replicate()"]},
       "forward": {"fc1.input": [["S(0)"]], "fc2.output": [["R"]]}}]=],
    [[{"fc1": {"style": "ColwiseParallel", "use_local_output": false}, // comments are fine
       "fc2": {"style": "RowwiseParallel", "output_layouts": "S(0)"}}]],
  }
  for i, text in ipairs(texts) do
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
    file:close()
    local plan = mh.plan.load(path)
    local one, other = mlp(), mlp()
    mh.parallelize_module(one, mesh, plan)
    mh.parallelize_module(other, mesh, tables[i])

    testing.assert_equal(placed(one), placed(other))
    testing.assert_close(plain(one(batch())), plain(other(batch())))
    testing.assert_equal(where(one(batch())), where(other(batch())))
    local again = mh.parallelize_module(mlp(), mesh, mh._plans.make_plan(tostring(plan)))
    testing.assert_equal(placed(again), placed(one))
  end
  os.remove(path)
end

-- Every wrong plan, and the first line it is answered with.
local kWrong = {
  {"P13_number", 3, "parallelize_module: Expect ParallelStyle or table {name = ParallelStyle} for the plan, found 3"},
  {"P13_number_for_a_name", {fc1 = 3}, "Expect ParallelStyle or table for 'fc1' of the plan, found 3"},
  {"nothing", nil, "found nil"},
  {"V09_unknown_key", {paramter = {["fc1.weight"] = {S(0)}}}, "unknown key 'paramter'; did you mean 'parameter'?"},
  {"V22_unmatched_parameter", {parameter = {["fc1.wieght"] = {S(0)}}},
    "'fc1.wieght' matches no parameter; did you mean 'fc1.weight' or 'fc2.weight'?"},
  {"unmatched_module", {fc3 = mh.ColwiseParallel()}, "'fc3' matches no module; did you mean"},
  {"unmatched_regex", {["fc-%d"] = mh.ColwiseParallel()}, "'fc-%d' matches no module; did you mean 'fc1' or 'fc2'?"},
  {"unmatched_regex_read", {["fc-%d"] = mh.ColwiseParallel()},
    "'fc-%d' is a regular expression of a whole name, where - is a dash: * repeats"},
  {"unmatched_regex_fix", {["fc-%d"] = mh.ColwiseParallel()}, "fix   correct the name: \"fc*%d\" fits 'fc1'"},
  {"unmatched_plus_fix", {["fc+1"] = mh.ColwiseParallel()}, "fix   correct the name: \"fc%d+\" fits 'fc1'"},
  {"unmatched_forward", {forward = {["fc9.input"] = {{R()}}}}, "'fc9' matches no module"},
  {"forward_side", {forward = {["fc1.inptu"] = {{R()}}}},
  "the name ends neither in .input nor in .output; did you mean 'input'?"},
  {"dim", {parameter = {["fc1.bias"] = {S(1)}}}, "'fc1.bias' cannot be Shard(1), its shape is [7]"},
  {"partial", {parameter = {["fc1.bias"] = {P()}}}, "'fc1.bias' cannot be Partial(sum)"},
  {"two_placements", {parameter = {["fc1.bias"] = {R(), R()}}}, "'fc1.bias' has 2 placements"},
  {"placement_text", {parameter = {["fc1.bias"] = "T(0)"}}, "plan.parameter[\"fc1.bias\"]: 'T(0)' is not a placement"},
  {"layouts", {fc1 = mh.ColwiseParallel{input_layouts = 3}},
  "Expect a placement or a list of placements, found number"},
  {"P14_whole_module", {[""] = mh.ColwiseParallel()},
  "ColwiseParallel splits Linear and Embedding, not the root, a MLP, as a whole"},
  {"V23_unknown_argument", {forward = {input = {mask = {R()}}}}, "'input' names 'mask', forward has no such argument"},
  {"prepare_lengths", {fc1 = mh.PrepareModuleInput{input_layouts = {R(), R()}, desired_input_layouts = R()}},
    "has 2 input_layouts and 1 desired_input_layouts"},
}
for _, case in ipairs(kWrong) do
  tests["test_refused_" .. case[1]] = function()
    local net = mlp()
    testing.assert_error(function() mh.parallelize_module(net, mesh, case[2]) end, case[3])
    testing.assert_equal(where(net.fc1.weight), "plain")
  end
end

function tests.test_options_and_styles_refuse_unknown_names()
  testing.assert_error(function() mh.parallelize_module(mlp(), mesh, {}, {src_rank = 1}) end,
      "unknown option 'src_rank'")
  testing.assert_error(function() mh.ColwiseParallel{output_layout = R()} end,
      "unknown option 'output_layout'; did you mean 'output_layouts'")
  testing.assert_error(function() mh.parallelize_module(mlp(), mesh, {}, {unmatched = "wran"}) end,
      "unmatched is 'wran'")
end

local function warnings_of(fn)
  local texts, before = {}, parallelize.warn
  parallelize.warn = function(text) texts[#texts + 1] = text end
  local done, problem = pcall(fn)
  parallelize.warn = before
  if not done then error(problem, 0) end
  return texts
end

function tests.test_V27_a_second_call_warns_and_changes_nothing()
  local net = mh.parallelize_module(mlp(), mesh, mlp_plan())
  local weight, expected = net.fc1.weight, net(batch())
  local texts = warnings_of(function() mh.parallelize_module(net, mesh, styles()) end)

  testing.assert_equal(#texts, mesh.rank == 0 and 1 or 0)
  if texts[1] then testing.assert_equal(texts[1]:find("was parallelized before", 1, true) ~= nil, true) end
  testing.assert_equal(rawequal(net.fc1.weight, weight), true)
  testing.assert_close(plain(net(batch())), plain(expected))
end

function tests.test_P11_tp_mesh_dim_is_deprecated()
  local texts = warnings_of(function() mh.parallelize_module(mlp(), mesh, styles(), {tp_mesh_dim = 0}) end)
  testing.assert_equal(#texts, mesh.rank == 0 and 1 or 0)
end

function tests.test_parameters_come_from_the_source_rank_or_from_each()
  for _, src in ipairs {0, mh.world_size() - 1} do
    mh.manual_seed(100 + mesh.rank)
    local net = MLP(6, 7)
    local mine = net.fc1.weight:detach():clone()
    mh.parallelize_module(net, mesh, styles(), {src_data_rank = src})
    local full = net.fc1.weight:detach():full_tensor()
    testing.assert_equal(mh.equal(full, mine), mesh.rank == src)
  end
  local net = mlp()
  local whole, before = net.fc1.weight:detach():clone(), mh.comm_stats().bytes
  mh.parallelize_module(net, mesh, styles(), {src_data_rank = false})
  testing.assert_equal(mh.comm_stats().bytes - before, 0)
  testing.assert_equal(mh.equal(net.fc1.weight:detach():full_tensor(), whole), true)
end

function tests.test_a_shared_module_has_two_names()
  mh.manual_seed(8)
  local x = mh.randn({3, 4}, kF64)
  local layer = nn.Linear(4, 4):double()
  local net = nn.Sequential(layer, nn.Tanh(), layer)
  local expected = net(x)
  mh.parallelize_module(net, mesh, {parameter = {["2.weight"] = {S(1)}}, forward = {["2.input"] = {{R()}}}})
  testing.assert_equal(where(net[0].weight), "S(1)")
  testing.assert_equal(rawequal(net[0].weight, net[2].weight), true)
  testing.assert_equal(#net:parameters(), 2)
  testing.assert_equal(#layer._pre_hooks, 1)
  testing.assert_close(plain(net(x)), expected)
  testing.assert_error(function()
    local one = nn.Linear(4, 4)
    mh.parallelize_module(nn.Sequential(one, one), mesh, {forward = {["0.input"] = {{R()}}, ["1.input"] = {{S(0)}}}})
  end, "'0' and '1' are one module, and the plan moves their arguments differently")
end

function tests.test_shared_parameters_stay_shared()
  local net = mlp(6)
  net.fc2.weight = net.fc1.weight
  net.fc1.bias:requires_grad_(false)
  net(mh.ones({2, 6}, {dtype = net.fc1.weight.dtype})):sum():backward()
  local gradient = net.fc1.weight.grad
  mh.parallelize_module(net, mesh, {parameter = {["fc2.weight"] = {S(1)}}})

  testing.assert_equal(rawequal(net.fc1.weight, net.fc2.weight), true)
  testing.assert_close(net.fc1.weight.grad:full_tensor(), gradient)
  testing.assert_equal(net.fc1.bias.grad, nil)
  testing.assert_equal(#net:parameters(), 3)
  testing.assert_equal(where(net.fc1.weight) .. tostring(net.fc1.bias.requires_grad), "S(1)false")
  net = mlp(6)
  net.fc2.weight = net.fc1.weight
  testing.assert_error(function()
    mh.parallelize_module(net, mesh, {parameter = {["fc1.weight"] = {S(0)}, ["fc2.weight"] = {S(1)}}})
  end, "is shared with another module, whose entry in the plan differs")
end

-- ---- Styles ---------------------------------------------------------------------------------------------------------

function tests.test_P05_P08_outputs_are_local_unless_told_otherwise()
  local x = batch()
  for _, case in ipairs {{true, "plain"}, {false, "S(1)"}} do
    local fc = mh.parallelize_module(mlp().fc1, mesh, mh.ColwiseParallel{use_local_output = case[1]})
    local y = fc(x)
    testing.assert_equal(where(y), case[2])
    testing.assert_equal(y.shape, {5, case[1] and fc.weight:shard_sizes(0)[mesh.rank + 1] or 7})
  end
  testing.assert_equal(where(mh.parallelize_module(mlp().fc1, mesh, mh.ColwiseParallel())(x)), "plain")
end

function tests.test_P09_styles_share_no_state()
  local one, other = mh.RowwiseParallel(), mh.RowwiseParallel()
  one.output_layouts = S(0)
  testing.assert_equal(other.output_layouts == nil and mh.RowwiseParallel().output_layouts == nil, true)
  testing.assert_equal(tostring(one) .. tostring(other), "RowwiseParallel(output_layouts = Shard(0))RowwiseParallel()")
end

function tests.test_P05_P06_embeddings()
  local words = mh.tensor({{0, 3, 8}, {8, 1, 3}}, {dtype = "int64"})
  local function table_of() mh.manual_seed(6); return nn.Embedding(9, 5):double() end
  local function outcome(net)
    local y = plain(net(words))
    y:sin():sum():backward()
    return {y = y:detach(), gradient = plain(net.weight.grad)}
  end
  local expected = outcome(table_of())
  for _, style in ipairs {mh.ColwiseParallel{output_layouts = R()}, mh.RowwiseParallel{input_layouts = R()},
    mh.ColwiseParallel{use_local_output = false}, mh.RowwiseParallel{input_layouts = R(), output_layouts = S(1),
      use_local_output = false}} do
    local net = mh.parallelize_module(table_of(), mesh, style)
    testing.assert_equal(where(net.weight), tostring(style):find("Colwise") and "S(1)" or "S(0)")
    testing.assert_all_close(outcome(net), expected)
  end
end

function tests.test_P04_a_style_written_in_lua()
  local seen = {}
  local Halves = {}
  Halves.__index = Halves
  function Halves:apply(module, on)
    seen[#seen + 1] = module:class_name() .. self.mark
    module.weight = nn.Parameter(mh.distribute_tensor(module.weight:detach(), on, {S(1)}))
  end
  local net = mh.parallelize_module(mlp(), mesh, {["fc*"] = setmetatable({mark = "!"}, Halves)})

  testing.assert_equal(seen, {"Linear!", "Linear!"})
  testing.assert_equal(where(net.fc1.weight) .. where(net.fc1.bias) .. where(net.fc2.weight), "S(1)RS(1)")
  testing.assert_close(plain(net(batch())), mlp()(batch()))
  testing.assert_error(function() mh.plan.new{["fc*"] = Halves} end, "a style that is written in Lua")
end

function tests.test_P07_a_prepared_input_is_resharded_once()
  local net = mh.parallelize_module(mlp(), mesh, {fc1 = mh.PrepareModuleInput{input_layouts = S(0),
    desired_input_layouts = R()},
    fc2 = mh.PrepareModuleOutput{output_layouts = R(), desired_output_layouts = S(0), use_local_output = false}})
  local x = mh.distribute_tensor(batch(9), mesh, {S(0)})
  local before = mh.comm_stats().messages
  local y = mh.no_grad(function() return net(x) end)

  testing.assert_equal(mh.comm_stats().messages - before, mh.world_size() - 1)
  testing.assert_equal(where(y), "S(0)")
  testing.assert_close(plain(y), mlp()(batch(9)))

  local rows = mh.from_local(x:to_local(), mesh, {S(0)}):shard_sizes(0)
  testing.assert_close(plain(net(x:to_local())), mlp()(batch(9)))  -- a plain block is what input_layouts says
  testing.assert_equal(#rows, mh.world_size())
end

local Named = nn.Module:extend("Named")
function Named:forward(a, b, options) return a * 2, options and options.scale and b * options.scale or b end

-- V23: by order and by name; nil leaves alone.
function tests.test_V23_arguments_by_order_and_by_name()
  local x = batch()
  for _, forward in ipairs {{input = {{S(0)}, nil}, output = {nil, {S(1)}}},
    {input = {a = {S(0)}}, output = {nil, {S(1)}}}, {input = {{S(0)}, scale = {R()}}, output = {nil, {S(1)}}}} do
    local net = mh.parallelize_module(Named(), mesh, {forward = forward})
    local a, b = net(x, x, {scale = mh.ones({6}, kF64)})

    testing.assert_equal(where(a), "S(0)")
    testing.assert_equal(where(b), "S(1)")
    testing.assert_close(plain(a), x * 2)
    local _, untouched = net(x)
    testing.assert_equal(untouched, nil)
  end
  testing.assert_equal(where((mh.parallelize_module(Named(), mesh, {forward = {input = {nil, {R()}}}})(x, x))), "plain")
  testing.assert_error(function()
    mh.parallelize_module(mlp(), mesh, {forward = {["fc1.input"] = {{R()}, {R()}}}})(x)
  end, "'fc1.input' lists 2 arguments, the call has 1")
end

local Attention = nn.Module:extend("Attention")
function Attention:init(width, heads)
  self.head_dim = width // heads
  self.q = nn.Linear(width, width)
  self.k = nn.Linear(width, width)
  self.v = nn.Linear(width, width)
  self.out = nn.Linear(width, width)
end
function Attention:forward(x)
  local function heads(y) return y:unflatten(-1, {-1, self.head_dim}):transpose(1, 2) end
  local q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
  local scores = (q:matmul(k:transpose(-2, -1)) / math.sqrt(self.head_dim)):softmax(-1)
  return self.out(scores:matmul(v):transpose(1, 2):flatten(-2))
end

local Block = nn.Module:extend("Block")
function Block:init()
  self.norm = nn.LayerNorm(12)
  self.attention = Attention(12, 12)
  self.mlp = MLP(12, 7)
end
function Block:forward(x)
  x = x + self.attention(self.norm(x))
  return x + self.mlp(x)
end
local function block()
  mh.manual_seed(12)
  return Block():double()
end

-- P14, V18: attention by its parts; the norm on a cut sequence.
function tests.test_P14_V18_a_transformer_block_by_its_parts()
  mh.manual_seed(13)
  local x = mh.randn({2, 8, 12}, kF64)
  -- Not AdamW: scores do not depend on k's bias, and it would divide rounding errors by themselves.
  local expected = train(block(), x, sgd)
  local colwise, rows = mh.ColwiseParallel(), {output_layouts = S(1), use_local_output = false}
  local tensor_parallel = {["attention.?"] = colwise, ["attention.out"] = mh.RowwiseParallel(), ["mlp.fc1"] = colwise,
    ["mlp.fc2"] = mh.RowwiseParallel()}
  local sequence_parallel = {[""] = mh.PrepareModuleInput{input_layouts = R(), desired_input_layouts = S(1)},
    norm = mh.SequenceParallel(), ["attention.?"] = mh.ColwiseParallel{input_layouts = S(1)},
    ["attention.out"] = mh.RowwiseParallel(rows), ["mlp.fc1"] = mh.ColwiseParallel{input_layouts = S(1)},
    ["mlp.fc2"] = mh.RowwiseParallel(rows)}
  for _, plan in ipairs {tensor_parallel, sequence_parallel} do
    testing.assert_all_close(train(mh.parallelize_module(block(), mesh, plan), x, sgd), expected)
  end
  testing.assert_error(function()
    mh.parallelize_module(nn.Sequential(nn.MultiheadAttention(12, 3)), mesh, {["0"] = mh.ColwiseParallel()})
  end, "ColwiseParallel splits Linear and Embedding, not '0', a MultiheadAttention, as a whole")
end

-- ---- distribute_module ----------------------------------------------------------------------------------------------

function tests.test_D07_distribute_module()
  local whole = mh.distribute_module(mlp(), mesh)
  testing.assert_equal(placed(whole), "fc1.weight R\nfc1.bias R\nfc2.weight R\nfc2.bias R")
  local visited = {}
  local net = mh.distribute_module(mlp(), mesh, function(name, module, on)
    visited[#visited + 1] = name
    if name == "fc1" then module.weight = nn.Parameter(mh.distribute_tensor(module.weight:detach(), on, {S(0)})) end
  end, function(_, args, on) return {mh.distribute_tensor(args[1], on, {S(0)})} end,
      function(_, y) return y:full_tensor() end)

  testing.assert_equal(visited, {"", "fc1", "fc2"})
  testing.assert_equal(placed(net), "fc1.weight S(0)\nfc1.bias R\nfc2.weight R\nfc2.bias R")
  testing.assert_close(net(batch()), mlp()(batch()))
end

return tests
