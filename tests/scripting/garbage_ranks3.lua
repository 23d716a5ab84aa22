-- SPDX-License-Identifier: Apache-2.0
-- Ranks collect their garbage when they like. What a call moves must not depend on it.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local tests = {}

-- A sum that others share the addends of is not summed up in place. Rank 1 alone has let go of the other by then.
local function sum_with(share)
  local full = mh.arange(6, kF64):reshape{2, 3} - 2
  local x = mh.from_local(full * (mh.rank() + 1) / 6, mesh, {mh.Partial("sum")})
  collectgarbage("stop")
  share(x)
  if mh.rank() == 1 then collectgarbage("collect") end
  testing.assert_close(x:relu():full_tensor(), full:relu())
  testing.assert_close(x:exp():full_tensor(), full:exp())
  local written, problem = pcall(function() x:add_(1) end)
  collectgarbage("restart")
  return written, problem
end

function tests.test_S26_a_dropped_detached_sum()
  local written, problem = sum_with(function(x) local _ = x:detach() end)
  testing.assert_equal(written, false)
  testing.assert_equal(tostring(problem):find("shares memory with another", 1, true) ~= nil, true)
end

function tests.test_S26_a_dropped_transposed_sum()
  testing.assert_equal(sum_with(function(x) local _ = x:t():t() end), false)
end

function tests.test_S26_a_dropped_checkpoint()
  sum_with(function(x) local _ = mh.checkpoint(function(y) return y * 2 end, x:requires_grad_()):sum() end)
end

function tests.test_S26_a_sum_alone_is_summed_up_once()
  testing.assert_equal(sum_with(function() end), true)
end

-- Plain parameters get the mean of their gradients over the ranks of a mesh that is dropped by then, on all or on none.
function tests.test_N36_a_dropped_mesh_of_local_results()
  local ranks = mh.world_size()
  local function divide()
    local own = mh.init_device_mesh(mh.device(), {ranks}, {"dp"})
    mh.replicate(mh.nn.Linear(2, 2), {mesh = own, output = "local"})
  end
  divide()
  collectgarbage("stop")
  divide = nil
  mh.set_fallback("replicate")  -- plans of operators, which hold on to the mesh, are dropped
  if mh.rank() == 1 then collectgarbage("collect") end
  local head = mh.zeros({2}, kF64):requires_grad_()
  local opt = mh.optim.SGD({head}, {lr = 1})
  ;(head * mh.rank()):sum():backward()
  opt:step()
  collectgarbage("restart")
  testing.assert_close(head:detach(), mh.full({2}, -(ranks - 1) / 2, kF64))
end

-- A script may let go of a module before backward: the graph still gathers its parameters on every rank.
function tests.test_V15_a_dropped_module()
  local table_of_classes = mh.nn.Linear(4, 4):double().weight
  local x = mh.full({mh.rank() + 1, 4}, mh.rank() + 1, kF64)
  collectgarbage("stop")
  local loss = mh.fully_shard(mh.nn.Linear(4, 4):double(), {mesh = mesh, min_numel = 1})(x):matmul(table_of_classes
      * 2):sum()
  if mh.rank() == 1 then collectgarbage("collect") end
  loss:backward()
  collectgarbage("restart")
  testing.assert_equal(table_of_classes.grad.shape, {4, 4})
end

return tests
