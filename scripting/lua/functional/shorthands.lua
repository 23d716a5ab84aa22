-- SPDX-License-Identifier: Apache-2.0
-- The part of mh.functional with other names of operators, and formulas of one line.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local optional = arguments.optional

local function real(op, x)
  if not (x:is_floating_point() or x:is_complex()) then
    fail(("%s: input is %s, expected floating-point numbers\n  fix   input:float()"):format(op, mh._describe(x)))
  end
  return x
end

local function activations(define)
  --- mh.logsigmoid(input) -> Tensor
  --- mh.softsign(input) -> Tensor
  --- mh.tanhshrink(input) -> Tensor
  ---   The logarithm of the sigmoid, x / (1 + |x|), and x - tanh(x), of each element.
  ---   input       Tensor      floating point
  ---   returns     Tensor      shape and placements of input
  ---   collective  no
  ---   errors      ValueError: a tensor of integers
  ---   example
  ---     mh.softsign(mh.tensor{-1.0, 3.0}):tolist()    --> {-0.5, 0.75}
  define("logsigmoid", {"input"}, function(v, op) return mh.log_sigmoid(real(op, v.input)) end)
  define("softsign", {"input"}, function(v, op) return real(op, v.input) / (v.input:abs() + 1) end)
  define("tanhshrink", {"input"}, function(v, op) return real(op, v.input) - v.input:tanh() end)

  --- mh.softmin(input, dim, dtype = nil) -> Tensor
  ---   The softmax of -input along a dim.
  ---   input       Tensor      floating point
  ---   dim         integer     along which the results add up to 1
  ---   dtype       string?     of the result
  ---   returns     Tensor      the shape of input
  ---   collective  over the mesh of an input that is cut along the dim
  ---   errors      ValueError: a tensor of integers
  ---   example
  ---     mh.softmin(mh.zeros{1, 4}, 1):tolist()    --> {{0.25, 0.25, 0.25, 0.25}}
  define("softmin", {"input", "dim", optional "dtype"}, function(v, op)
    if math.type(v.dim) ~= "integer" then
      fail(("%s: dim is %s, expected an integer"):format(op, mh._describe(v.dim)))
    end
    if v.dtype ~= nil then arguments.text(op, "dtype", v.dtype) end
    local x = v.dtype and v.input:to(v.dtype) or v.input
    return mh.softmax(-real(op, x), v.dim)
  end)
end

local function interpolations(define, F)
  --- mh.upsample(input, {size = nil, scale_factor = nil, mode = "nearest", align_corners = nil}) -> Tensor
  --- mh.upsample_nearest(input, {size = nil, scale_factor = nil}) -> Tensor
  --- mh.upsample_bilinear(input, {size = nil, scale_factor = nil}) -> Tensor
  ---   Older names of mh.interpolate; the bilinear one aligns corners.
  ---   input       Tensor      [batch, channels, space...]
  ---   size        integer|{integer}?   size of the result; this or scale_factor
  ---   scale_factor   number|{number}?   factor for each dim of space
  ---   mode        string      as of mh.interpolate
  ---   align_corners   boolean?   as of mh.interpolate
  ---   returns     Tensor      [batch, channels, space...]
  ---   collective  over the mesh of an input whose space is cut
  ---   errors      ValueError: both or neither of size and scale_factor
  ---   example
  ---     mh.upsample_nearest(mh.ones{1, 2, 3, 4}, {scale_factor = 2}).shape    --> {1, 2, 6, 8}
  local function interpolated(op, v, mode, align)
    if v.input.ndim < 3 then
      fail(("%s: input is %s, expected [batch, channels, space...]"):format(op, mh._describe(v.input)))
    end
    if (v.size == nil) == (v.scale_factor == nil) then fail(op .. ": give either size or scale_factor") end
    return F.interpolate(v.input, {size = v.size, scale_factor = v.scale_factor, mode = mode, align_corners = align})
  end
  define("upsample", {"input", optional "size", optional "scale_factor", {"mode", "nearest"}, optional "align_corners"},
    function(v, op) return interpolated(op, v, v.mode, v.align_corners) end)
  define("upsample_nearest", {"input", optional "size", optional "scale_factor"},
    function(v, op) return interpolated(op, v, "nearest") end)
  define("upsample_bilinear", {"input", optional "size", optional "scale_factor"},
    function(v, op) return interpolated(op, v, "bilinear", true) end)
end

local function grids(define)
  --- mh.affine_grid(theta, size, align_corners = false) -> Tensor
  ---   The positions at which mh.grid_sample reads an image that is moved by affine maps.
  ---   theta       Tensor      [batch, 2, 3], or [batch, 3, 4] in three dims
  ---   size        {integer}   of the image, {batch, channels, rows, columns}, or with depth in front of rows
  ---   align_corners   boolean   whether -1 and 1 are the centres of the outer pixels, not their outer edges
  ---   returns     Tensor      [batch, rows, columns, 2], or [batch, depth, rows, columns, 3]
  ---   collective  over the mesh of a cut theta
  ---   errors      ValueError: theta and size do not fit
  ---   example
  ---     local identity = mh.tensor{{{1.0, 0, 0}, {0, 1, 0}}}
  ---     mh.affine_grid(identity, {1, 1, 1, 2}):flatten():tolist()    --> {-0.5, 0.0, 0.5, 0.0}
  define("affine_grid", {"theta", "size", {"align_corners", false}}, function(v, op)
    arguments.flag(op, "align_corners", v.align_corners)
    real(op, v.theta)
    local good = type(v.size) == "table" and not getmetatable(v.size) and (#v.size == 4 or #v.size == 5)
    for _, one in ipairs(good and v.size or {}) do good = good and math.type(one) == "integer" and one > 0 end
    if not good then
      fail(("%s: size is %s, expected {batch, channels, rows, columns}"):format(op, mh._describe(v.size)))
    end
    local dims = #v.size - 2
    local wanted = table.concat({v.size[1], dims, dims + 1}, ", ")
    if table.concat(v.theta.shape, ", ") ~= wanted then
      fail(("%s: theta has shape [%s], expected [%s]"):format(op, table.concat(v.theta.shape, ", "), wanted))
    end
    return mh.affine_grid_generator(v.theta, v.size, v.align_corners)
  end)
end

local function poolings(define)
  for dims = 1, 3 do
    local name = "adaptive_max_pool" .. dims .. "d"
    --- mh.adaptive_max_pool1d_with_indices(input, output_size) -> Tensor, Tensor
    --- mh.adaptive_max_pool2d_with_indices(input, output_size) -> Tensor, Tensor
    --- mh.adaptive_max_pool3d_with_indices(input, output_size) -> Tensor, Tensor
    ---   Largest values of windows whose sizes are chosen so that the result has output_size.
    ---   input       Tensor      [batch, channels, space...]
    ---   output_size   integer|{integer}   size of the result
    ---   returns     Tensor      [batch, channels, space...]; a second result says where in space they were, int64
    ---   collective  over the mesh of an input whose space is cut
    ---   errors      ValueError: sizes below 1
    ---   example
    ---     local values, places = mh.adaptive_max_pool1d_with_indices(mh.tensor{{{1.0, 5.0, 2.0, 4.0}}}, 2)
    ---     values:tolist(), places:tolist()    --> {{{5.0, 4.0}}}  {{{1, 3}}}
    local op = mh[name]
    define(name .. "_with_indices", {"input", "output_size"}, function(v, what)
      local size = arguments.tuple(what, "output_size", v.output_size, dims)
      for _, one in ipairs(size) do arguments.count(what, "output_size", one, 1) end
      if v.input.ndim ~= dims + 1 and v.input.ndim ~= dims + 2 then
        fail(("%s: input is %s, expected [batch, channels, space...]"):format(what, mh._describe(v.input)))
      end
      return op(real(what, v.input), size)
    end)
  end
end

local function fractional_poolings(define, F)
  for dims = 2, 3 do
    local name = "fractional_max_pool" .. dims .. "d"
    --- mh.fractional_max_pool2d_with_indices(input, kernel_size, {output_size = nil, output_ratio = nil,
    ---     random_samples = nil}) -> Tensor, Tensor
    --- mh.fractional_max_pool3d_with_indices(input, kernel_size, {output_size = nil, output_ratio = nil,
    ---     random_samples = nil}) -> Tensor, Tensor
    ---   As mh.fractional_max_pool2d with return_indices.
    ---   input       Tensor      [batch, channels, space...]
    ---   kernel_size   integer|{integer}   size of the window
    ---   output_size   integer|{integer}?   size of the result; this or output_ratio
    ---   output_ratio   number|{number}?   size of the result as a part of that of the input
    ---   random_samples   Tensor?   [batch, channels, dims] from 0 to 1, in place of random numbers
    ---   returns     Tensor      [batch, channels, space...]; a second result says where in space they were, int64
    ---   collective  over the mesh of a cut input
    ---   errors      ValueError: both or neither of output_size and output_ratio
    ---   example
    ---     local _, places = mh.fractional_max_pool2d_with_indices(mh.randn{1, 2, 7, 7}, 2, {output_size = 3})
    ---     places.shape    --> {1, 2, 3, 3}
    define(name .. "_with_indices", {"input", "kernel_size", optional "output_size", optional "output_ratio",
      optional "random_samples"}, function(v, op)
      if (v.output_size == nil) == (v.output_ratio == nil) then
        fail(op .. ": give either output_size or output_ratio")
      end
      return F[name](v.input, {kernel_size = v.kernel_size, output_size = v.output_size, output_ratio = v.output_ratio,
        random_samples = v.random_samples, return_indices = true})
    end)
  end
end

--- `F`: mh.functional with the functions that these use.
return function(F)
  local define = arguments.definer(F, {input = true, theta = true})
  activations(define)
  interpolations(define, F)
  grids(define)
  poolings(define)
  fractional_poolings(define, F)
end
