-- SPDX-License-Identifier: Apache-2.0
-- For moonhalo check without --call: all its functions can be called in the order of their names. X15
local mh = require "moonhalo"
local u, before = mh.host.fields.u, nil

function learn() return u:sum() end

function leap(factor) u:mul_(factor) end

function measure(power, offset) return u:pow(power):mean() + offset, u end

function remember() before = u:clone() return before ~= nil end
