-- SPDX-License-Identifier: Apache-2.0
-- Functions of torch and methods of its tensors that are not operators.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail, optional = mh.fail, arguments.optional
local functions, methods = {}, {}

--- Values, or a tensor, as a tensor of a dtype and device.
local function converted(op, data, dtype, device)
  mh._check_place(op, {dtype = dtype, device = device})
  if not mh.is_tensor(data) then
    if type(data) ~= "number" and type(data) ~= "boolean" and (type(data) ~= "table" or getmetatable(data)) then
      fail(("%s: expected numbers or a tensor, got %s"):format(op, mh._describe(data)))
    end
    return mh.tensor(data, {dtype = dtype, device = device})
  end
  if dtype == nil and device == nil then return data end
  return data:to{dtype = dtype, device = device}
end

local kAsTensor = arguments.signature("as_tensor", {"data", optional "dtype", optional "device"})

--- mh.as_tensor(data, {dtype = nil, device = nil}) -> Tensor
---   A tensor of the values; a tensor itself where nothing changes, which is the difference from mh.tensor.
---   data        number|boolean|table|Tensor   nested lists give the dims
---   dtype       string?     of the result
---   device      string?     of the result
---   returns     Tensor      data itself where it is a tensor with that dtype and device
---   collective  no
---   errors      TypeError: neither numbers nor a tensor
---   example
---     local x = mh.ones{2}
---     mh.as_tensor(x):is_same(x), mh.as_tensor{1, 2}.shape    --> true  {2}
function functions.as_tensor(...)
  local v = arguments.read(kAsTensor, ...)
  return converted("as_tensor", v.data, v.dtype, v.device)
end

local kAsArray = arguments.signature("asarray", {"data", optional "dtype", optional "device", {"copy", false},
  {"requires_grad", false}})

--- mh.asarray(data, {dtype = nil, device = nil, copy = false, requires_grad = false}) -> Tensor
---   As mh.as_tensor, and a tensor is detached from the record of gradients.
---   data        number|boolean|table|Tensor   nested lists give the dims
---   dtype       string?     of the result
---   device      string?     of the result
---   copy        boolean     never shares memory with data
---   requires_grad   boolean   whether backward computes its gradient
---   returns     Tensor      a leaf
---   collective  no
---   errors      TypeError: neither numbers nor a tensor
---   example
---     mh.asarray({1.5, 2.5}, {requires_grad = true}).requires_grad    --> true
function functions.asarray(...)
  local op = "asarray"
  local v = arguments.read(kAsArray, ...)
  arguments.flag(op, "copy", v.copy)
  arguments.flag(op, "requires_grad", v.requires_grad)
  local x = converted(op, v.data, v.dtype, v.device):detach()
  if v.copy then x = x:clone() end
  if v.requires_grad and not (x:is_floating_point() or x:is_complex()) then
    fail(("%s: %s cannot require a gradient\n  fix   give dtype = \"float32\""):format(op, mh._describe(x)))
  end
  return x:requires_grad_(v.requires_grad)
end

local kShape = getmetatable(mh.empty({1}, {device = "meta"}).shape)

local function sizes(op, name, list, least)
  local meta = getmetatable(list)
  local good = type(list) == "table" and (meta == nil or meta == kShape)
  for i = 1, good and #list or 0 do good = good and math.type(list[i]) == "integer" and list[i] >= least end
  for key in pairs(good and meta == nil and list or {}) do good = good and math.type(key) == "integer" end
  if not good then
    fail(("%s: %s is %s, expected a list of integers of at least %d"):format(op, name, mh._describe(list), least))
  end
  return list
end

--- mh.broadcast_shapes(...) -> {integer}
---   The shape to which shapes are broadcast together: mh.broadcast_shapes({2, 1}, {3}).
---   returns     {integer}   sizes
---   collective  no
---   errors      ValueError: sizes that differ and are not 1
---   example
---     mh.broadcast_shapes({2, 1}, {3})    --> {2, 3}
function functions.broadcast_shapes(...)
  local op, shapes, dims = "broadcast_shapes", table.pack(...), 0
  for i = 1, shapes.n do dims = math.max(dims, #sizes(op, "shape " .. i, shapes[i], 0)) end
  local result = {}
  for d = 1, dims do
    result[d] = 1
    for i = 1, shapes.n do
      local at = #shapes[i] - dims + d
      local size = at > 0 and shapes[i][at] or 1
      if size ~= 1 and result[d] ~= 1 and size ~= result[d] then
        fail(("%s: sizes %d and %d of dim %d differ\n  have  shape %d, {%s}"):format(op, result[d], size, d - dims - 1,
            i, table.concat(shapes[i], ", ")))
      end
      if size ~= 1 then result[d] = size end
    end
  end
  return result
end

--- mh.unravel_index(indices, shape) -> Tensor
---   Where in a tensor of a shape the elements are that its flat form has at `indices`: one result for each dim.
---   indices     Tensor      integers, from 0; negative ones count from the end
---   shape       {integer}   of the tensor
---   returns     Tensor      one result for each dim, not a list, with the shape and the cut of indices
---   collective  over the mesh of cut indices, to check them
---   errors      IndexError: an index beyond the tensor
---   example
---     local rows, columns = mh.unravel_index(mh.tensor{4, 0}, {2, 3})
---     rows:tolist(), columns:tolist()    --> {1, 0}  {1, 0}
function functions.unravel_index(indices, shape)
  local op = "unravel_index"
  arguments.tensor(op, "indices", indices)
  if indices:is_floating_point() or indices:is_complex() or indices.dtype == "bool" then
    fail(("%s: indices are %s, expected integers"):format(op, mh._describe(indices)))
  end
  sizes(op, "shape", shape, 0)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local beyond = indices:numel() > 0 and mh.logical_or(indices:ge(count), indices:lt(-count)):any():item()
  if beyond and mh.backend() ~= "fake" then
    fail(("%s: an index is beyond the %d elements of {%s}"):format(op, count, table.concat(shape, ", ")))
  end
  local results, step = {}, 1
  local from_zero = mh.where(indices:lt(0), indices + count, indices)
  for d = #shape, 1, -1 do
    results[d] = from_zero:floor_divide(step):remainder(shape[d])
    step = step * shape[d]
  end
  return table.unpack(results, 1, #shape)
end

local kUnique = arguments.signature("unique", {"input", {"sorted", true}, {"return_inverse", false},
  {"return_counts", false}, optional "dim"})

--- mh.unique(input, {sorted = true, return_inverse = false, return_counts = false, dim = nil}) -> Tensor
--- x:unique({sorted = true, return_inverse = false, return_counts = false, dim = nil}) -> Tensor
---   The values that a tensor has, each once; with dim the slices along it. A cut tensor is gathered: how many values
---   there are depends on all ranks.
---   input       Tensor      any shape
---   sorted      boolean     in ascending order (always the case on CPUs)
---   return_inverse   boolean   a further result: which value each element is
---   return_counts   boolean   a further result: how often each value is there
---   dim         integer?    nil for single elements
---   returns     Tensor      plain, [n], or with dim the shape of input with n slices; then inverse and counts, int64
---   collective  over the mesh of a cut tensor
---   errors      ValueError: no such dim
---   example
---     local values, counts = mh.unique(mh.tensor{3, 1, 3}, {return_counts = true})
---     values:tolist(), counts:tolist()    --> {1, 3}  {1, 2}
function functions.unique(...)
  local op = "unique"
  local v = arguments.read(kUnique, ...)
  local x = arguments.tensor(op, "input", v.input):full_tensor()
  for _, name in ipairs {"sorted", "return_inverse", "return_counts"} do arguments.flag(op, name, v[name]) end
  local values, inverse, counts
  if v.dim == nil then
    values, inverse, counts = mh._unique2(x, v.sorted, v.return_inverse, v.return_counts)
  else
    if math.type(v.dim) ~= "integer" or v.dim < -x.ndim or v.dim >= x.ndim then
      fail(("%s: dim is %s, expected a dim of a tensor of %d dims"):format(op, mh._describe(v.dim), x.ndim))
    end
    values, inverse, counts = mh.unique_dim(x, v.dim, v.sorted, v.return_inverse, v.return_counts)
  end
  local more = {}
  if v.return_inverse then more[1] = inverse end
  if v.return_counts then more[#more + 1] = counts end
  return values, table.unpack(more)
end
methods.unique = functions.unique

--- mh.numel(input) -> integer
---   The number of elements; of a ShardTensor that of the global tensor.
---   input       Tensor      any shape
---   returns     integer     as input:numel()
---   collective  no
---   errors      TypeError: not a tensor
---   example
---     mh.numel(mh.zeros{2, 3})    --> 6
function functions.numel(input) return arguments.tensor("numel", "input", input):numel() end

--- mh.get_default_device() -> string
---   The device of the run, on which tensors are made: the same as mh.device().
---   returns     string      such as "cpu"
---   collective  no
---   example
---     mh.get_default_device() == mh.device()    --> true
function functions.get_default_device() return mh.device() end

--- mh.seed_everything(seed) -> integer
---   Restarts all random numbers of a run: those of tensors, of math.random, and of the orders of samples that loaders
---   with seed = mh.initial_seed() draw. The same as mh.manual_seed, and it returns the seed.
---   seed        integer     any number; the same on all ranks
---   returns     integer     the seed
---   collective  no, but all ranks must give the same
---   errors      TypeError: the seed is not an integer
---   example
---     local a = mh.seed_everything(5), mh.rand{2}
---     a, mh.initial_seed()    --> 5  5
function functions.seed_everything(seed)
  if math.type(seed) ~= "integer" then
    fail(("seed_everything: the seed is %s, expected an integer"):format(mh._describe(seed)))
  end
  mh.manual_seed(seed)
  return seed
end

-- ---- Methods ------------------------------------------------------------------------------------------------------

local kNew = arguments.signature("new_tensor", {"self", "data", optional "dtype", optional "device",
  {"requires_grad", false}})

--- x:new_tensor(data, {dtype = nil, device = nil, requires_grad = false}) -> Tensor
---   A plain tensor with a copy of the values, and dtype and device of x.
---   data        number|boolean|table|Tensor   nested lists give the dims
---   dtype       string?     nil for that of x
---   device      string?     nil for that of x
---   requires_grad   boolean   whether backward computes its gradient
---   returns     Tensor      plain, the same on all ranks if the values are
---   collective  no
---   errors      ValueError: lists of different lengths
---   example
---     mh.zeros({2}, {dtype = "float64"}):new_tensor{1, 2}.dtype    --> float64
function methods.new_tensor(...)
  local v = arguments.read(kNew, ...)
  arguments.tensor("new_tensor", "self", v.self)
  arguments.flag("new_tensor", "requires_grad", v.requires_grad)
  local x = converted("new_tensor", v.data, v.dtype or v.self.dtype, v.device or v.self.device)
  return x:detach():clone():requires_grad_(v.requires_grad)
end

--- x:type(dtype = nil) -> string|Tensor
---   The name of the dtype, or the tensor as another one: x:type() is x.dtype, x:type("float64") is x:to("float64").
---   dtype       string?     of the result
---   returns     string|Tensor   x itself if it has that dtype
---   collective  no
---   errors      ValueError: an unknown dtype
---   example
---     mh.arange(3):type(), mh.arange(3):type("float64").dtype    --> int64  float64
function methods.type(x, dtype)
  arguments.tensor("type", "self", x)
  if dtype == nil then return x.dtype end
  mh._check_place("type", {dtype = arguments.text("type", "dtype", dtype)})
  return x:to(dtype)
end

return {functions = functions, methods = methods}
