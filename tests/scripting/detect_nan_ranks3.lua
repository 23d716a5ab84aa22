-- SPDX-License-Identifier: Apache-2.0
-- A planted NaN is found with its module, operator and line, forward and backward: Y15.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local nn = mh.nn
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local Root = nn.Module:extend("Root")
function Root:forward(x)
  local shifted = x - 1
  return mh.sqrt(shifted) + 1  -- the line of NaN
end

local Net = nn.Module:extend("Net")
function Net:init()
  self.encoder = nn.Sequential(nn.Identity(), Root())
  self.head = nn.Tanh()
end
function Net:forward(x) return self.head(self.encoder(x)) end

--- {7, 4} over ranks with {2, 1, 4} rows; `value` at row 4, which rank 2 has as its second.
local function field(value)
  local x = mh.ones {7, 4} * 2
  x["4, 3"] = value
  x["5, 0"] = value
  return mh.distribute_tensor(x, mesh, {mh.Shard(0, {2, 1, 4})})
end

local function with_detection(run, ...)
  testing.assert_equal(mh.detect_nan(), false)
  local results = table.pack(pcall(run, ...))
  testing.assert_equal(mh.detect_nan(false), true)
  return table.unpack(results, 1, results.n)
end

local function expect(message, part)
  if not tostring(message):find(part, 1, true) then error(("no '%s' in: %s"):format(part, message), 2) end
end

function tests.test_Y15_a_planted_nan_is_found_forward()
  local fine, message = with_detection(Net(), field(0.5))

  testing.assert_equal(fine, mh.rank() ~= 2)  -- the others have numbers, and nothing was sent
  if fine then return end
  expect(message, "detect_nan: NaN made by aten::sqrt at ")
  expect(message, "detect_nan_ranks3.lua:13")
  expect(message, "2 of the 16 elements of this rank's block are NaN, the first at [4, 3] of [7, 4]")
  expect(message, "in    encoder.1 (Root) of Net")
end

function tests.test_Y15_a_plain_tensor_too()
  local x = mh.ones {3, 2} * 2
  x["2, 1"] = 0
  local fine, message = with_detection(Net(), x)

  testing.assert_equal(fine, false)
  expect(message, "1 of the 6 elements are NaN, the first at [2, 1] of [3, 2]")
end

function tests.test_Y15_nan_that_was_there_is_not_blamed_on_the_module()
  local fine, message = with_detection(Net(), mh.tensor {1.0, 0 / 0})

  testing.assert_equal(fine, false)
  expect(message, "NaN was in what the module was called with")
  expect(message, "in    encoder.0 (Identity) of Net")
end

function tests.test_Y15_numbers_integers_and_lists_pass()
  local Several = nn.Module:extend("Several")
  function Several:forward(x) return {x, mh.arange(3)}, x:gt(0), "text", nil, x:sum() end
  local fine, list, mask, text, none, sum = with_detection(Several(), field(2))

  testing.assert_equal(fine, true)
  testing.assert_equal(#list, 2)
  testing.assert_equal(text, "text")
  testing.assert_equal(none, nil)
  testing.assert_equal(mask.dtype, "bool")
  testing.assert_equal(sum:item(), 56.0)
end

function tests.test_Y15_a_nan_in_a_list_is_found()
  local Pair = nn.Module:extend("Pair")
  function Pair:forward(x) return {x, mh.log(x)} end
  local fine, message = with_detection(Pair(), mh.tensor {-1.0})

  testing.assert_equal(fine, false)
  expect(message, "NaN made by aten::log")
end

function tests.test_Y15_a_planted_nan_is_found_backward()
  local net = Net()
  local x = field(1):detach():requires_grad_(true)  -- sqrt(0): its derivative is infinite, times 0 NaN
  local fine, message = with_detection(function()
    local y = net(x)
    mh.sum(y * 0):backward()
  end)

  testing.assert_equal(fine, false)  -- the check of backward is made by all ranks together
  expect(message, "Function 'SqrtBackward0' returned nan values")
  expect(message, "of    aten::sqrt at ")
  expect(message, "detect_nan_ranks3.lua:13")
  expect(message, "in    encoder.1 (Root) of Net")
end

function tests.test_Y15_nothing_looks_when_it_is_off()
  local y = Net()(field(0.5))

  testing.assert_equal(mh.isnan(y):sum():item(), 2)
  local x = mh.tensor {0.0}:requires_grad_(true)
  mh.sum(mh.sqrt(x) * 0):backward()
  testing.assert_equal(mh.isnan(x.grad):item(), true)
end

function tests.test_Y15_a_second_watch_outlives_the_collection_of_the_first()
  mh.detect_nan(true)
  mh.detect_nan(false)
  mh.detect_nan(true)
  collectgarbage()
  testing.assert_equal(mh.detect_nan(false), true)
end

function tests.test_Y15_works_beside_a_profiler()
  local p = mh.profiler()
  p:start()
  local fine = with_detection(Net(), field(2))
  p:stop()

  testing.assert_equal(fine, true)
  testing.assert_equal(p:table {by = "module"}:find("encoder.1", 1, true) ~= nil, true)
end

return tests
