-- SPDX-License-Identifier: Apache-2.0
-- What modules of TorchScript files (Y01) and torch.export (Y02) do beside training, on any number of ranks; models
-- that go to Python (Y04), which read_models.py reads.
-- usage: script_features.lua -- FOLDER
--        script_features.lua -- FOLDER damaged COUNT: files that damage_models.py wrote are read, or are one error
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local folder, mode = arg[1], arg[2]
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"ranks"})

local function load(name) return mh.jit.load(("%s/%s.pt"):format(folder, name)) end
local function whole(x) return x:is_shard_tensor() and x:full_tensor() or x end
local function rows(x) return mh.distribute_tensor(x, mesh, {mh.Shard(2)}) end
local function field() return load("unet.reference"):get_buffer("x") end
local checks = {}

function checks.tensor_parallel_plan_calls_the_modules_of_the_program()
  local x = field()
  local function outcome(net)
    local y = net(x)
    y:square():sum():backward()
    local grads = {}
    for name, parameter in net:named_parameters() do grads[name] = whole(parameter.grad) end
    return whole(y:detach()), grads
  end
  local y, grads = outcome(load "mlp.script")
  local net = mh.parallelize_module(load "mlp.script", mesh, {fc1 = mh.ColwiseParallel(), fc2 = mh.RowwiseParallel()})
  assert(net.fc1.weight.placements[1]:is_shard(), "fc1 is not divided")
  local divided_y, divided_grads = outcome(net)
  testing.assert_close(divided_y, y)
  for name, grad in pairs(grads) do testing.assert_close(divided_grads[name], grad) end
end

function checks.hooks_and_patches_of_children_run()
  local net, seen = load "control.script", {}
  net.conv:register_forward_hook(function(module) seen[#seen + 1] = module:class_name() end)
  local y = net(rows(field()))
  assert(table.concat(seen, " ") == "Conv2d Conv2d", table.concat(seen, " "))
  local patch = mh.patch(net, {out = function(self, forward, ...) return forward(self, ...) * 3 end})
  testing.assert_close(whole(net(rows(field()))), whole(y) * 3)
  patch.remove()
  testing.assert_close(whole(net(rows(field()))), whole(y))
end

function checks.names_are_those_of_python()
  local net = load "vit.script"
  assert(net:get_submodule("mlp.2"):class_name() == "Linear" and net.mlp[3] == net:get_submodule("mlp.2")
      and #net.mlp == 3)
  assert(net:get_parameter("attention.qkv.weight").shape[1] == 24)
  local control, count = load "control.script", 0
  for _ in control:named_parameters() do count = count + 1 end
  assert(count == 4, "parameters under two names are named once")
  local _, records = mh.op_trace(function() return net(rows(field())) end)
  local modules = {}
  for _, record in ipairs(records) do modules[record.module or ""] = true end
  assert(modules["attention.qkv"] and modules["mlp.0"] and modules.patches, "operators do not name their modules")
end

--- An operator belongs to the innermost module that TorchScript calls, or that torch.export has written down.
function checks.traces_name_the_module_of_each_operator()
  local function modules_of(net, x)
    local _, records = mh.op_trace(function() net(x) end)
    local seen = {}
    for _, record in ipairs(records) do
      local name = record.module == "" and "(root)" or record.module
      if seen[#seen] ~= name then seen[#seen + 1] = name end
    end
    return table.concat(seen, " ")
  end
  local x = rows(field())
  for name, expected in pairs {
    unet = "a n1 (root) down n2 (root) mid (root) up (root) out",
    mlp = "(root) fc1 (root) fc2 (root)",
  } do
    for _, net in ipairs {load(name .. ".script"), mh.export.load(("%s/%s.dynamic.pt2"):format(folder, name))} do
      testing.assert_equal(modules_of(net, x), expected)
      local inside = ("1." .. expected):gsub(" ", " 1."):gsub("%d%.%(root%)", "1")
      testing.assert_equal(modules_of(mh.nn.Sequential(mh.nn.Identity(), net), x), inside)
    end
  end
  local vit = modules_of(mh.export.load(folder .. "/vit.dynamic.pt2"), x)
  assert(vit:find("attention.norm attention.qkv attention attention.out attention", 1, true), vit)
end

function checks.buffers_follow_the_program()
  local net = load "counted.script"
  local before = net.steps:clone()
  net(rows(field()))
  net(rows(field()))
  testing.assert_close(whole(net.steps), before + 2)
  net:eval()
  net(rows(field()))
  testing.assert_close(whole(net:state_dict().steps), before + 2)
  net:load_state_dict(load("counted.script"):state_dict())
  testing.assert_close(whole(net.steps), before)
  net:train()(rows(field()))
  testing.assert_close(whole(net.steps), before + 1)
end

function checks.averages_and_dtypes()
  local net = load "mlp.script"
  local ema = mh.EMA(net, {decay = 0.5})
  mh.no_grad(function()
    for _, parameter in net:named_parameters() do parameter:add_(1) end
  end)
  ema:update()
  net:float()
  assert(net(field():float()).dtype == "float32" and net.fc1.weight.dtype == "float32")
end

function checks.tuples_dicts_names_and_methods()
  local several, x = load "several", mh.arange(6):double():view(1, 6)
  for _, input in ipairs {x, mh.distribute_tensor(x, mesh, {mh.Shard(1)})} do
    local sum, fields = several({u = input, v = input}, {input, 3}, {scale = 2.0})
    testing.assert_close(whole(sum), x * 5)
    testing.assert_close(whole(fields.v), x + 1)
    testing.assert_close(whole(fields.y), x:view(6) * 15)
    testing.assert_close(whole(several:call_method("twice", input)[2]), x * 2)
  end
end

local check_error

function checks.modules_of_a_program_are_stages()
  local stages = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"pp"})
  local x, samples, losses = mh.linspace(-1, 1, 48):double():view(6, 8), {}, {}
  local plain, pipe = load("vit.script").mlp, mh.pipeline(load("vit.script").mlp, {mesh = stages, micros = 2})
  local function loss_of(y) return y:square():mean() end
  for i = 1, 2 do
    samples[i] = {x:narrow(0, 3 * i - 3, 3)}
    losses[i] = loss_of(plain(samples[i][1]))
  end
  losses[1]:add(losses[2]):backward()
  local found, mine = pipe:train_step(samples, loss_of), 0
  for i = 1, 2 do testing.assert_close(whole(found[i]), losses[i]:detach()) end
  for name, parameter in pipe:named_parameters() do
    if parameter.grad then
      mine = mine + 1
      testing.assert_close(whole(parameter.grad), plain:get_parameter(name).grad)
    end
  end
  assert(mine == (mh.rank() == 1 and mh.world_size() == 3 and 0 or mh.world_size() == 1 and 4 or 2), mine)
  local exported = mh.export.load(folder .. "/mlp.static.pt2")
  check_error("give it a method stages()", mh.pipeline, exported, {mesh = stages, micros = 2})
  check_error("modules of an exported program are not called one by one, as a pipeline does\nmh.jit.load", exported.fc1,
    x)
end

function checks.policies_divide_a_program()
  local config = mh.ComputeConfig{plan_ngpus = mh.world_size(), runtime_ngpus = mh.world_size()}
  local x, plain = field(), load "mlp.script"
  local y = plain(x)
  y:square():sum():backward()
  for _, policy in ipairs {"tp", "data"} do
    local net = mh.parallelize(load "mlp.script", {x = x}, policy, config)
    local divided = net(mh.constant(x))
    testing.assert_close(whole(divided), y)
    divided:square():sum():backward()
    for name, parameter in net:named_parameters() do
      testing.assert_close(whole(parameter.grad), plain:get_parameter(name).grad)
    end
  end
  check_error("the dummy argument 'x' is missing", mh.parallelize, load "mlp.script", {}, "tp", config)
  check_error("keeps the mode in which Python exported it\nmh.jit.load", mh.parallelize,
    mh.export.load(folder .. "/mlp.static.pt2"), {x = x}, "tp", config)
end

function checks.models_go_to_python()
  local nn = mh.nn
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.conv = nn.Conv2d(2, 3, 3, {padding = 1})
    self.blocks = nn.Sequential(nn.Conv2d(3, 3, 1), nn.GELU(), nn.Conv2d(3, 2, 1))
    self.norm = nn.BatchNorm2d(2)
    self.still = nn.Parameter(mh.ones(2, 1, 1), false)
  end
  function Net:forward(x)
    local h = self.conv(x)
    return self.norm(self.blocks(h * h:sigmoid())) * self.still + x
  end
  mh.manual_seed(6)
  local net, x, other = Net():double():eval(), mh.randn(1, 2, 9, 8):double(), mh.randn(2, 2, 9, 8):double()
  local traced = mh.jit.trace(net, {x})
  testing.assert_close(traced(other), net(other))
  testing.assert_close(traced.conv.weight, net.conv.weight)
  traced:save(folder .. "/lua.pt")
  local tuned = load "control.script"
  mh.fully_shard(tuned, {mesh = mesh, min_numel = 1, input = false})
  local optimizer = mh.optim.SGD(tuned:parameters(), {lr = 0.1})
  tuned(rows(field())):square():mean():backward()
  optimizer:step()
  tuned:save(folder .. "/tuned.pt")
  local Results = nn.Module:extend("Results")
  function Results:forward(value) return value * 1 end
  local results = Results()
  local kept = {x = x, y = net(x), other_x = other, other_y = net(other), tuned_y = whole(tuned(x))}
  for name, tensor in pairs(kept) do results:register_buffer(name, tensor:detach()) end
  mh.jit.trace(results:eval(), {x}):save(folder .. "/lua_results.pt")
  testing.assert_close(whole(tuned(rows(x))), kept.tuned_y)
  -- Its file in Lua again, with the blocks put together.
  testing.assert_close(mh.jit.load(folder .. "/tuned.pt")(x), kept.tuned_y)
end

function checks.models_that_cannot_go_to_python()
  local nn, x = mh.nn, mh.ones(1, 2, 4, 4)
  check_error("the module is in training mode\nnet:eval()", mh.jit.trace, nn.Conv2d(2, 2, 1), {x})
  local net = mh.parallelize_module(nn.Conv2d(2, 2, 1):eval(), mesh, {})
  check_error("'weight' is a ShardTensor\nbefore it is divided", mh.jit.trace, net, {x})
  local Branch = nn.Module:extend("Branch")
  function Branch:forward(value)
    if value:sum():item() > 31 then return value * 2 end
    return value
  end
  check_error("result 1 of the traced model differs", mh.jit.trace, Branch():eval(), {x})
  check_error("cannot be written", function() load("mlp.script"):save("/nowhere/net.pt") end)
  check_error("jit.trace: 'inputs' is missing", mh.jit.trace, Branch():eval())
end

local function reference(name)
  local kept = {}
  for key, tensor in load(name .. ".reference"):named_buffers() do kept[key] = tensor end
  return kept
end
local function exported_inputs(number) return reference("exported" .. number) end

local function check_arguments_and_buffers(net, from)
  for number = 0, 1 do
    local kept = reference((from or "") .. "exported" .. number)
    for _, place in ipairs {function(x) return x end, function(x) return mh.distribute_tensor(x, mesh,
        {mh.Shard(0)}) end} do
      local u, v, calls = place(kept.u), place(kept.v), whole(net.calls:clone())
      local y, rest = net({u = u, v = v}, {u, v}, 3.0, {shift = mh.ones(6):double()})
      testing.assert_close(whole(y), kept.y)
      testing.assert_close(whole(rest.v), kept.rest_v)
      testing.assert_close(whole(rest.list[2]), kept.second)
      testing.assert_close(whole(net.calls), calls + 1)
    end
  end
  assert(net:state_dict().calls and not net:state_dict().scratch and net.fc:class_name() == "Linear")
end

function checks.exported_arguments_branches_and_buffers()
  check_arguments_and_buffers(mh.export.load(folder .. "/exported.pt2"))
end

function checks.exported_by_a_later_pytorch()
  check_arguments_and_buffers(mh.export.load(folder .. "/newer_minor.pt2"))
  check_error("newer_major.pt2': the program has another schema of torch.export\n9.1, and 8.x is read\nfix",
    mh.export.load, folder .. "/newer_major.pt2")
end

--- control has one convolution under two names.
function checks.deferred_models_have_the_values_of_the_file()
  for _, name in ipairs {"control", "unet", "vit"} do
    local kept = reference(name)
    for _, way in ipairs {function() return load(name .. ".script") end,
        function() return mh.export.load(("%s/%s.dynamic.pt2"):format(folder, name)) end} do
      local net, deferred = mh.deferred_init(way, {min_numel = 16}), 0
      for _, parameter in net:named_parameters() do deferred = deferred + (parameter:is_deferred() and 1 or 0) end
      assert(deferred > 1, name .. ": parameters are deferred")
      mh.fully_shard(net, {mesh = mesh, min_numel = 1, input = false})
      testing.assert_close(whole(mh.materialize_module(net)(rows(kept.x))), kept.y)
      local plain = mh.materialize_module(mh.deferred_init(way, {min_numel = 16}))
      testing.assert_close(plain(kept.x), kept.y)
    end
  end
end

function checks.lists_of_parameters_follow_the_parameters()
  local x = mh.linspace(-1, 1, 36):double():view(2, 3, 6)
  local function way() return load "recurrent" end
  local function after_a_step(net, input)
    local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
    net(input):square():sum():backward()
    optimizer:step()
    return whole(net(input):detach())
  end
  local before, expected = way()(x):detach(), after_a_step(way(), x)
  assert((expected - before):abs():max():item() > 1e-3, "the step changes nothing")
  testing.assert_close(after_a_step(mh.materialize_module(mh.deferred_init(way, {min_numel = 1})), x), expected)
  local stored = way()
  mh.fully_shard(stored, {mesh = mesh, min_numel = 1, input = false})
  testing.assert_close(after_a_step(stored, mh.distribute_tensor(x, mesh, {mh.Replicate()})), expected)
end

-- Files that a later PyTorch has written (programs/README.md).
function checks.programs_of_the_newest_pytorch()
  check_arguments_and_buffers(mh.export.load(folder .. "/newest/exported.pt2"), "newest/")
  local net, kept = mh.export.load(folder .. "/newest/control.pt2"), reference "newest/control"
  for given, expected in pairs {x = "y", other = "other_y"} do
    testing.assert_close(net(kept[given]), kept[expected])
    testing.assert_close(whole(net(rows(kept[given]))), kept[expected])
  end
end

function checks.exported_shapes_and_errors()
  local net, kept = mh.export.load(folder .. "/exported.pt2"), exported_inputs(0)
  local function call(u, v, scale) return net({u = u, v = v}, {u, v}, scale or 3.0, {shift = mh.ones(6):double()}) end
  check_error("'fields_u' has 65 in dim 0\n2 to 64\ndynamic_shapes", call, mh.zeros(65, 6):double(),
      mh.zeros(65, 6):double())
  check_error("'fields_u' has 7 in dim 1, the program was exported for 6", call, mh.zeros(5, 7):double(), kept.v)
  check_error("'fields_v' has 5 in dim 0, which must be 4 as another dim", call, mh.zeros(4, 6):double(), kept.v)
  check_error("'scale' is 2., the program was exported for 3. alone", call, kept.u, kept.v, 2.0)
  check_error("takes 3 arguments and a table of shift, got 1", net, kept.u)
  check_error("'fields' is a dict of 2, got", net, kept.u, {kept.u, kept.v}, 3.0, {shift = kept.u})
  check_error("keeps the mode", net.eval, net)
  check_error("does not call its modules", net.fc.register_forward_hook, net.fc, print)
  check_error("the higher-order operator 'map_impl' is not done", mh.export.load, folder .. "/scanned.pt2")
  check_error("state.pt' holds no program that can be read\ntorch.export.save", mh.export.load, folder .. "/state.pt")
  check_error("export.load: no file", mh.export.load, folder .. "/none.pt2")
  local unet = mh.export.load(folder .. "/unet.static.pt2")
  unet.a.weight = mh.nn.Parameter(mh.zeros(4, 3, 3, 3):double())
  check_error("channels\nmodule a\nself.a(x)", unet, rows(field()))
  -- Another size than that of the example.
  local script, dynamic = load "control.script", mh.export.load(folder .. "/control.dynamic.pt2")
  local x = mh.randn(3, 2, 17, 20):double()
  testing.assert_close(whole(dynamic(rows(x))), script(x))
end

function checks.decomposed_programs_write_their_buffers()
  local net, script = mh.export.load(folder .. "/decomposed.pt2"), load "unet.script"
  script:load_state_dict(net:state_dict())
  script:train()
  local y = script(field())
  testing.assert_close(whole(net(rows(field()))), y)
  for name, buffer in script:named_buffers() do testing.assert_close(whole(net:get_buffer(name)), buffer) end
end

function check_error(expected, fn, ...)
  local done, problem = pcall(fn, ...)
  assert(not done, "no error: " .. expected)
  local at = 1
  for line in expected:gmatch "[^\n]+" do
    local found = problem:find(line, at, true)
    if not found then error(("expected %s\ngot %s"):format(expected, problem), 0) end
    at = found
  end
end

function checks.errors_name_the_line_of_the_model()
  local x, several = mh.arange(12):double():view(2, 6), load "several"
  for _, input in ipairs {x, mh.distribute_tensor(x, mesh, {mh.Shard(1)})} do
    check_error("script_features.lua\nmake_models.py:\nx.view(7, 77)\nin    inner (Inner) of Several", several,
      {u = input, v = input}, {input, 3})
  end
  check_error("channels\nnn/modules/conv.py\nin    a (Conv2d) of UNet\nmake_models.py:\nself.n1(self.a(x))",
    load "unet.script", rows(mh.zeros(2, 3, 8, 8):double()))
  check_error("'fields', entry 'v' must be Tensor, got 3", several, {u = x, v = 3}, {x, 3})
  check_error("Several:forward takes 3 arguments, got 4", several, {u = x, v = x}, {x, 3}, 1.0, 5)
  check_error("no method 'thrice'; did you mean 'twice'?", several.call_method, several, "thrice")
  check_error("forked.pt' starts threads of its own (prim::fork)", load, "forked")
  check_error("later.pt' has a program that LibTorch\ncannot compile\naten::tanh_of_later\ntorch.export", load, "later")
  check_error("state.pt' holds no TorchScript module\ntorch.jit.script(net).save(path)", load, "state")
  check_error("jit.load: no file", load, "none")
  check_error("'fc1' is part of the TorchScript program\nmh.patch",
      function() load("mlp.script").fc1 = mh.nn.Linear(2, 9) end)
  local net = load "unet.script"
  net.mid:register_forward_hook(function() error("from a hook") end)
  check_error("from a hook\nin    mid (Conv2d) of UNet\nmake_models.py:\nself.mid(b)", net, rows(field()))
end

local kCertain = 17  -- as damage_models.py writes first: none is a program

local function read_damaged_files(count)
  local errors = 0
  for number = 0, count - 1 do
    local path = ("%s/damaged/%d.pt2"):format(folder, number)
    local read, problem = pcall(mh.export.load, path)
    assert(not read or number >= kCertain, path .. " is read")
    if not read then
      errors = errors + 1
      assert(problem:find(path, 1, true), number .. ": an error without the file's name: " .. problem)
    end
  end
  assert(errors > count // 3, "most damaged files are read")
  print(("%d of %d files are errors"):format(errors, count))
end

if mode == "damaged" then return read_damaged_files(math.tointeger(arg[3])) end
local names = {}
for name in pairs(checks) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  local done, problem = pcall(checks[name])
  if not done then error(name .. ": " .. tostring(problem), 0) end
end
if mh.rank() == 0 then print(#names .. " checks") end
