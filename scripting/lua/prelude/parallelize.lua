-- SPDX-License-Identifier: Apache-2.0
-- Puts functions about modules into `mh`; the files behind them are loaded at the first use.

local mh = ...

local kHomes = {
  {"internal.parallelize", "parallelize_module", "distribute_module", "finish_grad_sync", "expert_parallel"},
  {"policy.parallelize", "parallelize", "ComputeConfig", "broadcast_weights"},
  {"internal.sample_arguments", "constant", "local_batch", "split_samples"},
  {"internal.fully_shard", "fully_shard", "replicate", "build_optimizer"},
  {"internal.pipeline", "pipeline"},
  {"internal.patch", "patch"}, {"internal.rollout", "rollout"}, {"internal.pt", "load", "save_pt"},
  {"internal.grad_scaler", "GradScaler"}, {"internal.own_function", "Function", "gradcheck"},
  {"internal.training_tools", "summary", "find_lr", "checkpoint_modules"},
  {"internal.ema", "EMA"}, {"internal.memory", "memory"},
  {"internal.balance", "balance"},
  {"internal.accumulate", "accumulate"},
  {"internal.state_parts", "deduped_state_dict", "load_deduped_state_dict", "merge_state_dicts",
  "load_merged_state_dict"}, {"internal.registered_mesh", "set_mesh", "get_mesh", "has_mesh"},
}
rawset(mh, "cut_sizes", mh._framed(function(...) return require "moonhalo.data.cut_sizes"(...) end))
for _, home in ipairs(kHomes) do
  for _, name in ipairs {table.unpack(home, 2)} do
    rawset(mh, name, mh._framed(function(...) return require("moonhalo." .. home[1])[name](...) end))
  end
end
for _, name in ipairs {"ColwiseParallel", "RowwiseParallel", "PairwiseParallel", "SequenceParallel",
    "PrepareModuleInput", "PrepareModuleOutput"} do
  rawset(mh, name, mh._framed(function(...) return require("moonhalo.internal.parallel_styles").classes[name](...) end))
end
