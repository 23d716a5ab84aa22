// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/module_tree.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/name_pattern.h"

namespace moonhalo {
namespace {

std::string dotted(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// `ancestors`: a module that holds one of these would never end.
void walk_modules(const std::string& name, const ModuleTreePtr& module, std::vector<const void*>& ancestors,
                  std::vector<NamedModule>& found) {
  if (std::find(ancestors.begin(), ancestors.end(), module->identity()) != ancestors.end()) return;
  found.push_back({name, module});
  ancestors.push_back(module->identity());
  for (const ModuleTree::Child& child : module->children()) {
    walk_modules(dotted(name, child.name), child.module, ancestors, found);
  }
  ancestors.pop_back();
}

}  // namespace

std::vector<NamedModule> named_modules(const ModuleTreePtr& root) {
  std::vector<const void*> ancestors;
  std::vector<NamedModule> found;
  walk_modules("", root, ancestors, found);
  return found;
}

std::vector<NamedTensor> named_tensors(const ModuleTreePtr& root) {
  std::vector<NamedTensor> all;
  for (const NamedModule& one : named_modules(root)) {
    for (const ModuleTree::Tensor& tensor : one.module->tensors())
      all.push_back({dotted(one.name, tensor.name), tensor.value, tensor.is_parameter});
  }
  std::stable_partition(all.begin(), all.end(), [](const NamedTensor& one) { return one.is_parameter; });
  std::unordered_set<const void*> seen;
  std::erase_if(all, [&](const NamedTensor& one) { return !seen.insert(one.tensor.unsafeGetTensorImpl()).second; });
  return all;
}

std::vector<at::Tensor> parameters_of(const ModuleTreePtr& root) {
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& one : named_tensors(root)) {
    if (one.is_parameter) parameters.push_back(one.tensor);
  }
  return parameters;
}

void check_replaceable(const char* op, const std::vector<NamedModule>& modules) {
  for (const NamedModule& one : modules) {
    for (const ModuleTree::Tensor& tensor : one.module->tensors()) {
      const std::string reason = one.module->why_fixed(tensor.name);
      TORCH_CHECK_NOT_IMPLEMENTED(reason.empty(), op, ": '", dotted(one.name, tensor.name), "' cannot be replaced, ",
                                  reason);
    }
  }
}

void replace_tensors(const char* op, const ModuleTreePtr& root,
                     const std::function<void(const std::string&, const ModuleTree::Tensor&)>& check,
                     const std::function<at::Tensor(const std::string&, const ModuleTree::Tensor&)>& place) {
  const std::vector<NamedModule> modules = named_modules(root);
  check_replaceable(op, modules);
  for (const NamedModule& one : modules) {
    for (const ModuleTree::Tensor& tensor : one.module->tensors()) check(dotted(one.name, tensor.name), tensor);
  }
  std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> placed;  // before, kept alive; after
  for (const NamedModule& one : modules) {
    for (const ModuleTree::Tensor& tensor : one.module->tensors()) {
      const auto made = placed.find(tensor.value.unsafeGetTensorImpl());
      const at::Tensor after =
          made != placed.end() ? made->second.second : place(dotted(one.name, tensor.name), tensor);
      placed.try_emplace(tensor.value.unsafeGetTensorImpl(), tensor.value, after);
      placed.try_emplace(after.unsafeGetTensorImpl(), after, after);  // of a module in several places
      if (!after.is_same(tensor.value)) one.module->replace_tensor(tensor.name, after);
    }
  }
}

std::vector<int64_t> match_modules(const char* op, const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& modules) {
  const NameMatches found = match_names(patterns, modules);
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (found.used[i]) continue;
    const NoMatch text = explain_no_match(patterns[i], modules);
    TORCH_CHECK_VALUE(false, op, ": '", patterns[i], "' matches no module", text.nearest, "\n  have  ", text.have,
                      "\n  fix   ", text.fix);
  }
  if (!found.ties.empty()) {
    const NameMatches::Tie& tie = found.ties.front();
    TORCH_CHECK_VALUE(false, op, ": '", patterns[tie.first], "' and '", patterns[tie.second], "' both match '",
                      modules[tie.name], "'\n  fix   give the exact name an entry of its own");
  }
  return found.meant;
}

}  // namespace moonhalo
