-- SPDX-License-Identifier: Apache-2.0
-- mh.diagnostics: quantities of fields that are compared with theory: spectra, curl, energy, totals. All are
-- differentiable, and exact on blocks.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local fields = require "moonhalo.internal.field_values"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local diagnostics = {}
local define = arguments.definer(diagnostics, {x = true, u = true, v = true})

--- mh.diagnostics.power_spectrum(x, {dim = -1}) -> Tensor
---   One-sided power along a periodic dim: |rfft(x)|^2 / n^2, doubled where two wavenumbers share an entry. The sum
---   over
---   the wavenumbers is the mean of x^2.
---   x           Tensor   real, any shape
---   dim         integer  n elements, equally spaced
---   returns     Tensor   the shape of x with n // 2 + 1 wavenumbers (0, 1, ...) for dim
---   collective  where dim is cut: blocks of other dims are exchanged
---   errors      ValueError: x is complex
---   example
---     mh.diagnostics.power_spectrum(mh.tensor{1.0, -1.0, 1.0, -1.0}):tolist()    --> {0.0, 0.0, 1.0}
define("power_spectrum", {"x", {"dim", -1}}, function(v, op)
  local x = fields.real(op, "x", v.x)
  local dim = fields.dim(op, "dim", v.dim, x.ndim)
  local n = x:size(dim)
  if n == 0 then fail(op .. ": dim " .. dim .. " is empty") end
  local modes = mh.fft_rfft(x, mh.none, dim)
  local power = modes.real ^ 2 + modes.imag ^ 2
  local factors = mh.full({n // 2 + 1}, 2.0, {dtype = x.dtype, device = x.device})
  local shape = {}
  for d = 1, x.ndim do shape[d] = 1 end
  shape[dim + 1] = n // 2 + 1
  mh.no_grad(function()
    factors[0] = 1.0
    if n % 2 == 0 then factors[n // 2] = 1.0 end
  end)
  return power * (factors:reshape(shape) / (n * n))
end)

--- The shell of every mode: the wavenumber |k| rounded, and how many shells all modes fill.
local function shells_of(x, dims)
  local square
  for i, d in ipairs(dims) do
    local n = x:size(d)
    local k = mh.fft_fftfreq(n, 1.0 / n, {dtype = "float64", device = x.device})
    local shape = {}
    for j = 1, #dims do shape[j] = j == i and n or 1 end
    k = (k * k):reshape(shape)
    square = square and square + k or k
  end
  return (square:sqrt() + 0.5):long():flatten()
end

--- mh.diagnostics.radial_spectrum(x, {dims = {2, ...}, shells = nil}) -> Tensor
---   Isotropic power of a periodic field: |fftn(x)|^2 / N^2 summed over the modes whose |k| rounds to 0, 1, 2, ... With
---   all shells their sum is the mean of x^2. |k| counts waves in each dim, so dims are of the same length in space.
---   x           Tensor     real, {..., space ...}
---   dims        {integer}  dims of space, the last ones of x (all from 2 if left out)
---   shells      integer?   how many; if left out, up to the shortest dim's highest wavenumber, min(n) // 2 + 1
---   returns     Tensor     {..., shells}
---   collective  where a dim of space is cut. The sums over shells are then Partial
---   errors      ValueError: dims are not the last ones
---   example
---     local wave = mh.tensor{{1.0, -1.0}, {1.0, -1.0}}
---     mh.diagnostics.radial_spectrum(wave, {dims = {0, 1}}):tolist()    --> {0.0, 1.0}
define("radial_spectrum", {"x", arguments.optional "dims", arguments.optional "shells"}, function(v, op)
  local x = fields.real(op, "x", v.x)
  local dims = fields.space(op, x, v.dims)
  table.sort(dims)
  local count, least = 1, math.huge
  for i, d in ipairs(dims) do
    if d ~= x.ndim - #dims + i - 1 then
      fail(op .. ": dims are not the last ones\n  fix   move them to the end by x:movedim")
    end
    count, least = count * x:size(d), math.min(least, x:size(d))
  end
  if #dims == 0 or count == 0 then fail(op .. ": the field has no dim of space, or an empty one") end
  local shells = v.shells or least // 2 + 1
  arguments.count(op, "shells", shells, 1)
  local modes = mh.fft_fftn(x, mh.none, dims)
  local power = ((modes.real ^ 2 + modes.imag ^ 2) / (count * count)):flatten(x.ndim - #dims)
  local index = shells_of(x, dims)
  local all = math.max(shells, index:max():item() + 1)
  local shape = {table.unpack(power.shape)}
  shape[#shape] = all
  local sums = mh.zeros(shape, {dtype = x.dtype, device = x.device}):index_add(-1, index, power)
  return sums:narrow(-1, 0, shells)
end)

--- The components of a vector field: a list of tensors of one shape, as many as there are dims.
local function components(op, list, least, most)
  if type(list) ~= "table" or getmetatable(list) or #list < least or #list > most then
    fail(("%s: expected a list of %s components, got %s"):format(op, least == most and least or least .. " to " .. most,
        mh._describe(list)))
  end
  for i, one in ipairs(list) do
    fields.real(op, "component " .. i, one)
    fields.same_shape(op, list[1], one, {"component 1", "component " .. i})
  end
  return list
end

local function slopes(op, dims, options)
  local spacing = arguments.tuple(op, "spacing", options.spacing, #dims)
  return function(x, i)
    return mh.stencil(x, {dim = dims[i], derivative = 1, order = options.order, spacing = spacing[i],
      boundary = options.boundary})
  end
end

--- mh.diagnostics.curl(components, {dims, spacing = 1.0, order = 2, boundary = "circular"}) -> Tensor or list
---   Rotation of a vector field by finite differences: of {u, v} the vorticity dv/dx - du/dy, of {u, v, w} three
---   fields.
---   components  {Tensor}   u, v(, w) of one shape
---   dims        {integer}  the dims of x, y(, z); for {batch, y, x} they are {2, 1}
---   spacing     number or list   distance of neighbours in these dims
---   order, boundary        as in mh.stencil
---   returns     Tensor of that shape, or a list of three
---   collective  where a dim of space is cut: neighbouring rows are sent
---   errors      ValueError: the number of dims differs from that of components
---   example
---     local z = mh.zeros({4, 4})
---     mh.diagnostics.curl({z, z}, {dims = {1, 0}}):sum():item()    --> 0.0
define("curl", {"components", "dims", {"spacing", 1.0}, {"order", 2}, {"boundary", "circular"}}, function(v, op)
  local list = components(op, v.components, 2, 3)
  local dims = fields.dims(op, "dims", v.dims, list[1].ndim)
  if #dims ~= #list then fail(("%s: %d dims for %d components"):format(op, #dims, #list)) end
  local slope = slopes(op, dims, v)
  if #list == 2 then return slope(list[2], 1) - slope(list[1], 2) end
  return {slope(list[3], 2) - slope(list[2], 3), slope(list[1], 3) - slope(list[3], 1),
    slope(list[2], 1) - slope(list[1], 2)}
end)

--- mh.diagnostics.divergence(components, {dims, spacing = 1.0, order = 2, boundary = "circular"}) -> Tensor
---   Sum of the derivatives of each component along its dim, by finite differences.
---   components  {Tensor}   one for each of dims, of one shape
---   dims        {integer}  the dim of each
---   spacing     number|{number}   distance of neighbours, one or one for each dim
---   order       integer    of the finite differences, as of mh.stencil
---   boundary    string     what is beyond the domain, as of mh.stencil
---   returns     Tensor     of that shape
---   collective  where a dim of space is cut: neighbouring rows are sent
---   errors      ValueError: the number of dims differs from that of components
---   example
---     mh.diagnostics.divergence({mh.ones({4})}, {dims = {0}}):tolist()    --> {0.0, 0.0, 0.0, 0.0}
define("divergence", {"components", "dims", {"spacing", 1.0}, {"order", 2}, {"boundary", "circular"}}, function(v, op)
  local list = components(op, v.components, 1, 3)
  local dims = fields.dims(op, "dims", v.dims, list[1].ndim)
  if #dims ~= #list then fail(("%s: %d dims for %d components"):format(op, #dims, #list)) end
  local slope, total = slopes(op, dims, v), nil
  for i, one in ipairs(list) do
    local part = slope(one, i)
    total = total and total + part or part
  end
  return total
end)

--- Velocities [..., latitude, longitude] of a sphere: checked, cos(latitude) as [latitudes, 1], and the derivatives
--- along both.
local function sphere(op, v)
  local u, w = fields.real(op, "u", v.u), fields.real(op, "v", v.v)
  fields.same_shape(op, u, w, {"u", "v"})
  if u.ndim < 2 then fail(op .. ": the fields have no dims of latitude and longitude") end
  if not (arguments.number(op, "radius", v.radius) > 0) then
    fail(("%s: radius is %s, expected a number above 0"):format(op, v.radius))
  end
  local degrees = v.latitudes
  if type(degrees) == "table" and not getmetatable(degrees) then
    for i = 1, #degrees do arguments.number(op, "latitudes[" .. i .. "]", degrees[i]) end
    degrees = mh.tensor(degrees, {dtype = "float64"})
  end
  arguments.tensor(op, "latitudes", degrees)
  local n = u:size(-2)
  if degrees.ndim ~= 1 or degrees:numel() ~= n or n < 2 or degrees:is_complex() then
    fail(("%s: latitudes are %s, expected %d degrees, one for each row"):format(op, mh._describe(degrees), n))
  end
  degrees = degrees:full_tensor():double()
  local steps = degrees:diff()
  local step = steps:mean():item()
  local is_uneven = steps:sub(step):abs():max():item() > 1e-6 * math.abs(step)
  if (degrees:abs():max():item() > 90 - 1e-9 or is_uneven) and mh.backend() ~= "fake" then
    fail(op .. ": latitudes are equally spaced between the poles, which they do not contain\n" ..
      "  fix   leave out the rows at -90 and 90, and interpolate others to equal steps")
  end
  local cosines = mh.deg2rad(degrees):cos():unsqueeze(1):to(u.dtype)
  local function along(x) return mh.stencil(x, {dim = -1, order = v.order, spacing = 2 * math.pi / x:size(-1),
    boundary = "circular"}) end
  local function up(x) return mh.stencil(x, {dim = -2, order = v.order, spacing = math.rad(step)}) end
  return u, w, cosines, along, up
end

--- mh.diagnostics.sphere_curl(u, v, latitudes, {radius = 6.371e6, order = 2}) -> Tensor
--- mh.diagnostics.sphere_divergence(u, v, latitudes, {radius = 6.371e6, order = 2}) -> Tensor
---   The vertical component of the rotation, (dv/dlon - d(u cos lat)/dlat) / (r cos lat), and the divergence, (du/dlon
---   + d(v cos lat)/dlat) / (r cos lat), of a velocity on a sphere, by finite differences. All longitudes are there.
---   u, v        Tensor      velocities to the east and to the north [..., latitude, longitude]
---   latitudes   Tensor|{number}   degrees of the rows, equally spaced, without the poles
---   radius      number      of the sphere, in metres that of the earth
---   order       integer     order of the finite differences, as of mh.stencil; one-sided at the last rows
---   returns     Tensor      of that shape
---   collective  where a dim of space is cut: neighbouring rows are sent
---   errors      ValueError: latitudes that are not equally spaced, or a pole
---   example
---     local u = mh.deg2rad(mh.tensor{-45.0, 0.0, 45.0}):cos():unsqueeze(1):expand{3, 8}
---     mh.diagnostics.sphere_divergence(u, u * 0, {-45, 0, 45}):abs():max():item() < 1e-9    --> true
local kSphere = {"u", "v", "latitudes", {"radius", 6.371e6}, {"order", 2}}
define("sphere_curl", kSphere, function(v, op)
  local u, w, cosines, along, up = sphere(op, v)
  return (along(w) - up(u * cosines)) / (cosines * v.radius)
end)
define("sphere_divergence", kSphere, function(v, op)
  local u, w, cosines, along, up = sphere(op, v)
  return (along(u) + up(w * cosines)) / (cosines * v.radius)
end)

--- mh.diagnostics.kinetic_energy(components, {dims, weights = nil}) -> Tensor
---   Mean of (u^2 + v^2 + ...) / 2 over `dims`, per unit of mass.
---   components  {Tensor}   of one shape
---   dims        {integer}  dims of space
---   weights     Tensor?    of the cells, broadcast to the fields (mh.metrics.latitude_weights)
---   returns     Tensor     the shape of the fields without dims
---   collective  no; Partial where a dim of space is cut
---   errors      ValueError: components of different shapes
---   example
---     mh.diagnostics.kinetic_energy({mh.full({4}, 2.0)}, {dims = {0}}):item()    --> 2.0
define("kinetic_energy", {"components", "dims", arguments.optional "weights"}, function(v, op)
  local list = components(op, v.components, 1, 3)
  local dims = fields.dims(op, "dims", v.dims, list[1].ndim)
  fields.check_weights(op, list[1], v)
  local square
  for _, one in ipairs(list) do square = square and square + one * one or one * one end
  return fields.mean(square * 0.5, dims, v)
end)

--- mh.diagnostics.enstrophy(components, {dims, spacing = 1.0, order = 2, boundary = "circular",
---     weights = nil}) -> Tensor
---   Mean of curl^2 / 2 over `dims`, of the vector field {u, v} or {u, v, w}.
---   components, dims, spacing, order, boundary   as in curl
---   weights     Tensor?    of the cells
---   returns     Tensor     the shape of the fields without dims
---   collective  as curl; Partial where a dim of space is cut
---   errors      as curl
---   example
---     mh.diagnostics.enstrophy({mh.ones({4, 4}), mh.ones({4, 4})}, {dims = {1, 0}}):item()    --> 0.0
define("enstrophy", {"components", "dims", {"spacing", 1.0}, {"order", 2}, {"boundary", "circular"},
  arguments.optional "weights"}, function(v, op)
  local list = components(op, v.components, 2, 3)
  local rotation = diagnostics.curl(list, {dims = v.dims, spacing = v.spacing, order = v.order, boundary = v.boundary})
  fields.check_weights(op, list[1], v)
  if mh.is_tensor(rotation) then rotation = {rotation} end
  local square
  for _, one in ipairs(rotation) do square = square and square + one * one or one * one end
  return fields.mean(square * 0.5, fields.dims(op, "dims", v.dims, list[1].ndim), v)
end)

--- mh.diagnostics.total(x, {dims = {2, ...}, weights = nil}) -> Tensor
---   Integral of a field: the sum over `dims` of x times the weights of the cells.
---   x           Tensor     real
---   dims        {integer}  dims of space (all from 2 if left out)
---   weights     Tensor?    volumes of the cells, broadcast to x
---   returns     Tensor     the shape of x without dims
---   collective  no; Partial where a dim of space is cut
---   errors      ValueError: the weights do not broadcast to x
---   example
---     mh.diagnostics.total(mh.ones({3, 2}), {dims = {1}}):tolist()    --> {2.0, 2.0, 2.0}
define("total", {"x", arguments.optional "dims", arguments.optional "weights"}, function(v, op)
  local x = fields.real(op, "x", v.x)
  fields.check_weights(op, x, v)
  return fields.sum(x, fields.space(op, x, v.dims), v)
end)

for name, fn in pairs(diagnostics) do diagnostics[name] = mh._framed(fn) end

return strict.table("diagnostics", diagnostics)
