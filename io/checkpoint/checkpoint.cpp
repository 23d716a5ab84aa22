// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/checkpoint/background_write.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"
#include "moonhalo/io/checkpoint/checkpoint_write.h"
#include "moonhalo/io/checkpoint/optimizer_state.h"

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kSave = "checkpoint.save", *kLoad = "checkpoint.load";
constexpr int kFormat = 3;

/// Gives every rank what rank 0 makes; its error is one on all.
std::string on_first_rank(Communicator& world, const std::function<std::string()>& work) {
  std::string text;
  fail_together(world, [&] {
    if (world.rank() == 0 || world.is_fake()) text = work();
  });
  return world.all_gather_strings(text)[0];
}

/// The folder that it means in the end, behind links.
std::string resolved(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  const fs::path target = fs::is_symlink(path, error) ? fs::weakly_canonical(path, error) : fs::path(path);
  return error ? path : target.string();
}

void check_name(const std::string& key) {
  const bool good = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
  TORCH_CHECK_VALUE(good, kSave, ": '", key, "' cannot be the name of an entry: letters, digits, _ and - are");
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

void prepare(const std::string& path) {
  settle_checkpoint(kSave, path);
  std::error_code error;
  const bool empty = !fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error));
  TORCH_CHECK_VALUE(empty || find_checkpoint(kSave, path), kSave, ": '", path,
                    "' is there and no checkpoint\n  have  no ", kCheckpointFile,
                    " in it\n  fix   choose another name, or remove it first");
  fs::create_directories(path + ".partial", error);
  TORCH_CHECK_VALUE(!error, kSave, ": cannot make '", path, ".partial': ", error.message(), disk_remedy(error.value()));
}

void drop_unfinished(Communicator& world, const std::string& path) {
  fail_together(world, [&] {
    if (world.rank() == 0 && !is_checkpoint(kSave, path + ".partial")) discard_checkpoint(kSave, path + ".partial");
  });
}

}  // namespace

CheckpointSaving::CheckpointSaving(Communicator& world, std::string path, std::shared_ptr<BackgroundWrite> background)
    : world_(&world), path_(std::move(path)), background_(std::move(background)) {}
CheckpointSaving::~CheckpointSaving() = default;
CheckpointSaving::CheckpointSaving(CheckpointSaving&&) noexcept = default;

bool CheckpointSaving::is_done() const { return background_ == nullptr || background_->is_done(); }

std::string CheckpointSaving::wait() {
  const auto background = std::exchange(background_, nullptr);
  if (background == nullptr) return path_;
  try {
    fail_together(*world_, [&] { background->join(); });
  } catch (const c10::Error&) {
    drop_unfinished(*world_, path_);
    throw;
  }
  fail_together(*world_, [&] {
    if (world_->rank() == 0) background->finish();
  });
  return path_;
}

CheckpointSaving save_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                                 const SaveOptions& options) {
  json entries = json::object();
  std::map<std::string, NamedTensors> tensors;
  for (const auto& [key, item] : state) {
    check_name(key);
    NamedTensors own;
    entries[key] = std::visit(Pack{state, own}, item);
    if (!own.empty()) tensors[key] = std::move(own);
  }
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string text = json{{"format", kFormat}, {"saved", now}, {"entries", entries}}.dump(1) + "\n";
  const std::string name = on_first_rank(world, [&] { return resolved(path); });
  CheckpointWriter writer(world, name, options.async);
  for (const auto& [key, own] : tensors) writer.add(key, own);
  writer.check_same_entries();
  std::shared_ptr<BackgroundWrite> background;
  try {
    fail_together(world, [&] {
      if (world.rank() != 0) return;
      prepare(name);
      writer.create();
    });
    if (options.async) {
      background = writer.copy();
    } else {
      const WithoutTimeLimit patient;  // ranks wait for each other's disks, however long those take
      writer.write();
      fail_together(world, [&] {
        if (world.rank() != 0) return;
        NewFile file(kSave, name + ".partial/" + kCheckpointFile);
        file.write(text.data(), text.size());
        file.finish();
        put_checkpoint_in_place(kSave, name);
      });
    }
  } catch (const c10::Error&) {
    drop_unfinished(world, name);
    throw;
  }
  if (background) background->start(text);
  return {world, name, std::move(background)};
}

// Loading

namespace {

/// The safetensors files of an entry that are there: one, or those of its index.
std::vector<std::string> files_of(const std::string& folder, const std::string& key) {
  const std::string file = folder + "/" + key + ".safetensors", index = file + ".index.json";
  if (fs::exists(file)) return {file};
  if (!fs::exists(index)) return {};
  const json map = json::parse(read_file(kLoad, index), nullptr, false);
  std::set<std::string> names;
  const auto damaged = [&](bool good, const char* problem) {
    TORCH_CHECK_VALUE(good, kLoad, ": '", index, "' is damaged: ", problem, "\n  fix   load an older checkpoint");
  };
  damaged(map.is_object() && map.contains("weight_map") && map["weight_map"].is_object(), "it has no weight_map");
  for (const auto& [tensor, name] : map["weight_map"].items()) {
    damaged(name.is_string() && name.get<std::string>().find('/') == std::string::npos,
            "a name is that of no file beside it");
    names.insert(folder + "/" + name.get<std::string>());
  }
  return {names.begin(), names.end()};
}

/// Finds the folder, the entries, and the headers of their files, for all ranks.
std::string attach_unsharded_cache(const std::string& path) {
  const std::string name = resolved(path);
  const auto folder = find_checkpoint(kLoad, name);
  TORCH_CHECK_VALUE(folder, kLoad, ": '", path, "' is not a checkpoint\n  have  no ", kCheckpointFile, " in it",
                    "\n  fix   give the folder that was saved; blocks of ranks become one by: moonhalo merge ", path,
                    " OTHER");
  const std::string file = *folder + "/" + kCheckpointFile;
  const json saved = json::parse(read_file(kLoad, file), nullptr, false);
  TORCH_CHECK_VALUE(
      saved.is_object() && saved.contains("format") && saved["format"].is_number_integer() && saved.contains("entries"),
      kLoad, ": '", file, "' is damaged: it has no format and entries\n  fix   load an older checkpoint");
  TORCH_CHECK_VALUE(saved["format"].get<int64_t>() >= 1 && saved["format"].get<int64_t>() <= kFormat, kLoad, ": '",
                    *folder, "' has format ", saved["format"].dump(), ", this reads 1 to ", kFormat);
  json found = {{"folder", *folder}, {"entries", saved["entries"]}, {"files", json::array()}};
  for (const auto& [key, value] : saved["entries"].items()) {
    for (const std::string& part : files_of(*folder, key)) {
      const SafetensorsText text = read_safetensors_text(part);
      found["files"].push_back({key, part, text.header, text.file_bytes});
    }
  }
  const std::vector<uint8_t> bytes = json::to_msgpack(found);
  return {bytes.begin(), bytes.end()};
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
  const std::string found = on_first_rank(world, [&] { return attach_unsharded_cache(path); });
  const json source = json::from_msgpack(found.begin(), found.end());
  CheckpointReader reader(world);
  for (const json& file : source["files"]) {
    reader.add(file[0].get<std::string>(), file[1].get<std::string>(),
               {file[2].get<std::string>(), file[3].get<int64_t>()});
  }
  fail_together(world, [&] {
    for (const auto& [key, item] : state) {
      const auto saved = source["entries"].find(key);
      std::vector<std::string> names;
      for (const auto& [name, value] : source["entries"].items()) names.push_back(name);
      TORCH_CHECK_VALUE(saved != source["entries"].end(), kLoad, ": '", source["folder"].get<std::string>(),
                        "' has no entry '", key, "'", did_you_mean(key, names));
      try {
        std::visit(Check{{state, key, *saved, reader}}, item);
      } catch (const c10::ValueError& error) {
        TORCH_CHECK_VALUE(false, kLoad, ": '", source["folder"].get<std::string>(), "', entry '", key,
                          "': ", error.what_without_backtrace());
      }
    }
  });
  const at::NoGradGuard no_grad;
  const WithoutTimeLimit patient;
  std::vector<std::string> keys;
  for (const auto& [key, item] : state) keys.push_back(key);
  if (options.verify) reader.verify(keys);
  for (const auto& [key, item] : state) std::visit(Read{{state, key, source["entries"][key], reader}}, item);
  reader.finish();
  world.barrier();  // rank 0 may save again when all have read
}

}  // namespace moonhalo::io
