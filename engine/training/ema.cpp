// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/ema.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/torch_module_tree.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

// A step of 1 - decay would be lost in types of two bytes.
at::Tensor first_average(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool two_bytes = dtype == at::kHalf || dtype == at::kBFloat16;
  return two_bytes ? tensor.detach().to(at::kFloat) : tensor.detach().clone();
}

std::string place_text(const at::Tensor& tensor) {
  return is_shard_tensor(tensor) ? spec(tensor)->mesh()->to_string() : "a plain tensor";
}

}  // namespace

Ema::Ema(const ModuleTreePtr& module, const EmaOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.decay >= 0 && options.decay <= 1, "EMA: decay is ", options.decay,
                    ", expected a number within 0 and 1");
  for (const NamedTensor& one : named_tensors(module)) {
    averages_.push_back({one.name, first_average(one.tensor), one.is_parameter});
  }
}
Ema::Ema(torch::nn::Module& module, const EmaOptions& options) : Ema(module_tree(module), options) {}

std::vector<at::Tensor> Ema::targets(const char* op, const ModuleTreePtr& module) const {
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& one : named_tensors(module)) by_name.emplace(one.name, one.tensor.detach());
  std::vector<at::Tensor> all;
  for (const NamedTensor& average : averages_) {
    const auto found = by_name.find(average.name);
    TORCH_CHECK_VALUE(found != by_name.end(), "EMA: ", op, ": the module has no '", average.name, "'");
    TORCH_CHECK_VALUE(is_shard_tensor(average.tensor) == is_shard_tensor(found->second), "EMA: ", op, ": '",
                      average.name, "' was placed since\n  have  an average on ", place_text(average.tensor),
                      ", the module's on ", place_text(found->second),
                      "\n  fix   make the EMA after parallelize_module");
    all.push_back(found->second);
  }
  return all;
}

void Ema::update(const ModuleTreePtr& module) {
  TORCH_CHECK_VALUE(trained_.empty(), "EMA: update: the averages are in the module\n  fix   call swap() again first");
  const c10::AutoGradMode no_grad(false);
  double decay = options_.decay;
  if (options_.warmup) {
    decay = std::min(decay, (1.0 + static_cast<double>(updates_)) / (10.0 + static_cast<double>(updates_)));
  }
  const std::vector<at::Tensor> tensors = targets("update", module);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& average = averages_[i].tensor;
    if (averages_[i].is_parameter) {
      average.lerp_(tensors[i].to(average.scalar_type()), 1 - decay);
    } else {
      average.copy_(tensors[i]);
    }
  }
  ++updates_;
}

void Ema::apply_to(const ModuleTreePtr& module) const {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> tensors = targets("apply_to", module);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(averages_[i].tensor);
}

void Ema::swap(const ModuleTreePtr& module) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> tensors = targets("swap", module);
  std::vector<at::Tensor> trained;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (trained_.empty()) trained.push_back(tensors[i].clone());
    tensors[i].copy_(trained_.empty() ? averages_[i].tensor : trained_[i]);
  }
  trained_ = std::move(trained);
}

void Ema::update(torch::nn::Module& module) { update(module_tree(module)); }
void Ema::apply_to(torch::nn::Module& module) const { apply_to(module_tree(module)); }
void Ema::swap(torch::nn::Module& module) { swap(module_tree(module)); }

}  // namespace moonhalo
