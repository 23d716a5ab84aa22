-- SPDX-License-Identifier: Apache-2.0
-- Y16: what PyTorch's modules have (golden/torch_names.py) is here under the same names, or on the list of what is
-- missing (support/missing_names.lua) with "no" and the reason.
local mh = require "moonhalo"
local golden = require "golden.torch_names"
local missing = require "support.missing_names"

local tests = {}

--- Functions that find out whether a name of each kind is there. Attributes may be nil.
local x = mh.ones{2, 2}
local function in_table(names) return function(name) return rawget(names, name) ~= nil end end
local function in_mh(name)
  local ok, value = pcall(function() return mh[name] end)
  return ok and value ~= nil
end
local kThere = {
  nn = in_table(mh.nn), optim = in_table(mh.optim), lr_scheduler = in_table(mh.optim), init = in_table(mh.nn.init),
  func = in_table(mh.func), distributions = in_table(mh.distributions), ["nn.utils"] = in_table(mh.nn.utils),
  functional = function(name) return rawget(mh.functional, name) ~= nil or in_mh(name) end,
  torch = in_mh, autograd = in_mh,
  Tensor = function(name)
    local ok, problem = pcall(function() return x[name] end)
    return ok or not problem:find("no attribute, method or operator", 1, true)
  end,
}

for kind, names in pairs(golden) do
  tests["test_Y16_names_of_" .. kind:gsub("%.", "_")] = function()
    local known, wrong = {}, {}
    for _, name in ipairs(names) do
      known[name] = true
      local there, reason = kThere[kind](name), missing[kind][name]
      if not there and not reason then wrong[#wrong + 1] = name .. " is missing, without a reason" end
      if there and reason then wrong[#wrong + 1] = name .. " is there, and on the list of what is missing" end
    end
    for name, reason in pairs(missing[kind]) do
      if not known[name] then wrong[#wrong + 1] = name .. " is on the list, but PyTorch has no such name" end
      if reason:sub(1, 4) ~= "no: " then wrong[#wrong + 1] = name .. " has no reason that begins with no" end
    end
    assert(#names > 10, "the names were not read")
    if #wrong > 0 then error(table.concat(wrong, "\n"), 0) end
  end
end

return tests
