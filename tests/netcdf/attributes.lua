-- SPDX-License-Identifier: Apache-2.0
-- Writes what check_attributes.py reads with h5py, and reads what that has written (X17): moonhalo run attributes.lua
-- -- FOLDER NUMBER
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local folder, number = arg[1], arg[2]
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local kTheirs = {str = "Höhe", empty = "", fixed = "plain text", fixed_utf8 = "Höhe", variable_ascii = "text",
  list = {"a", "längst"}, fixed_list = {"a", "bcd"},
  one = "alone", int = 3, float = 2.5, bool = true, ints = {1, 2}, floats = {0.5, 2.0}, bools = {1, 0}, nothing = {}}
local kOurs = {text = "Höhe", empty = "", list = {"a", "längst"}, int = 3, float = 2.5, bool = true, ints = {1, 2},
    mixed = {1, 2.5}}

local theirs = mh.h5.open(folder .. "/theirs.h5")
testing.assert_equal(theirs.attrs, kTheirs)
testing.assert_equal(theirs["x"].attrs, kTheirs)
testing.assert_equal(theirs["g"].attrs, kTheirs)
testing.assert_equal({theirs["n"]:read():item(), theirs["flag"]:read():item()}, {7, true})

local function write(path, fill)
  local out <close> = mh.h5.open(path, "w")
  fill(out)
end

local ours = ("%s/ours%s.h5"):format(folder, number)
write(ours, function(out)
  out:write("x", mh.distribute_tensor(mh.arange(6), mesh, {mh.Shard(0)}), {attrs = kOurs})
  out:write("g/y", mh.distribute_tensor(mh.arange(6), mesh, {mh.Shard(0)}), {attrs = kOurs})
  for name, value in pairs(kOurs) do out:set_attr(name, value) end
  out:write("n", 3)
  out:write("large", (1 << 53) + 1)
  out:write("r", 0.1)
  out:write("flag", false)
  out:write("many", {{1, 2}, {3, 4}})
  out:write("reals", {1, 0.1}, {attrs = {units = "m"}})
  out:append("grown", {1.5})
  out:append("grown", {2.5})
  testing.assert_error(function() out:write("text", "abc") end, "write: the data are text")
  testing.assert_error(function() out:write("ragged", {{1, 2}, {3}}) end,
      "write: lists of dimension 1 differ in length: 2 and 1")
  testing.assert_error(function() out:write("named", {a = 1}) end, "write: a list has names too")
  testing.assert_error(function() out:write("late", {[3] = 1}) end, "write: a list does not begin at 1")
  testing.assert_error(function() out:write("texts", {"a"}) end, "write: elements are numbers or booleans, got 'a'")
  testing.assert_error(function() out:write("none") end, "write: bad argument #2, expected a tensor, got nil")
  testing.assert_error(function() out:append("grown", 3.5) end, "or {3} for the number 3")
  testing.assert_error(function() out:set_attr("a", {1, "b"}) end, "set_attr: element 2 of a list is 'b'")
  testing.assert_error(function() out:set_attr("a", {true, false}) end, "0 and 1 for booleans")
  testing.assert_error(function() out:set_attr("a", {{1, 2}}) end, "set_attr: element 1 of a list is ")
  testing.assert_error(function() out:set_attr("a", {b = 1}) end, "set_attr: a table with keys is not an attribute")
end)
local again = mh.h5.open(ours)
testing.assert_equal(again.attrs, kOurs)
testing.assert_equal(again["x"].attrs, kOurs)
testing.assert_equal({again["n"]:read():item(), again["n"].shape, again["large"]:read():item(),
    again["flag"]:read():item()}, {3, {}, (1 << 53) + 1, false})

write(("%s/ours%s.nc"):format(folder, number), function(out)
  out:set_attr("title", "Höhe")
  out:write("t", mh.distribute_tensor(mh.arange(6), mesh, {mh.Shard(0)}), {dims = {"time"}, attrs = {units = "K"}})
  out:set_attr("later", "text")
end)
