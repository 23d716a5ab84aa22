// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"
#include "moonhalo/io/checkpoint/optimizer_state.h"
#include "moonhalo/io/checkpoint/packed_checkpoint.h"

namespace moonhalo::io {
namespace {

using nlohmann::json;

constexpr const char *kSave = "checkpoint.save", *kLoad = "checkpoint.load";

void check_name(const std::string& key) {
  TORCH_CHECK_VALUE(is_entry_name(key), kSave, ": '", key,
                    "' cannot be the name of an entry\n  fix   use letters, digits, _ and -");
}

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) all.emplace_back(item.key(), item.value().detach());
  return all;
}

/// The names that an optimizer's parameters have in the modules saved beside it, with their entries' in front where
/// parameters of several modules have one; "#3" for a parameter of no module.
ParameterNames names_of(torch::optim::Optimizer& optimizer, const CheckpointState& state) {
  std::map<const void*, std::pair<std::string, std::string>> known;
  for (const auto& [key, item] : state) {
    if (!std::holds_alternative<torch::nn::Module*>(item)) continue;
    for (const auto& parameter : std::get<torch::nn::Module*>(item)->named_parameters()) {
      known.emplace(parameter.value().unsafeGetTensorImpl(), std::pair(key, parameter.key()));
    }
  }
  std::map<std::string, int> users;
  const auto for_each = [&](const auto& visit) {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) visit(known.find(parameter.unsafeGetTensorImpl()));
    }
  };
  for_each([&](const auto& place) {
    if (place != known.end()) ++users[place->second.second];
  });
  ParameterNames names;
  for_each([&](const auto& place) {
    if (place == known.end()) {
      names.push_back("#" + std::to_string(names.size() + 1));
    } else {
      const auto& [entry, name] = place->second;
      names.push_back(users[name] > 1 ? entry + "/" + name : name);
    }
  });
  return names;
}

struct Pack {
  const CheckpointState& state;
  NamedTensors& tensors;

  json operator()(torch::nn::Module* module) const {
    json names = json::object();
    for (auto& [name, tensor] : tensors_of(*module)) {
      names[name] = {{"$tensor", name}};
      tensors.emplace_back(name, tensor);
    }
    return names;
  }
  json operator()(torch::optim::Optimizer* optimizer) const {
    return pack_optimizer(*optimizer, names_of(*optimizer, state), tensors);
  }
  json operator()(PackedOptimizer* optimizer) const {
    for (const auto& [name, tensor] : optimizer->tensors) tensors.emplace_back(name, tensor.detach());
    return json::parse(optimizer->json);
  }
  json operator()(at::Tensor* tensor) const {
    tensors.emplace_back("", tensor->detach());
    return {{"$tensor", ""}};
  }
  json operator()(double* value) const { return pack_number(*value); }
  template <class T>
  json operator()(T* value) const {
    return *value;
  }
};

}  // namespace

CheckpointSaving save_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                                 const SaveOptions& options) {
  json entries = json::object();
  PackedCheckpoint packed;
  for (const auto& [key, item] : state) {
    check_name(key);
    NamedTensors own;
    entries[key] = std::visit(Pack{state, own}, item);
    if (!own.empty()) packed.tensors[key].tensors = std::move(own);
  }
  packed.entries = entries.dump(1);
  return write_checkpoint(world, path, packed, options);
}

// Loading

namespace {

/// The names of the tensors of an optimizer's state.
std::vector<std::string> tensors_in(const json& optimizer) {
  std::vector<std::string> names;
  for (const json& fields : optimizer.value("state", json::object())) {
    for (const json& field : fields) {
      if (field.is_object() && field.contains("$tensor")) names.push_back(field["$tensor"].get<std::string>());
    }
  }
  return names;
}

/// True if the data of an entry are read, not only its text.
bool reads_data(const CheckpointItem& item) {
  const auto* optimizer = std::get_if<PackedOptimizer*>(&item);
  return optimizer == nullptr || !(*optimizer)->tensors.empty();
}

/// One entry: check() changes nothing, read() comes when all are checked.
struct Entry {
  const CheckpointState& state;
  const std::string& key;
  const json& saved;
  CheckpointReader& reader;

  at::Tensor describe(const std::string& name) const {
    const StoredTensor* stored = reader.find(key, name);
    return stored ? at::empty(stored->shape, at::TensorOptions(stored->dtype).device(at::kMeta)) : at::Tensor();
  }
  void check_tensor(const std::string& name, const at::Tensor& target) const {
    const at::Tensor described = describe(name);
    TORCH_CHECK_VALUE(described.defined(), "the tensor '", name, "' is missing\n  fix   load it into what was saved");
    TORCH_CHECK_VALUE(described.sizes() == target.sizes(), "'", name, "' has shape ", described.sizes(), ", expected ",
                      target.sizes());
    TORCH_CHECK_VALUE(described.scalar_type() == target.scalar_type(), "'", name, "' is ",
                      c10::toString(described.scalar_type()), ", expected ", c10::toString(target.scalar_type()),
                      "\n  fix   make it of that dtype");
  }
};

struct Check : Entry {
  void operator()(torch::nn::Module* module) const {
    std::set<std::string> names;
    for (const auto& [name, tensor] : tensors_of(*module)) {
      check_tensor(name, tensor);
      names.insert(name);
    }
    for (const auto& [name, value] : saved.items()) {
      TORCH_CHECK_VALUE(names.contains(name), "the module has no '", name, "'",
                        did_you_mean(name, {names.begin(), names.end()}));
    }
  }
  void operator()(torch::optim::Optimizer* optimizer) const {
    check_optimizer(*optimizer, names_of(*optimizer, state), saved,
                    [&](const std::string& name) { return describe(name); });
  }
  void operator()(PackedOptimizer* optimizer) const {
    TORCH_CHECK_VALUE(saved.is_object() && saved.value("by", "") == "name", "it is not an optimizer's state by names");
    for (const auto& [name, tensor] : optimizer->tensors) check_tensor(name, tensor);
    for (const std::string& name : tensors_in(saved)) {
      TORCH_CHECK_VALUE(describe(name).defined(), "the tensor '", name,
                        "' is missing\n  fix   load an older checkpoint");
    }
  }
  void operator()(at::Tensor* tensor) const { check_tensor("", *tensor); }
  void operator()(double*) const { unpack_number(saved); }
  void operator()(int64_t*) const {
    TORCH_CHECK_VALUE(saved.is_number_integer(), "it is not an integer but ", saved.dump());
  }
  void operator()(bool*) const {
    TORCH_CHECK_VALUE(saved.is_boolean(), "it is neither true nor false but ", saved.dump());
  }
  void operator()(std::string*) const { TORCH_CHECK_VALUE(saved.is_string(), "it is not a string but ", saved.dump()); }
};

struct Read : Entry {
  void operator()(torch::nn::Module* module) const {
    for (const auto& [name, tensor] : tensors_of(*module)) reader.read_into(key, name, tensor);
  }
  void operator()(torch::optim::Optimizer* optimizer) const {
    unpack_optimizer(
        *optimizer, names_of(*optimizer, state), saved, [&](const std::string& name) { return describe(name); },
        [&](const std::string& name, const at::Tensor& target) { reader.read_into(key, name, target); });
  }
  void operator()(PackedOptimizer* optimizer) const {
    optimizer->json = saved.dump();
    for (const auto& [name, tensor] : optimizer->tensors) reader.read_into(key, name, tensor.detach());
    if (!optimizer->tensors.empty()) return;
    for (const std::string& name : tensors_in(saved)) optimizer->tensors.emplace_back(name, describe(name));
  }
  void operator()(at::Tensor* tensor) const { reader.read_into(key, "", tensor->detach()); }
  void operator()(double* value) const { *value = unpack_number(saved); }
  template <class T>
  void operator()(T* value) const {
    *value = saved.get<T>();
  }
};

}  // namespace

void load_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                     const LoadOptions& options) {
  const OpenCheckpoint opened = open_checkpoint(world, path);
  const json entries = json::parse(opened.json.text, nullptr, true, /*ignore_comments=*/true)["entries"];
  CheckpointReader& reader = *opened.reader;
  fail_together(world, [&] {
    for (const auto& [key, item] : state) {
      const auto saved = entries.find(key);
      TORCH_CHECK_VALUE(saved != entries.end(), kLoad, ": '", opened.folder, "' has no entry '", key, "'",
                        did_you_mean(key, opened.json.entries));
      try {
        std::visit(Check{{state, key, *saved, reader}}, item);
      } catch (const c10::ValueError& error) {
        TORCH_CHECK_VALUE(false, kLoad, ": '", opened.folder, "', entry '", key, "': ", error.what_without_backtrace());
      }
    }
  });
  const at::NoGradGuard no_grad;
  const WithoutTimeLimit patient;
  std::vector<std::string> keys;
  for (const auto& [key, item] : state) {
    if (reads_data(item)) keys.push_back(key);
  }
  if (options.verify) reader.verify(keys);
  for (const auto& [key, item] : state) std::visit(Read{{state, key, entries[key], reader}}, item);
  reader.finish();
  world.barrier();  // rank 0 may save again when all have read
}

}  // namespace moonhalo::io
