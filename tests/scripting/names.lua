-- SPDX-License-Identifier: Apache-2.0
-- Names that do not exist are errors with the nearest one: globals, settings, fields of modules (B7); devices that do
-- not exist, too (B8).

local mh = require "moonhalo"
local t = require "moonhalo.testing"

local nn = mh.nn
local tests = {}

function tests.test_undefined_globals()
  local padding = 1
  local message = t.assert_error(function() return {padding = paddin, other = padding} end,
      "no variable 'paddin'; did you mean 'padding'?")
  assert(message:find("^[^\n]*names%.lua:13: no variable"), message)
  t.assert_error(function() return tostrin(3) end, "did you mean 'tostring'?")
  t.assert_error(function() return entirely_unknown end, "no variable 'entirely_unknown'\n")
  t.assert_error(load "return lenght", "no variable 'lenght'")
  t.assert_error(load "return mh.ones{2}",
      "no variable 'mh'\n  fix   begin the script with local mh = require \"moonhalo\"")
  t.assert_equal(rawget(_G, "paddin"), nil)
end

function tests.test_globals_that_were_assigned()
  best = nil
  t.assert_equal(best, nil)
  count = 1
  t.assert_equal(count, 1)
  count = nil
  t.assert_equal(count, nil)
  t.assert_equal(_G.best, nil)
  rawset(_G, "raw", 3)
  t.assert_equal(raw, 3)
  t.assert_error(function() return _G.wors end, "no variable 'wors'")
end

function tests.test_libraries_may_ask_for_globals_of_other_luas()
  t.assert_equal(jit, nil)
  local unpack = unpack or table.unpack
  t.assert_equal(unpack, table.unpack)
  -- Modules installed elsewhere may ask for anything; those beside the script may not.
  local elsewhere = assert(load("return ngx", "@/usr/share/lua/5.4/library.lua"))
  t.assert_equal(elsewhere(), nil)
  t.assert_error(assert(load("return ngx", "@tests/scripting/library.lua")), "no variable 'ngx'")
end

function tests.test_unknown_settings()
  local cfg = mh.config{width = 8, net = {depth = 2, act = "gelu"}, cut = {5, 4}, none = {}}
  t.assert_error(function() return cfg.widht end,
      "config: no key 'widht'; did you mean 'width'?\n  have  cut, net, none, width")
  t.assert_error(function() return cfg.net.dept end, "config: no key 'net.dept'; did you mean 'depth'?")
  t.assert_equal(rawget(cfg, "widht"), nil)
  t.assert_equal({cfg.cut[3], cfg.none[1], #cfg.cut}, {[3] = 2})
  cfg.more = 3
  t.assert_equal(cfg.more, 3)
  -- Settings may be handed on as options, and are ordinary tables otherwise.
  t.assert_equal(mh.json.encode(cfg.net), '{"act":"gelu","depth":2}')
  local layers = mh.config{linear = {in_features = 3, out_features = 2}, sum = {dim = 0}, like = {dtype = "float64"}}
  t.assert_equal(nn.Linear(layers.linear).weight.shape, {2, 3})
  t.assert_equal(mh.ones({2, 2}):sum(layers.sum):tolist(), {2, 2})
  t.assert_equal(mh.tensor({1}, layers.like).dtype, "float64")
  t.assert_equal(mh.arange(3, layers.like).dtype, "float64")
  local names = {}
  for name in pairs(cfg) do names[#names + 1] = name end
  t.assert_equal(names, {"cut", "more", "net", "none", "width"})
end

local Block = nn.Module:extend("Block")
Block.kind = "plain"
function Block:init(options)
  self.fc = nn.Linear(2, 2, {bias = false})
  self.skip = options.skip and nn.Linear(2, 2) or nil
  self.scale = options.scale
  self:register_buffer("mean", nil)
end
function Block:forward(x)
  x = self.fc(x)
  if self.skip then x = x + self.skip(x) end
  return x * (self.scale or 1)
end

function tests.test_fields_of_modules()
  local plain, full = Block{}, Block{skip = true, scale = 2}
  t.assert_error(function() return full.fc.wieght end, "Linear: no field 'wieght'; did you mean 'weight'?")
  t.assert_error(function() return plain.skpi end, "Block: no field 'skpi'; did you mean 'skip'?")
  t.assert_error(function() return plain.knd end, "did you mean 'kind'?")
  t.assert_error(function() return plain:parametres() end, "did you mean 'parameters'?")
  -- Names that were assigned, nil too, or are options of a layer, may be asked for.
  t.assert_equal({plain.skip, plain.scale, plain.mean, plain.fc.bias}, {})
  t.assert_equal({full.scale, full.kind, full.training}, {2, "plain", true})
  full.skip, full.scale = nil, nil
  t.assert_equal({full.skip, full.scale}, {})
  full.cache = nil
  full.cache = full.cache or 5
  t.assert_equal(full.cache, 5)
  t.assert_equal(plain(mh.ones(1, 2)).shape, {1, 2})
  t.assert_equal({plain:has "fc", plain:has "skip", plain:has "wieght", plain:has "kind", plain.fc:has "weight",
    plain:has "forward", plain:has "training"}, {true, false, false, true, true, true, true})
  local weights = 0
  nn.Sequential(nn.Linear(2, 2), nn.ReLU()):apply(function(m) if m:has "weight" then weights = weights + 1 end end)
  t.assert_equal(weights, 1)
  t.assert_equal({nn.BatchNorm2d(3, {track_running_stats = false, affine = false}).running_mean}, {})
end

function tests.test_options_of_layers_that_were_left_out_are_nil()
  t.assert_equal({nn.MaxPool2d(2).return_indices, nn.AvgPool2d(2).divisor_override,
    nn.Conv2d(1, 1, 1, {bias = false}).bias,
    nn.LayerNorm({2}, {elementwise_affine = false}).weight, nn.Upsample{scale_factor = 2}.size,
      nn.Softmax{dim = 1}.dim}, {false, [6] = 1})
end

function tests.test_devices_that_are_not_there()
  if mh.world_size() > 1 then return end
  local without = pcall(mh.zeros, {1}, {device = "cuda"}) == false
  if not without then return end
  local text = "no CUDA device can be used here"
  t.assert_error(function() return mh.init_device_mesh("cuda", {1}) end, "init_device_mesh: " .. text)
  for _, make in ipairs {mh.randn, mh.zeros, mh.rand} do
    local message = t.assert_error(function() return make({3}, {device = "cuda"}) end, 'device "cuda": ' .. text)
    assert(message:find("names.lua:%d+: "), message)
  end
  t.assert_error(function() return mh.tensor({1}, {device = "cuda:0"}) end, 'device "cuda:0": ' .. text)
  t.assert_error(function() return mh.ones(1):to("cuda") end, text)
  t.assert_error(function() return nn.Linear(1, 1):to("cuda") end, text)
end

return tests
