-- SPDX-License-Identifier: Apache-2.0
-- All tables that remember something of objects beyond a call. Their keys are weak: an entry goes with its object.

local function registry() return setmetatable({}, {__mode = "k"}) end

return {
  state_of_map = registry(),         -- ordered map -> its keys and values
  all_classes = registry(),          -- class of modules -> true
  all_instances = registry(),        -- module -> true
  inner_of_call = registry(),        -- function in the place of a forward -> that forward
  record_of_module = registry(),     -- module -> record of parallelize_module
  unit_of_module = registry(),       -- module -> {op, hooks of the outermost}, of fully_shard and replicate
  all_pipelines = registry(),        -- pipeline -> true
  builtin_styles = registry(),       -- style of parallelize_module -> true
  fields_of_config = registry(),     -- ComputeConfig -> its fields
  own_optimizers = registry(),       -- optimizer of build_optimizer -> true
  checked_fields = registry(),       -- object of a class with checks -> its fields whose values are checked
  rates_of_optimizer = registry(),   -- optimizer -> the rates that its schedules share
  names_of_list = registry(),        -- list of tensors in a checkpoint -> names in use
}
