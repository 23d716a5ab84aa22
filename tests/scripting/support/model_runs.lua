-- SPDX-License-Identifier: Apache-2.0
-- A model on blocks against the same model on plain tensors (float64, 1e-10): prediction, losses, the gradients of the
-- input and of every parameter, and the weights after each of three optimizer steps.
--
-- A model is a table
--   network   function() -> a module, float64; called with a fixed seed
--   sample    function() -> plain tensors by name, "x" (the input, whose gradient is compared) among them; a fixed
--   seed, too
--   predict   function(network, samples) -> prediction; may draw random numbers
--   loss      function(prediction, samples) -> loss; left out: mean squared distance from samples.y
--   keeps_blocks  true: the prediction must be in the blocks of the input
-- and a cut says how the samples are on a mesh: {mesh = ..., x = {placements}, other = {placements}}; samples without
-- an entry stay plain. It may have `divide`, a function of the network that divides it.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local runs = {}
local kSteps = 3

local function plain(tensor) return tensor:is_shard_tensor() and tensor:full_tensor() or tensor end

--- The values that are compared, by name, and the names in the order in which they arise.
local function train(model, cut)
  mh.manual_seed(5)
  local net = model.network()
  if cut and cut.divide then cut.divide(net) end
  mh.manual_seed(6)
  local samples = model.sample()
  local sorted = {}
  for name in pairs(samples) do sorted[#sorted + 1] = name end
  table.sort(sorted)  -- all ranks distribute in one order
  for _, name in ipairs(sorted) do
    if cut and cut[name] then samples[name] = mh.distribute_tensor(samples[name], cut.mesh, cut[name]) end
  end
  samples.x:requires_grad_()
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.01})
  local seen, names = {}, {}
  local function see(name, tensor)
    names[#names + 1] = name
    seen[name] = plain(tensor:detach()):clone()
  end

  mh.manual_seed(7)
  for step = 1, kSteps do
    opt:zero_grad()
    samples.x.grad = nil
    local prediction = model.predict(net, samples)
    local loss = model.loss and model.loss(prediction, samples) or mh.mse_loss(prediction, samples.y)
    loss:backward()
    if step == 1 then
      if cut then
        testing.assert_equal(prediction:is_shard_tensor(), true)
        if cut.x then testing.assert_equal(samples.x.grad.placements, samples.x.placements) end
        for dim = 0, cut.x and model.keeps_blocks and samples.x.ndim - 1 or -1 do
          if dim ~= 1 then testing.assert_equal(prediction:shard_sizes(dim), samples.x:shard_sizes(dim)) end
        end
      end
      see("prediction", prediction)
    end
    see("loss " .. step, loss)
    see("gradient of the input, step " .. step, samples.x.grad)
    for name, p in net:named_parameters() do see("gradient of " .. name .. ", step " .. step, p.grad) end
    opt:step()
    for name, p in net:named_parameters() do see(name .. " after step " .. step, p) end
  end
  return seen, names
end

--- Trains `model` on blocks and on plain tensors. Nothing may be gathered unasked. Collective.
function runs.same_as_plain(model, cut)
  local expected, names = train(model)
  local before = mh.set_fallback("error")
  local done, actual = pcall(train, model, cut)
  mh.set_fallback(before or "replicate")
  if not done then error(actual, 0) end

  for _, name in ipairs(names) do
    local same, problem = pcall(testing.assert_close, actual[name], expected[name])
    if not same then error(name .. ": " .. tostring(problem), 0) end
  end
end

--- test_<name>_<cut> for every entry of `models` ({name, model, cuts}) and every cut by name.
function runs.tests(models)
  local tests = {}
  for _, entry in ipairs(models) do
    local name, model, cuts = table.unpack(entry)
    for cut_name, cut in pairs(cuts) do
      tests["test_" .. name .. "_" .. cut_name] = function() runs.same_as_plain(model, cut) end
    end
  end
  return tests
end

return runs
