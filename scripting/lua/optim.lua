-- SPDX-License-Identifier: Apache-2.0
-- mh.optim: LibTorch's optimizers, and learning-rate schedules with PyTorch's names and formulas.
-- `optim.AdamW(net:parameters(), {lr = 1e-3})`, or groups `{{params = a, lr = 1e-2}, {params = b}}`.

local mh = require "moonhalo"

local optim = {lr_scheduler = require "moonhalo.optim.lr_scheduler"}

for _, name in ipairs {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS"} do
  optim[name] = mh._framed(function(parameters, options) return mh.make_optimizer(name, parameters, options) end)
end
for name, schedule in pairs(optim.lr_scheduler) do optim[name] = mh._framed(schedule) end

return setmetatable(optim, {
  __index = function(_, key)
    local known = {}
    for name in pairs(optim) do known[#known + 1] = name end
    mh.fail("optim: no optimizer or schedule '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), known))
  end,
})
