-- SPDX-License-Identifier: Apache-2.0
-- The problem of golden/optimizers.py.
local mh = require "moonhalo"

local kF64 = {dtype = "float64"}
local runs = {}

function runs.problem()
  local w = mh.tensor({{0.9, -1.1, 0.3}, {0.2, 0.7, -0.5}, {-1.3, 0.4, 0.8}, {0.6, -0.2, 1.5}}, kF64)
  return w:requires_grad_(true), mh.tensor({0.5, -0.25, 0.75}, kF64):requires_grad_(true)
end

function runs.loss(w, b)
  local c = mh.tensor({1.0, 2.0, 3.0}, kF64)
  return ((w * c - b) ^ 2):sum() + (w ^ 4):sum() * 0.1
end

--- Muon trains matrices, w alone.
function runs.make(name, options, w, b) return mh.optim[name](name == "Muon" and {w} or {w, b}, options) end

function runs.train(opt, w, b, steps)
  for _ = 1, steps do
    w.grad, b.grad = nil, nil
    runs.loss(w, b):backward()
    opt:step()
  end
end

return runs
