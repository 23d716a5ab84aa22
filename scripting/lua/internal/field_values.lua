-- SPDX-License-Identifier: Apache-2.0
-- What losses and metrics of fields share: which dims are of space, weights and masks, errors per sample.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local fields = {}

local function shape_text(x) return "[" .. table.concat(x.shape, ", ") .. "]" end
fields.shape_text = shape_text

--- `dim` from 0, of a field of `ndim` dims; it may count from the end.
function fields.dim(op, name, dim, ndim)
  if math.type(dim) ~= "integer" or dim < -ndim or dim >= ndim then
    fail(("%s: %s has %s, expected a dim between %d and %d"):format(op, name, mh._describe(dim), -ndim, ndim - 1))
  end
  return dim < 0 and dim + ndim or dim
end

--- A list of dims, each from 0 and once.
function fields.dims(op, name, dims, ndim)
  if type(dims) ~= "table" or getmetatable(dims) then
    fail(("%s: %s is %s, expected a list of dims"):format(op, name, mh._describe(dims)))
  end
  local list, seen = {}, {}
  for i, dim in ipairs(dims) do
    list[i] = fields.dim(op, name, dim, ndim)
    if seen[list[i]] then fail(("%s: %s has dim %d twice"):format(op, name, list[i])) end
    seen[list[i]] = true
  end
  return list
end

--- The dims of space of a field {batch, channel, space ...}: those that were given, or all from 2.
function fields.space(op, x, dims)
  if dims ~= nil then return fields.dims(op, "dims", dims, x.ndim) end
  if x.ndim < 3 then
    fail(("%s: the field has shape %s, expected {batch, channel, space ...}\n" ..
        "  fix   give the dims of space, {dims = {1}}"):format(op, shape_text(x)))
  end
  local list = {}
  for d = 2, x.ndim - 1 do list[#list + 1] = d end
  return list
end

--- Checks the options of windows that move over a field.
function fields.check_window(op, options)
  arguments.count(op, "window", options.window, 1)
  arguments.flag(op, "periodic", options.periodic)
  if options.window % 2 == 0 then fail(("%s: window is %d, expected an odd number"):format(op, options.window)) end
end

--- The dims of space of a field {batch, channel, space ...}, 1 to 3, none of which is shorter than the window.
function fields.dims_of_windows(op, x, window)
  if x.ndim < 3 or x.ndim > 5 then
    fail(("%s: the field has shape %s, expected {batch, channel, space ...} of 1 to 3 dims of space"):format(op,
        shape_text(x)))
  end
  local dims = {}
  for d = 2, x.ndim - 1 do
    dims[#dims + 1] = d
    if x:size(d) < window then
      fail(("%s: dim %d has %d elements, the window %d\n  fix   give a smaller window"):format(op, d, x:size(d),
          window))
    end
  end
  return dims
end

--- A tensor of real floating-point numbers.
function fields.real(op, name, x)
  arguments.tensor(op, name, x)
  if not x:is_floating_point() then
    fail(("%s: %s is %s, expected real floating-point numbers\n  fix   %s:double()"):format(op, name, mh._describe(x),
        name))
  end
  return x
end

function fields.same_shape(op, a, b, names)
  if table.concat(a.shape, ",") ~= table.concat(b.shape, ",") then
    fail(("%s: %s and %s have different shapes\n  have  %s and %s"):format(op, names[1], names[2], shape_text(a),
        shape_text(b)))
  end
end

--- `extra`, weights or a mask, must broadcast to the shape of `x` without growing it.
function fields.broadcasts(op, name, extra, x)
  if extra == nil then return end
  arguments.tensor(op, name, extra)
  local offset = x.ndim - extra.ndim
  local good = offset >= 0
  for d = 0, extra.ndim - 1 do
    good = good and (extra:size(d) == 1 or extra:size(d) == x:size(d + offset))
  end
  if not good then
    fail(("%s: %s of shape %s does not broadcast to the field\n  have  a field of shape %s\n" ..
        "  fix   give latitudes of {batch, channel, latitude, longitude} the shape {%s}"):format(op, name,
            shape_text(extra), shape_text(x), "n, 1"))
  end
end

function fields.check_weights(op, x, options)
  fields.broadcasts(op, "weights", options.weights, x)
  if options.weights then fields.real(op, "weights", options.weights) end
  fields.broadcasts(op, "mask", options.mask, x)
  if options.mask and options.mask.dtype ~= "bool" then
    fail(("%s: mask is %s, expected bool, true where elements count"):format(op, mh._describe(options.mask)))
  end
end

--- 0 where the mask is false: NaN under a mask must not reach a sum or a derivative.
function fields.masked(x, mask) return mask and mh.where(mask, x, mh.zeros({}, {dtype = x.dtype, device = x.device}))
  or x end

local function summed(x, dims) return #dims == 0 and x or x:sum{dim = dims} end

--- Sum of weights * x over `dims`; x is masked already.
function fields.sum(x, dims, options)
  if options.weights then x = x * options.weights:to(x.dtype) end
  return summed(x, dims)
end

--- Sum of the weights of the elements that count: a tensor, or a number where all count the same.
function fields.total(x, dims, options)
  if options.weights or options.mask then
    return fields.sum(fields.masked(mh.ones_like(x), options.mask), dims, options)
  end
  local count = 1
  for _, d in ipairs(dims) do count = count * x:size(d) end
  return count
end

--- Weighted mean over `dims`.
function fields.mean(x, dims, options) return fields.sum(x, dims, options) / fields.total(x, dims, options) end

--- mh.metrics.latitude_weights(latitudes) -> Tensor
---   Weights cos(latitude) / mean(cos(latitude)) for fields [..., latitude, longitude]: sizes of the cells of regular
---   latitudes, of mean 1.
---   latitudes   Tensor|{number}   degrees, from -90 to 90, [n]
---   returns     Tensor      [n, 1], float64
---   collective  no
---   errors      ValueError: a latitude is beyond the poles
---   example
---     mh.metrics.latitude_weights{-60, 0, 60}:flatten():tolist()    --> {0.75, 1.5, 0.75}
function fields.latitude_weights(latitudes)
  local op = "latitude_weights"
  if type(latitudes) == "table" and not getmetatable(latitudes) then
    for i = 1, math.max(1, #latitudes) do arguments.number(op, "latitudes[" .. i .. "]", latitudes[i]) end
    latitudes = mh.tensor(latitudes, {dtype = "float64"})
  end
  arguments.tensor(op, "latitudes", latitudes)
  if latitudes.ndim ~= 1 or latitudes:numel() == 0 or latitudes:is_complex() then
    fail(("%s: latitudes is %s, expected degrees, one dim"):format(op, mh._describe(latitudes)))
  end
  local degrees = latitudes:double()
  if degrees:abs():max():item() > 90.0001 then
    fail(op .. ": a latitude is beyond the poles\n  fix   give degrees from -90 to 90")
  end
  local cosines = mh.deg2rad(degrees):cos():clamp_min(0.0)
  return (cosines / cosines:mean()):unsqueeze(1)
end

return fields
