-- SPDX-License-Identifier: Apache-2.0
-- X03: the layers that look through windows against PyTorch's own: the sum of the result and its product with cos(0),
-- cos(1), ...
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, F = mh.nn, mh.functional

local kF64 = {dtype = "float64"}
local function arange(n) return mh.arange(n, kF64) end
local x = (arange(2 * 3 * 5 * 7):reshape{2, 3, 5, 7} * 0.37):sin()
local line = x:reshape{2, 3, 35}
local deep = ((x:unsqueeze(-1) * (arange(4) + 1)) * 0.9 + arange(840):reshape{2, 3, 5, 7, 4} * 0.11):sin()
local samples2, samples3 = arange(12):reshape{2, 3, 2} * 0.083, arange(18):reshape{2, 3, 3} * 0.055

--- Gives what `unpool(values, indices, size)` makes of the largest values of `input`.
local function unpooled(pool, unpool, input, size)
  local values, indices = pool(input)
  return unpool(values, indices, size)
end

-- name, function, sum, weighted sum, shape
local cases = {
  {"lp_pool_1d", function() return nn.LPPool1d(3, 4, {stride = 3})(line:abs()) end, 74.974658241891, 0.526969337808,
  {2, 3, 11}}, {"lp_pool_2d", function() return nn.LPPool2d(2, {2, 3}, {ceil_mode = true})(x) end,
    88.530851484373, -0.412338837991, {2, 3, 3, 3}},
  {"lp_pool_3d", function() return nn.LPPool3d(4, 2)(deep) end, 92.215961830151, 1.822313751397, {2, 3, 2, 3, 2}},
  {"max_pool_indices", function() return select(2, nn.MaxPool1d(3, 2, {return_indices = true})(line)):double() end,
    1734, 18.147384029541, {2, 3, 17}},
  {"max_unpool_1d", function() return unpooled(nn.MaxPool1d(3, 2, {return_indices = true}), nn.MaxUnpool1d(3, 2),
    line) end, 18.859315810787, 2.472286155428, {2, 3, 35}},
  {"max_unpool_2d", function()
    return unpooled(nn.MaxPool2d(2, {return_indices = true}), nn.MaxUnpool2d(2), x, {5, 7})
  end, 28.586252772701, -0.650307806061, {2, 3, 5, 7}},
  {"max_unpool_3d", function()
    return unpooled(nn.MaxPool3d({2, 2, 1}, {return_indices = true}), nn.MaxUnpool3d{kernel_size = {2, 2, 1}}, deep,
        deep.shape)
  end, 74.279102572838, -4.185091096394, {2, 3, 5, 7, 4}},
  {"fractional_2d", function() return nn.FractionalMaxPool2d(2,
    {output_size = {3, 4}, random_samples = samples2})(x) end, 47.453423868037, -1.485026032885, {2, 3, 3, 4}},
  {"fractional_2d_ratio", function() return nn.FractionalMaxPool2d({2, 3},
    {output_ratio = 0.6, random_samples = samples2})(x) end, 54.309232965902, -1.159472946748, {2, 3, 3, 4}},
  {"fractional_3d", function() return nn.FractionalMaxPool3d(2,
    {output_size = {2, 3, 2}, random_samples = samples3})(deep) end, 53.653881479464, -3.925625238916, {2, 3, 2, 3, 2}},
  {"response_norm_1d", function() return nn.LocalResponseNorm(2, 0.3, 0.6, 1.5)(line) end,
    2.990134266746, 0.462275423431, {2, 3, 35}},
  {"response_norm_2d", function() return nn.LocalResponseNorm(3, {alpha = 0.3, beta = 0.6, k = 1.5})(x) end,
    3.000730748783, 0.507129100488, {2, 3, 5, 7}},
  {"response_norm_3d", function() return nn.LocalResponseNorm(2, {alpha = 0.3, beta = 0.6, k = 1.5})(deep) end,
    -22.439013704684, -4.797357760822, {2, 3, 5, 7, 4}},
  {"unfold", function() return nn.Unfold({2, 3}, {dilation = {2, 1}, padding = {1, 0}, stride = 2})(x) end,
    -95.237796848711, 0.287928199498, {2, 18, 9}},
  {"fold", function() return nn.Fold({5, 7}, {2, 3}, {padding = 1})(nn.Unfold({2, 3}, {padding = 1})(x):cos()) end,
    871.072341017088, -0.302378079344, {2, 3, 5, 7}},
  {"pixel_shuffle", function()
    return nn.PixelShuffle(2)(x[":, 0:1"]:expand{2, 4, 5, 7} * (arange(4) + 1):reshape{1, 4, 1, 1})
  end, 9.562763278806, 22.932229674298, {2, 1, 10, 14}},
  {"pixel_unshuffle", function() return nn.PixelUnshuffle(2)(x[":, :, 0:4, 0:6"]) end,
    10.640237011731, 1.681401009188, {2, 12, 2, 3}},
  {"channel_shuffle", function()
    return nn.ChannelShuffle(3)(mh.cat({x, x}, 1) * (arange(6) + 1):reshape{1, 6, 1, 1})
  end, 30.063184441300, 1.639076278060, {2, 6, 5, 7}},
  {"upsampling_nearest", function() return nn.UpsamplingNearest2d{scale_factor = 2}(x) end,
    16.332921060510, 3.675494109009, {2, 3, 10, 14}},
  {"upsampling_bilinear", function() return nn.UpsamplingBilinear2d({9, 4})(x) end,
    -0.591326130110, -0.385932027345, {2, 3, 9, 4}},
  {"adaptive_max", function() return nn.AdaptiveMaxPool2d{output_size = {2, 3}}(x) end,
    33.885028612648, -0.166117999543, {2, 3, 2, 3}},
  {"adaptive_max_indices", function()
    return select(2, nn.AdaptiveMaxPool2d({2, 3}, {return_indices = true})(x)):double()
  end, 545, -132.869489374784, {2, 3, 2, 3}},
  {"max_pool_3d", function() return nn.MaxPool3d(2, {ceil_mode = true})(deep) end,
    79.549096073541, -3.122271227118, {2, 3, 3, 4, 2}},
  {"avg_pool_3d", function()
    return nn.AvgPool3d({2, 3, 1}, {stride = {2, 2, 1}, padding = {1, 1, 0}, count_include_pad = false})(deep)
  end, -6.970867343084, -1.590088291966, {2, 3, 3, 4, 4}},
  {"reflection_pad_3d", function() return nn.ReflectionPad3d{padding = {1, 0, 2, 1, 0, 3}}(deep) end,
    -118.566210303600, -9.637367565181, {2, 3, 8, 10, 5}},
  {"circular_pad_1d", function() return nn.CircularPad1d{padding = {2, 1}}(line) end,
    14.677941148621, 0.317581279701, {2, 3, 38}},
  {"replication_pad_3d", function() return nn.ReplicationPad3d(2)(deep) end, -46.281263936335, -1.157919123076,
  {2, 3, 9, 11, 8}},
  {"constant_pad_1d", function() return nn.ConstantPad1d({1, 2}, 3.5)(line) end, 67.083230265127, 32.566819448317,
  {2, 3, 38}}, {"zero_pad_3d", function() return nn.ZeroPad3d{padding = {0, 1, 1, 0, 2, 0}}(deep) end,
    -28.939522559833, 6.457856701034, {2, 3, 7, 8, 5}},
}

local tests = {}

for _, case in ipairs(cases) do
  tests["test_X03_" .. case[1]] = function()
    local y = case[2]()

    testing.assert_equal(y.shape, case[5])
    testing.assert_close(y:sum():item(), case[3], {rtol = 1e-10, atol = 1e-9})
    testing.assert_close((y * arange(y:numel()):cos():reshape(y.shape)):sum():item(), case[4],
        {rtol = 1e-10, atol = 1e-9})
  end
end

--- Every module of LibTorch that pads, slides, pools or resamples.
function tests.test_X03_the_family_is_complete()
  local names = {"FractionalMaxPool2d", "FractionalMaxPool3d", "Fold", "Unfold", "Upsample", "UpsamplingNearest2d",
    "UpsamplingBilinear2d", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "LocalResponseNorm"}
  for dims = 1, 3 do
    for _, stem in ipairs{"Conv", "ConvTranspose", "MaxPool", "AvgPool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool",
      "MaxUnpool", "ReflectionPad", "ReplicationPad", "CircularPad", "ConstantPad", "ZeroPad",
        "NeighborhoodAttention"} do
      names[#names + 1] = stem .. dims .. "d"
    end
  end
  for _, name in ipairs(names) do testing.assert_equal(type(nn[name].forward), "function") end
end

function tests.test_X03_windows_of_random_places_follow_the_seed()
  local layer = nn.FractionalMaxPool2d{kernel_size = 2, output_ratio = {0.6, 0.5}, return_indices = true}
  mh.manual_seed(4)
  local values, indices = layer(x)
  mh.manual_seed(4)
  testing.assert_equal(layer(x), values)
  testing.assert_equal(values.shape, {2, 3, 3, 3})
  testing.assert_equal(x:flatten(2):gather(2, indices:flatten(2)):reshape(values.shape), values)
end

function tests.test_X03_unfold_of_one_dimension_is_the_operator()
  testing.assert_equal(mh.unfold(arange(5), 0, 2, 2):tolist(), {{0.0, 1.0}, {2.0, 3.0}})
  testing.assert_equal(F.unfold(x, 5).shape, {2, 75, 3})
end

function tests.test_X03_wrong_calls_are_refused()
  local values, indices = nn.MaxPool2d(2, {return_indices = true})(x)
  local refused = {
    {function() nn.MaxUnpool2d(2)(values, indices, {6, 7}) end,
    "output_size 6 along dimension 0 cannot be, the range is 3 to 5"},
    {function() nn.MaxUnpool2d(2)(values, indices, {7}) end, "max_unpool2d: output_size has 1 numbers, expected 2"},
    {function() nn.FractionalMaxPool2d(2)(x) end, "fractional_max_pool2d: give either output_size or output_ratio"},
    {function() nn.FractionalMaxPool2d(2, {output_ratio = 1.5})(x) end,
    "output_ratio is 1.5, expected more than 0 and less than 1"},
    {function() nn.FractionalMaxPool3d(2, 2)(x["0, 0"]) end, "the input has 2 dimensions, expected 4 or 5"},
    {function() nn.LocalResponseNorm(2)(x["0, 0"]) end,
    "local_response_norm: the input has 2 dimensions, expected 3 or more"},
    {function() nn.LPPool2d(2) end, "LPPool2d: 'kernel_size' is missing"},
    {function() nn.Unfold(2, {strid = 2}) end, "did you mean 'stride'?"},
  }
  for _, case in ipairs(refused) do testing.assert_error(case[1], case[2]) end
end

return tests
