-- SPDX-License-Identifier: Apache-2.0
-- What wrong_calls.lua passes: for every kind of value that scripts have a function that makes one, since calls may
-- change or keep what they are given. {label, make}, the label as it reads in a script.
local mh = require "moonhalo"

local nn = mh.nn

local function net() return nn.Sequential(nn.Linear(2, 3)) end
local function x() return mh.ones{2, 3} end
local function optimizer() return mh.optim.SGD({mh.ones{2, 3}:requires_grad_()}, {lr = 0.1}) end
local function mesh() return mh.init_device_mesh(mh.device(), {1}) end

local values = {
  {"nil", function() return nil end},
  {"true", function() return true end},
  {"-1", function() return -1 end},
  {"0/0", function() return 0 / 0 end},
  {"1.5", function() return 1.5 end},
  -- Alone: max_pool1d(x, 1 << 62) of LibTorch loops for hours, and each window function would need a limit of its own.
  {"1 << 62", function() return 1 << 62 end, alone = true},
  -- A string that is not a name of anything, nor a path that can be written.
  {"'/dev/null/nonsense'", function() return "/dev/null/nonsense" end},
  {"''", function() return "" end},
  {"{}", function() return {} end},
  {"{nonsense = 1}", function() return {nonsense = 1} end},
  {"{1, 'a'}", function() return {1, "a"} end},
  {"{-1}", function() return {-1} end},
  {"{x}", function() return {x()} end},
  {"{net}", function() return {net()} end},
  {"{{}}", function() return {{}} end},
  {"function", function() return function() end end},
  {"coroutine", function() return coroutine.create(function() end) end},
  {"x", x},
  {"integers", function() return mh.ones({2}, {dtype = "int64"}) end},
  {"net", net},
  {"optimizer", optimizer},
  {"mesh", mesh},
  {"mh.Shard(0)", function() return mh.Shard(0) end},
  {"mh.none", function() return mh.none end},
}

--- First arguments that many functions take, before a wrong second one.
local firsts = {{"net", net}, {"x", x}, {"2", function() return 2 end}, {"optimizer", optimizer}}

return {values = values, firsts = firsts, net = net, x = x, optimizer = optimizer, mesh = mesh}
