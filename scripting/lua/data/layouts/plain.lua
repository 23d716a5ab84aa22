-- SPDX-License-Identifier: Apache-2.0
-- Any file of arrays. The first dim counts samples; dims without names are called as PyTorch's layers would have them:
-- [sample, width], [sample, height, width], [sample, channel, height, width], [sample, channel, depth, height, width].

local plain = {name = "plain"}

local kLast = {[2] = {"width"}, [3] = {"height", "width"}, [4] = {"channel", "height", "width"},
  [5] = {"channel", "depth", "height", "width"}}

function plain.matches() return true end

local function dims_of(dataset, axis)
  local dims, usual = {}, kLast[#dataset.shape] or {}
  for i, name in ipairs(dataset.dims) do
    dims[i] = name ~= "" and name or i == 1 and axis or usual[i - 1] or "dim_" .. i - 1
  end
  return dims
end

function plain.describe(file, options)
  local largest, datasets = nil, {}
  for _, path in ipairs(file:datasets()) do
    local dataset = file[path]
    if dataset.has_values and dataset.is_numeric and #dataset.shape > 0 then
      datasets[#datasets + 1] = dataset
      if not largest or #dataset.shape > #largest.shape then largest = dataset end
    end
  end
  local head = {trajectories = 1, join = "axis", coordinates = {}, fields = {}, steps = 1, space = options.space or {}}
  if not largest then return head end
  local first = largest.dims[1]
  head.axis = options.axis or (first ~= "" and first or "sample")
  head.steps = largest.shape[1]
  for _, dataset in ipairs(datasets) do
    -- A dataset of another length counts something else; it is no field of these samples.
    if dataset.shape[1] == head.steps then
      head.fields[dataset.name] = {datasets = {dataset.name}, dims = dims_of(dataset, head.axis), shape = dataset.shape,
        units = dataset.units ~= "" and dataset.units or nil}
    end
  end
  if not options.space then
    for _, dim in ipairs(head.fields[largest.name].dims) do
      if dim ~= head.axis and dim ~= "channel" then head.space[#head.space + 1] = dim end
    end
  end
  return head
end

return plain
