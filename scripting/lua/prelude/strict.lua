-- SPDX-License-Identifier: Apache-2.0
-- Tables of functions that C++ makes: a name that they lack is an error with the nearest one.

local mh = ...
local strict = require "moonhalo.internal.strict"

for _, name in ipairs {"files", "h5", "json", "safetensors"} do strict.table(name, rawget(mh, name)) end
