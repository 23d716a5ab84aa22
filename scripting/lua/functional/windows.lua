-- SPDX-License-Identifier: Apache-2.0
-- The part of mh.functional that looks through windows: LP pooling, fractional pooling, undone max pooling, response
-- normalisation, sliding blocks. Names, options and defaults of torch.nn.functional.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local optional, tuple = arguments.optional, arguments.tuple
local W = {}

local define = arguments.definer(W, {input = true, indices = true})

local function product(list)
  local all = 1
  for _, one in ipairs(list) do all = all * one end
  return all
end

--- The operators themselves, before functions of the same names take their place in `mh`.
local aten = {}
for _, name in ipairs {"max_unpool2d", "max_unpool3d", "fractional_max_pool2d", "fractional_max_pool3d", "im2col",
    "col2im"} do
  aten[name] = mh[name]
end

-- ---- Pooling ------------------------------------------------------------------------------------------------------

for dims = 1, 3 do
  --- mh.lp_pool1d(input, norm_type, kernel_size, {stride = nil, ceil_mode = false}) -> Tensor
  --- mh.lp_pool2d(input, norm_type, kernel_size, {stride = nil, ceil_mode = false}) -> Tensor
  --- mh.lp_pool3d(input, norm_type, kernel_size, {stride = nil, ceil_mode = false}) -> Tensor
  ---   (sum of x^p over each window)^(1/p).
  ---   input       Tensor      [batch, channels, space...]
  ---   norm_type   number      p
  ---   kernel_size   integer|{integer}   size of the window, one number or one for each dim
  ---   stride      integer|{integer}?   distance between windows; nil for kernel_size
  ---   ceil_mode   boolean     also counts a window that is not whole at the end, as if its mean were that of a whole
  ---     one
  ---   returns     Tensor      [batch, channels, space...]
  ---   collective  over the mesh of an input whose space is cut
  ---   example
  ---     mh.lp_pool1d(mh.ones{1, 1, 4}, 1, 2):tolist()    --> {{{2.0, 2.0}}}
  define("lp_pool" .. dims .. "d", {"input", "norm_type", "kernel_size", optional "stride", {"ceil_mode", false}},
      function(v, op)
    arguments.number(op, "norm_type", v.norm_type)
    local kernel = tuple(op, "kernel_size", v.kernel_size, dims)
    local stride = v.stride and tuple(op, "stride", v.stride, dims) or kernel
    local mean = mh["avg_pool" .. dims .. "d"](v.input:pow(v.norm_type), kernel, stride, 0, v.ceil_mode)
    return (mean * product(kernel)):pow(1 / v.norm_type)
  end)
end

--- The shape of space before max pooling, or `given` if pooling could have come from it.
local function unpooled_size(op, v, dims, kernel, stride, padding)
  local shape, given, size = v.input.shape, v.output_size and arguments.counts(op, "output_size", v.output_size), {}
  if given and #given > dims then given = {table.unpack(given, #given - dims + 1)} end
  if given and #given ~= dims then fail(("%s: output_size has %d numbers, expected %d"):format(op, #given, dims)) end
  for d = 1, dims do
    local default = (shape[#shape - dims + d] - 1) * stride[d] - 2 * padding[d] + kernel[d]
    size[d] = given and given[d] or default
    if math.abs(size[d] - default) >= stride[d] and size[d] ~= default then
      fail(("%s: output_size %d along dimension %d cannot be, the range is %d to %d"):format(op, size[d], d - 1,
        default - stride[d] + 1, default + stride[d] - 1))
    end
  end
  return size
end

for dims = 1, 3 do
  --- mh.max_unpool1d(input, indices, kernel_size, {stride = nil, padding = 0, output_size = nil}) -> Tensor
  --- mh.max_unpool2d(input, indices, kernel_size, {stride = nil, padding = 0, output_size = nil}) -> Tensor
  --- mh.max_unpool3d(input, indices, kernel_size, {stride = nil, padding = 0, output_size = nil}) -> Tensor
  ---   Puts the values of a max pooling back where they were, with zeros elsewhere.
  ---   input       Tensor      [batch, channels, space...]
  ---   indices     Tensor      int64, of the pooling, the shape of input
  ---   kernel_size   integer|{integer}   of the pooling
  ---   stride      integer|{integer}?   of the pooling; nil for kernel_size
  ---   padding     integer|{integer}   of the pooling
  ---   output_size   {integer}?   size of the result, where several are possible
  ---   returns     Tensor      [batch, channels, space...]
  ---   collective  over the mesh of an input whose space is cut
  ---   errors      ValueError: a size that the pooling cannot have come from
  ---   example
  ---     local values, indices = mh.max_pool1d_with_indices(mh.arange(4):float():reshape{1, 1, 4}, 2)
  ---     mh.max_unpool1d(values, indices, 2):tolist()    --> {{{0.0, 1.0, 0.0, 3.0}}}

  define("max_unpool" .. dims .. "d",
    {"input", "indices", "kernel_size", optional "stride", {"padding", 0}, optional "output_size"}, function(v, op)
    local kernel, padding = tuple(op, "kernel_size", v.kernel_size, dims), tuple(op, "padding", v.padding, dims)
    local stride = v.stride and tuple(op, "stride", v.stride, dims) or kernel
    local size = unpooled_size(op, v, dims, kernel, stride, padding)
    if dims == 3 then return aten.max_unpool3d(v.input, v.indices, size, stride, padding) end
    if dims == 2 then return aten.max_unpool2d(v.input, v.indices, size) end
    return aten.max_unpool2d(v.input:unsqueeze(-1), v.indices:unsqueeze(-1), {size[1], 1}):squeeze(-1)
  end)
end

for dims = 2, 3 do
  --- mh.fractional_max_pool2d(input, kernel_size, {output_size = nil, output_ratio = nil, return_indices = false,
  ---     random_samples = nil}) -> Tensor
  --- mh.fractional_max_pool3d(input, kernel_size, {output_size = nil, output_ratio = nil, return_indices = false,
  ---     random_samples = nil}) -> Tensor
  ---   The largest value of windows that start at random places (Graham, "Fractional max-pooling", 2014).
  ---   input       Tensor      [batch, channels, space...]
  ---   kernel_size   integer|{integer}   size of the window
  ---   output_size   integer|{integer}?   size of the result; this or output_ratio
  ---   output_ratio   number|{number}?   size of the result as a part of that of the input
  ---   return_indices   boolean   a second result says where in space the values were, int64
  ---   random_samples   Tensor?   [batch, channels, dims] from 0 to 1, in place of random numbers
  ---   returns     Tensor      [batch, channels, space...]
  ---   collective  over the mesh of a cut input
  ---   errors      ValueError: both or neither of output_size and output_ratio
  ---   example
  ---     mh.fractional_max_pool2d(mh.randn{1, 2, 7, 7}, 2, {output_size = 3}).shape    --> {1, 2, 3, 3}
  define("fractional_max_pool" .. dims .. "d", {"input", "kernel_size", optional "output_size", optional "output_ratio",
    {"return_indices", false}, optional "random_samples"}, function(v, op)
    local x, shape = v.input, v.input.shape
    if (v.output_size == nil) == (v.output_ratio == nil) then
      fail(op .. ": give either output_size or output_ratio")
    end
    if #shape ~= dims + 1 and #shape ~= dims + 2 then
      fail(("%s: the input has %d dimensions, expected %d or %d"):format(op, #shape, dims + 1, dims + 2))
    end
    local size = v.output_size and tuple(op, "output_size", v.output_size, dims)
    if not size then
      local ratio = tuple(op, "output_ratio", v.output_ratio, dims)
      size = {}
      for d = 1, dims do
        if ratio[d] <= 0 or ratio[d] >= 1 then
          fail(op .. ": output_ratio is " .. ratio[d] .. ", expected more than 0 and less than 1")
        end
        size[d] = math.floor(shape[#shape - dims + d] * ratio[d])
      end
    end
    local batch = #shape == dims + 2 and shape[1] or 1
    local samples = v.random_samples or mh.rand({batch, shape[#shape - dims], dims},
        {dtype = x.dtype, device = x.device})
    local values, indices = aten["fractional_max_pool" .. dims .. "d"](x, tuple(op, "kernel_size", v.kernel_size, dims),
        size, samples)
    if v.return_indices then return values, indices end
    return values
  end)
end

-- ---- Neighbouring channels, sliding blocks ------------------------------------------------------------------------

--- mh.local_response_norm(input, size, {alpha = 1e-4, beta = 0.75, k = 1.0}) -> Tensor
---   Divides by (k + alpha * mean of the squares of `size` neighbouring channels)^beta.
---   input       Tensor      [batch, channels, space...]
---   size        integer     number of channels
---   alpha       number      factor of the mean
---   beta        number      exponent
---   k           number      added to the mean
---   returns     Tensor      the shape of input
---   collective  over the mesh of an input whose channels are cut
---   example
---     mh.local_response_norm(mh.zeros{1, 4, 5}, 3):sum():item()    --> 0.0
define("local_response_norm", {"input", "size", {"alpha", 1e-4}, {"beta", 0.75}, {"k", 1.0}}, function(v, op)
  local x, size = v.input, arguments.count(op, "size", v.size, 1)
  if x.ndim < 3 then fail(op .. ": the input has " .. x.ndim .. " dimensions, expected 3 or more") end
  local squares, before, after = x:square():unsqueeze(1), size // 2, (size - 1) // 2
  local mean
  if x.ndim == 3 then
    mean = mh.avg_pool2d(mh.pad(squares, {0, 0, before, after}), {size, 1}, 1)
  else
    local kept = squares.shape
    if x.ndim > 4 then squares = squares:flatten(4) end
    mean = mh.avg_pool3d(mh.pad(squares, {0, 0, 0, 0, before, after}), {size, 1, 1}, 1)
    if x.ndim > 4 then mean = mean:reshape(kept) end
  end
  return x / (mean:squeeze(1) * v.alpha + v.k):pow(v.beta)
end)

local kBlocks = {{"dilation", 1}, {"padding", 0}, {"stride", 1}}

--- mh.functional.unfold(input, kernel_size, {dilation = 1, padding = 0, stride = 1}) -> Tensor
---   The sliding blocks of a field. (mh.unfold is the operator along one dim.)
---   input       Tensor      [batch, channels, rows, columns]
---   kernel_size   integer|{integer}   size of a block
---   dilation    integer|{integer}   distance between the elements of a block
---   padding     integer|{integer}   zeros added on both sides
---   stride      integer|{integer}   distance between blocks
---   returns     Tensor      [batch, channels * block, positions]
---   collective  over the mesh of an input whose space is cut
---   example
---     mh.functional.unfold(mh.ones{1, 3, 4, 5}, 2).shape    --> {1, 12, 12}
define("unfold", {"input", "kernel_size", table.unpack(kBlocks)}, function(v, op)
  local two = {}
  for name, least in pairs {kernel_size = 1, dilation = 1, padding = 0, stride = 1} do
    two[name] = tuple(op, name, v[name], 2)
    for _, one in ipairs(two[name]) do arguments.count(op, name, one, least) end
  end
  return aten.im2col(v.input, two.kernel_size, two.dilation, two.padding, two.stride)
end)

--- mh.fold(input, output_size, kernel_size, {dilation = 1, padding = 0, stride = 1}) -> Tensor
---   Adds sliding blocks up where they were taken from: the adjoint of mh.functional.unfold.
---   input       Tensor      [batch, channels * block, positions]
---   output_size   integer|{integer}   rows and columns of the result
---   kernel_size   integer|{integer}   size of a block
---   dilation    integer|{integer}   distance between the elements of a block
---   padding     integer|{integer}   rows removed on both sides
---   stride      integer|{integer}   distance between blocks
---   returns     Tensor      [batch, channels, rows, columns]
---   collective  over the mesh of an input whose blocks or positions are cut
---   example
---     mh.fold(mh.ones{1, 12, 12}, {4, 5}, 2).shape    --> {1, 3, 4, 5}
define("fold", {"input", "output_size", "kernel_size", table.unpack(kBlocks)}, function(v, op)
  return aten.col2im(v.input, tuple(op, "output_size", v.output_size, 2), tuple(op, "kernel_size", v.kernel_size, 2),
    tuple(op, "dilation", v.dilation, 2), tuple(op, "padding", v.padding, 2), tuple(op, "stride", v.stride, 2))
end)

return W
