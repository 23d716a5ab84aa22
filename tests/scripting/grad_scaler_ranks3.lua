-- SPDX-License-Identifier: Apache-2.0
-- Y16: mh.GradScaler has PyTorch's history of scales (support/grad_scaler_history.lua); a gradient that is not finite
-- on one rank leaves the step out on all.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"dp"})
local nn = mh.nn
local tests = require "support.grad_scaler_history"

local function sgd(w) return mh.optim.SGD({w}, {lr = 0.01, momentum = 0.5}) end

--- Two layers; the batch of one rank overflows in steps 3 and 4.
local function fit(sharded)
  mh.manual_seed(1)
  local net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)):double()
  if sharded then mh.fully_shard(net, {mesh = mesh}) end
  local opt, scaler = mh.optim.NAdam(net:parameters(), {lr = 0.1}),
      mh.GradScaler{init_scale = 64.0, growth_interval = 2}
  local scales, made, norms = {}, {}, {}
  for step = 1, 6 do
    mh.manual_seed(step)
    local x = mh.randn({7, 4}, kF64)
    if step == 3 or step == 4 then x["6, 1"] = 0 / 0 end
    if sharded then x = mh.distribute_tensor(x, mesh, {mh.Shard(0, {3, 0, 4})}) end
    opt:zero_grad()
    scaler:scale(net(x):square():mean()):backward()
    scaler:unscale_(opt)
    if step ~= 3 and step ~= 4 then norms[#norms + 1] = opt:clip_gnorm(0.1):full_tensor():item() end
    made[step] = scaler:step(opt)
    scaler:update()
    scales[step] = scaler:get_scale()
  end
  local values = {}
  for name, parameter in net:named_parameters() do values[name] = parameter:detach():full_tensor() end
  return scales, made, values, mh.tensor(norms, kF64)
end

function tests.test_Y16_one_rank_that_overflows_leaves_the_step_out_on_all()
  local scales, made, values, norms = fit(false)
  testing.assert_equal(scales, {64, 128, 64, 32, 32, 64})
  testing.assert_equal(made, {true, true, false, false, true, true})
  local cut_scales, cut_made, cut_values, cut_norms = fit(true)
  testing.assert_equal({cut_scales, cut_made}, {scales, made})
  testing.assert_close(cut_norms, norms)
  testing.assert_all_close(cut_values, values)
end

function tests.test_Y16_half_precision_gradients()
  local w = mh.tensor({1e-4, 2e-4}, {dtype = "float16"}):requires_grad_(true)
  local function gradient(scaler)
    w.grad = nil
    scaler:scale((w * w * 1e-4):sum()):backward()
    return w.grad:float():abs():sum():item()
  end
  assert(gradient(mh.GradScaler{enabled = false}) == 0, "2e-8 vanishes in float16")
  assert(gradient(mh.GradScaler()) > 0)
end

function tests.test_Y16_mistakes()
  local w = mh.ones({2}, {requires_grad = true})
  local opt, scaler = sgd(w), mh.GradScaler()
  local cases = {
    {function() scaler:update() end, "GradScaler: update: no gradients were looked at"},
    {function() scaler:scale(3) end, "GradScaler: scale: the loss is 3, expected a tensor"},
    {function() scaler:step(3) end, "GradScaler: step: expected an optimizer, got 3"},
    {function() mh.GradScaler{growth_factor = 1.0} end,
      "GradScaler: growth_factor is 1.0, expected a number above 1\n  fix   growth_factor = 2.0"},
    {function() mh.GradScaler{init = 2} end, "GradScaler: unknown option 'init'"},
    {function() scaler:load_state_dict{} end, "'scale' is nil, expected a number"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
  scaler:scale(w:sum()):backward()
  scaler:step(opt)
  testing.assert_error(function() scaler:step(opt) end, "GradScaler: step: it was called since the last update()")
  testing.assert_error(function() scaler:unscale_(opt) end, "GradScaler: unscale_: it was called since")
end

return tests
