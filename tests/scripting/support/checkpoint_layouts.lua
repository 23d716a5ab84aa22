-- SPDX-License-Identifier: Apache-2.0
-- Shared by checkpoint_layouts_ranks3.lua and _ranks4.lua: tensors that are in many ways are saved, the file holds
-- them whole, and they come back into tensors that are in other ways.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local layouts = {}

layouts.folder = require "support.own_path"

local function numbers(shape, dtype)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local values = mh.arange(count, {dtype = "float64"}):mul(0.37):sin():mul(100)
  return (dtype == "complex64" and mh.complex(values:float(), values:cos():float()) or values:to(dtype)):reshape(shape)
end

--- {shape, dtype}: large ones are shared by their copies, small ones are not.
layouts.kShapes = {
  {{300, 70}, "float32"}, {{301, 90}, "float64"}, {{40, 60, 70}, "bfloat16"}, {{7, 5}, "int64"},
  {{30, 50, 30}, "complex64"}, {{}, "float32"}, {{2, 40000}, "float32"}, {{0, 4}, "float32"},
}

--- An object with tensors, as users write them: load_state_dict takes over what it is given, or copies it.
function layouts.object(tensors)
  return {
    tensors = tensors,
    state_dict = function(self) return {list = self.tensors} end,
    load_state_dict = function(self, state)
      for i, own in ipairs(self.tensors) do own:copy_(state.list[i]) end
      self.given = state.list
    end,
  }
end

local function place(x, way) return way and mh.distribute_tensor(x, way.mesh, way.placements(x)) or x end
local function whole(x) return x:is_shard_tensor() and x:full_tensor() or x end

--- `ways`: list of {mesh =, placements = function of a tensor}, false for plain tensors.
function layouts.check(ways)
  local path, all = layouts.folder("ways"), {}
  for i, one in ipairs(layouts.kShapes) do all[i] = numbers(one[1], one[2]) end
  for from, way in ipairs(ways) do
    local object = layouts.object({})
    for i, x in ipairs(all) do object.tensors[i] = place(x, way) end
    mh.checkpoint.save(path, {x = object, y = {object.tensors[1]}})

    for i, pair in ipairs((mh.safetensors.load(path .. "/x.safetensors"))) do
      testing.assert_equal({from, i, pair[2].dtype, mh.equal(pair[2], all[i])}, {from, i, all[i].dtype, true})
    end
    local other = ways[from % #ways + 1]
    for _, target_way in ipairs {way, other} do
      local target = layouts.object({})
      for i, x in ipairs(all) do target.tensors[i] = place(mh.zeros_like(x), target_way) end
      local rest = mh.checkpoint.load(path, {x = target})
      testing.assert_equal(mh.equal(rest.y[1], all[1]), true)
      for i, x in ipairs(all) do
        testing.assert_equal({from, i, mh.equal(whole(target.tensors[i]), x)}, {from, i, true})
        testing.assert_equal(target.given[i]:is_shard_tensor(), target_way ~= false)
      end
    end
    mh.barrier()
  end
end

return layouts
