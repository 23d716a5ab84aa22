-- SPDX-License-Identifier: Apache-2.0
-- Describes a divided module, as strings that are the same on every rank.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local parallelize = require "moonhalo.internal.parallelize"

local report = {}

local function check(op, net)
  arguments.module("plan." .. op, net)
end

--- "dp: Replicate(), tp: Shard(0, {3, 2, 2})", or "plain".
local function place(tensor)
  if not tensor:is_shard_tensor() then return "plain" end
  local names, parts = tensor.mesh.names, {}
  for i, placement in ipairs(tensor.placements) do
    parts[i] = ("%s: %s"):format(names[i] or i - 1, tostring(placement))
  end
  return table.concat(parts, ", ")
end

local function row(name, tensor, remark)
  return {name, "[" .. table.concat(tensor.shape, ", ") .. "]", tensor.dtype, place(tensor) .. (remark or "")}
end

--- Columns of equal width, two spaces between.
local function aligned(rows)
  local widths, lines = {}, {}
  for _, cells in ipairs(rows) do
    for i, cell in ipairs(cells) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  for i, cells in ipairs(rows) do
    local padded = {}
    for j, cell in ipairs(cells) do padded[j] = cell .. (" "):rep(widths[j] - #cell) end
    lines[i] = "  " .. table.concat(padded, "  "):gsub(" +$", "")
  end
  return lines
end

local function text(title, rows)
  local lines = aligned(rows)
  table.insert(lines, 1, title)
  return table.concat(lines, "\n")
end

--- mh.plan.repr_params(net) -> string
---   Every parameter and buffer: name, global shape, dtype, and how each mesh dim divides it.
---   net         Module      a divided module, or a plain one
---   returns     string      the same on all ranks
---   collective  no
---   errors      ValueError: not a module
---   example
---     mh.plan.repr_params(nn.Linear(2, 3)):match("^[^\n]*")    --> Linear: 2 parameters of 9 numbers
function report.repr_params(net)
  check("repr_params", net)
  local rows, count = {}, 0
  for name, parameter in net:named_parameters() do
    rows[#rows + 1] = row(name, parameter, parameter.requires_grad and "" or " (frozen)")
    count = count + parameter:numel()
  end
  local title = ("%s: %d parameters of %d numbers"):format(net:class_name(), #rows, count)
  for name, buffer in net:named_buffers() do rows[#rows + 1] = row(name, buffer, " (buffer)") end
  return text(title, rows)
end

--- mh.plan.list_grad_sync(net) -> string
---   The gradients that are sums still to be made, by mh.finish_grad_sync or the optimizer's step; a second result is
---   the list of their names.
---   net         Module      after backward
---   returns     string      the same on all ranks
---   collective  no
---   errors      ValueError: not a module
---   example
---     mh.plan.list_grad_sync(nn.Linear(2, 3)):match("^[^\n]*")    --> Linear: 0 of 0 gradients are to be summed
function report.list_grad_sync(net)
  check("list_grad_sync", net)
  local rows, names, have = {}, {}, 0
  for name, parameter in net:named_parameters() do
    local gradient = parameter.grad
    if gradient then
      have = have + 1
      local partial = false
      for _, placement in ipairs(gradient:is_shard_tensor() and gradient.placements or {}) do
        partial = partial or placement:is_partial()
      end
      if partial then rows[#rows + 1], names[#names + 1] = row(name, gradient), name end
    end
  end
  return text(("%s: %d of %d gradients are to be summed"):format(net:class_name(), #rows, have), rows), names
end

--- mh.plan.dump(net) -> string
---   What mh.parallelize_module understood of the plan: the mesh, and a plan without patterns and styles, which
---   mh.plan.load reads. What it does not name is replicated.
---   net         Module      a divided module
---   returns     string      the same on all ranks
---   collective  no
---   errors      ValueError: not a module
---   example
---     mh.plan.dump(nn.Linear(2, 3))    --> Linear was not divided by a plan
function report.dump(net)
  check("dump", net)
  local parts = {}
  for name, module in net:named_modules() do
    local done = parallelize.done(module)
    if done then
      parts[#parts + 1] = ("%s (%s) on %s\n%s"):format(name == "" and "the module" or "'" .. name .. "'",
        module:class_name(), tostring(done.mesh), tostring(done.plan))
      for _, styled in ipairs(done.custom) do
        parts[#parts] = parts[#parts] .. ("\n'%s' has a style of its own"):format(styled)
      end
    end
  end
  if #parts == 0 then return net:class_name() .. " was not divided by a plan" end
  return table.concat(parts, "\n")
end

return report
