// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/patch.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <set>

#include "moonhalo/engine/model/torch_module_tree.h"

namespace moonhalo {

void Patches::remove() {
  while (!removers_.empty()) {
    removers_.back()();
    removers_.pop_back();
  }
}

Patches patch(const ModuleTreePtr& net, const std::map<std::string, MakeWrapper>& patches) {
  std::vector<std::string> patterns, names;
  std::vector<const MakeWrapper*> makers;
  for (const auto& [pattern, make] : patches) {
    TORCH_CHECK_VALUE(make, "patch: '", pattern, "' has no function");
    patterns.push_back(pattern);
    makers.push_back(&make);
  }
  const std::vector<NamedModule> modules = named_modules(net);
  for (const NamedModule& one : modules) names.push_back(one.name);
  const std::vector<int64_t> meant = match_modules("patch", patterns, names);
  std::vector<std::function<void()>> removers;
  std::set<std::pair<const void*, int64_t>> patched;  // a module in several places is patched once
  for (size_t i = 0; i < modules.size(); ++i) {
    if (meant[i] < 0 || !patched.emplace(modules[i].module->identity(), meant[i]).second) continue;
    removers.push_back(modules[i].module->wrap_forward((*makers[meant[i]])(modules[i])));
  }
  return Patches(std::move(removers));
}

Patches patch(const std::shared_ptr<torch::nn::Module>& net, const std::map<std::string, TorchPatch>& patches) {
  TORCH_CHECK_VALUE(net != nullptr, "patch: no module given");
  std::map<std::string, MakeWrapper> makers;
  for (const auto& [pattern, run] : patches) {
    TORCH_CHECK_VALUE(run, "patch: '", pattern, "' has no function");
    makers[pattern] = [run](const NamedModule& module) -> ForwardWrapper {
      auto* self = static_cast<torch::nn::Module*>(const_cast<void*>(module.module->identity()));
      return [run, self](const Forward& forward, const CallTensors& arguments) {
        const auto before = [&forward](const at::Tensor& x) { return forward(CallTensors{{x}}).by_position.at(0); };
        return CallTensors{{run(*self, before, arguments.by_position.at(0))}};
      };
    };
  }
  return patch(module_tree(*net), makers);
}

}  // namespace moonhalo
