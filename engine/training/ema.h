// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moonhalo/engine/model/module_tree.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace moonhalo {

/// Settings of Ema.
struct EmaOptions {
  /// The part of an average that an update keeps.
  double decay = 0.999;
  /// The n-th update, from 0, takes at most (1 + n) / (10 + n) as its decay, so that the first values are soon
  /// forgotten.
  bool warmup = false;
};

/// The exponential moving average of a module's parameters, placed as they are. Make it after parallelize_module and
/// update it after the optimizer's step:
///
///     mh::Ema ema(*net);
///     for (...) { ...; optimizer.step(); ema.update(*net); }
///     ema.swap(*net);  evaluate(net);  ema.swap(*net);
///
/// Buffers are copied, not averaged. Averages of float16 and bfloat16 are float32. Not collective. Functions throw
/// ValueError if the module has other names than the averaged one, or was placed since.
class Ema {
 public:
  explicit Ema(const ModuleTreePtr& module, const EmaOptions& options = {});
  explicit Ema(torch::nn::Module& module, const EmaOptions& options = {});

  /// One step of the averages towards the module's parameters.
  void update(const ModuleTreePtr& module);
  void update(torch::nn::Module& module);
  /// Copies the averages into `module`, which has the names of the averaged one.
  void apply_to(const ModuleTreePtr& module) const;
  void apply_to(torch::nn::Module& module) const;
  /// Puts the averages into the module, for an evaluation or a file. The next call brings the trained values back.
  void swap(const ModuleTreePtr& module);
  void swap(torch::nn::Module& module);

  /// The averages by name, and the number of updates: the state, for checkpoints. Load into these tensors in place.
  const std::vector<NamedTensor>& averages() const { return averages_; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  std::vector<at::Tensor> targets(const char* op, const ModuleTreePtr& module) const;

  EmaOptions options_;
  std::vector<NamedTensor> averages_;
  std::vector<at::Tensor> trained_;  // while the averages are in the module
  int64_t updates_ = 0;
};

}  // namespace moonhalo
