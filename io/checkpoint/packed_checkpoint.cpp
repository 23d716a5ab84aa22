// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/packed_checkpoint.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/checkpoint/background_write.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/checkpoint/checkpoint_write.h"

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kSaving = "checkpoint.save", *kLoading = "checkpoint.load";
constexpr const char *kEnding = ".safetensors", *kIndexEnding = ".safetensors.index.json";
constexpr int kDeepestJson = 100;

/// The folder that `path` names behind links, without "/" at its end.
std::string without_links(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  const fs::path target = fs::is_symlink(path, error) ? fs::weakly_canonical(path, error) : fs::path(path);
  return error ? path : target.string();
}

// Saving

/// Ends a save that was killed, and checks that `path` is free or a checkpoint. A dry run only checks.
void check_free(const std::string& path, bool is_dry) {
  if (!is_dry) settle_checkpoint(kSaving, path);
  std::error_code error;
  const bool empty = !fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error));
  TORCH_CHECK_VALUE(empty || find_checkpoint(kSaving, path), kSaving, ": '", path,
                    "' exists and is not a checkpoint\n  have  no ", kCheckpointFile,
                    " in it\n  fix   choose another name, or remove it first");
}

/// The files of a checkpoint: tensors by the file's name without its ending, and the text of each index.
struct FileLayout {
  std::map<std::string, PackedTensors> files;
  std::map<std::string, std::string> indices;
};

/// Divides `packed` into parts of at most `most_bytes`, but for tensors that are larger; 0: one part.
std::vector<PackedTensors> parts_of(const PackedTensors& packed, int64_t most_bytes) {
  std::vector<PackedTensors> parts(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < packed.tensors.size(); ++i) {
    const at::Tensor& tensor = packed.tensors[i].second;
    const auto size = tensor.numel() * static_cast<int64_t>(tensor.element_size());
    if (most_bytes > 0 && bytes > 0 && bytes + size > most_bytes) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().tensors.push_back(packed.tensors[i]);
    if (!packed.owners.empty()) parts.back().owners.push_back(packed.owners[i]);
    bytes += size;
  }
  return parts;
}

/// "model-00002-of-00003".
std::string part_name(const std::string& key, size_t part, size_t parts) {
  const auto digits = [](size_t number) {
    const std::string text = std::to_string(number);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return parts == 1 ? key : key + "-" + digits(part + 1) + "-of-" + digits(parts);
}

FileLayout lay_out_files(const PackedCheckpoint& packed, int64_t most_bytes) {
  FileLayout layout;
  for (const auto& [key, own] : packed.tensors) {
    const std::vector<PackedTensors> parts = parts_of(own, most_bytes);
    json map = json::object();
    int64_t total = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string name = part_name(key, i, parts.size());
      TORCH_CHECK_VALUE(layout.files.emplace(name, parts[i]).second, kSaving, ": the entry '", name,
                        "' has the name of a part of another");
      for (const auto& [tensor_name, tensor] : parts[i].tensors) {
        map[tensor_name] = name + kEnding;
        total += tensor.numel() * static_cast<int64_t>(tensor.element_size());
      }
    }
    if (parts.size() > 1) {
      layout.indices[key + kIndexEnding] = json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(1);
    }
  }
  return layout;
}

void write_text(const std::string& path, const std::string& text) {
  NewFile file(kSaving, path);
  file.write(text.data(), text.size());
  file.finish();
}

/// Makes PATH.partial with files as large as the tensors need.
void make_files(const std::string& path, CheckpointWriter& writer, const FileLayout& layout) {
  std::error_code error;
  fs::create_directories(path + ".partial", error);
  TORCH_CHECK_VALUE(!error, kSaving, ": cannot make '", path, ".partial': ", error.message(),
                    disk_remedy(error.value()));
  writer.create();
  for (const auto& [name, text] : layout.indices) write_text(path + ".partial/" + name, text);
}

/// The text of checkpoint.json.
std::string text_of_entries(const std::string& entries) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string text = "{\n \"entries\": ";
  for (const char c : entries) {
    text += c;
    if (c == '\n') text += ' ';  // JSON has newlines between values alone
  }
  return text + ",\n \"format\": " + std::to_string(kCheckpointFormat) + ",\n \"saved\": " + json(now).dump() + "\n}\n";
}

/// Removes half a checkpoint after a failure; a complete one stays. The failure that led here is the one to report.
void drop_unfinished(Communicator& world, const std::string& path) {
  try {
    run_on_first_rank(world, [&] {
      if (!world.is_fake() && !is_checkpoint(kSaving, path + ".partial"))
        discard_checkpoint(kSaving, path + ".partial");
      return std::string();
    });
  } catch (const c10::Error&) {
  }
}

}  // namespace

bool is_entry_name(const std::string& key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

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
  return run_on_first_rank(*world_, [&] {
    background->finish();
    return path_;
  });
}

CheckpointSaving write_checkpoint(Communicator& world, const std::string& path, const PackedCheckpoint& packed,
                                  const SaveOptions& options) {
  const std::string text = text_of_entries(packed.entries);
  const std::string name = run_on_first_rank(world, [&] {
    const std::string folder = without_links(path);
    check_free(folder, world.is_fake());
    return folder;
  });
  const FileLayout layout = lay_out_files(packed, options.max_file_bytes);
  CheckpointWriter writer(world, name, options.async);
  for (const auto& [file, own] : layout.files) writer.add(file, own.tensors, own.owners);
  writer.check_same_entries();
  std::shared_ptr<BackgroundWrite> background;
  try {
    run_on_first_rank(world, [&] {
      if (!world.is_fake()) make_files(name, writer, layout);
      return std::string();
    });
    if (options.async) {
      background = writer.copy();
    } else {
      const WithoutTimeLimit patient;  // ranks wait for each other's disks, however long those take
      writer.write();
      run_on_first_rank(world, [&] {
        if (world.is_fake()) return std::string();
        write_text(name + ".partial/" + kCheckpointFile, text);
        put_checkpoint_in_place(kSaving, name);
        return std::string();
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

/// Fails unless `good`: FILE is damaged.
void check_intact(bool good, const std::string& file, const std::string& problem) {
  TORCH_CHECK_VALUE(good, kLoading, ": '", file, "' is damaged: ", problem, "\n  fix   load an older checkpoint");
}

/// The value of a JSON text. Deep ones, which would overflow the stack, are refused.
json parse_json(const std::string& text, const std::string& file) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    check_intact(depth <= kDeepestJson, file, "it is nested deeper than " + std::to_string(kDeepestJson) + " levels");
    return true;
  };
  try {
    return json::parse(text, check_depth, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::exception& error) {
    const std::string what = error.what();
    check_intact(false, file, what.substr(what.find("] ") + 2, 200));
  }
  return {};
}

CheckpointText check_text(std::string text, const std::string& folder) {
  const std::string file = folder + "/" + kCheckpointFile;
  const json saved = parse_json(text, file);
  check_intact(saved.is_object() && saved.contains("format"), file, "it has no format");
  const json& format = saved["format"];
  const int64_t number = format.is_number_integer() ? format.get<int64_t>() : 0;
  TORCH_CHECK_VALUE(number >= 1 && number <= kCheckpointFormat, kLoading, ": '", folder, "' has format ", format.dump(),
                    ", this reads 1 to ", kCheckpointFormat);
  check_intact(saved.contains("entries") && saved["entries"].is_object(), file, "it has no entries");
  CheckpointText checked{.text = std::move(text), .format = number};
  for (const auto& [key, value] : saved["entries"].items()) {
    check_intact(is_entry_name(key), file, "'" + key + "' cannot be the name of an entry");
    checked.entries.push_back(key);
  }
  return checked;
}

/// The safetensors files of an entry that are there: one, or those of its index.
std::vector<std::string> files_of(const std::string& folder, const std::string& key) {
  const std::string file = folder + "/" + key + kEnding, index = folder + "/" + key + kIndexEnding;
  if (fs::exists(file)) return {file};
  if (!fs::exists(index)) return {};
  const json map = parse_json(read_file(kLoading, index), index);
  check_intact(map.is_object() && map.contains("weight_map") && map["weight_map"].is_object(), index,
               "it has no weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, name] : map["weight_map"].items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    const bool is_file = text.ends_with(kEnding) && is_entry_name(text.substr(0, text.rfind('.')));
    check_intact(is_file, index, (text.empty() ? name.dump() : "'" + text + "'") + " cannot be the name of a file");
    names.insert(folder + "/" + text);
  }
  return {names.begin(), names.end()};
}

/// The end of the message about a path without a checkpoint: other things that are there, and what to do.
std::string remedy_for(const std::string& path) {
  const std::string partial = path + ".partial";
  const auto folders = list_folders(kLoading, path);
  if (std::any_of(folders.begin(), folders.end(), [](const auto& name) { return name.starts_with("rank-"); })) {
    return "\n  have  blocks of ranks\n  fix   make one of whole tensors first: moonhalo merge " + path + " OTHER";
  }
  return (fs::exists(partial) ? "\n  have  '" + partial + "', which a save left unfinished" : "") +
         fix(Remedy::kFindCheckpoint);
}

/// The folder to load, which may be one that a killed save left.
std::string find_folder(const std::string& path) {
  const std::string name = without_links(path);
  const auto found = find_checkpoint(kLoading, name);
  TORCH_CHECK_VALUE(found, kLoading, ": '", path, "' is not a checkpoint (it has no ", kCheckpointFile, ")",
                    found ? "" : remedy_for(name));
  if (*found != name) {
    TORCH_WARN(kLoading, ": '", name, "' is missing; a save that was killed left '", *found,
               "' complete, which is loaded");
  }
  return *found;
}

/// Reads on rank 0 all that other ranks need to open the checkpoint, as one string.
std::string pack_open(const std::string& path) {
  const std::string folder = find_folder(path);
  const CheckpointText read = read_checkpoint_text(folder);
  json found = {{"folder", folder}, {"text", read.text}, {"files", json::array()}};
  for (const std::string& key : read.entries) {
    for (const std::string& file : files_of(folder, key)) {
      const SafetensorsText header = read_safetensors_text(file);
      found["files"].push_back({key, file, header.header, header.file_bytes});
    }
  }
  const std::vector<uint8_t> bytes = json::to_msgpack(found);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

CheckpointText read_checkpoint_text(const std::string& folder) {
  return check_text(read_file(kLoading, folder + "/" + kCheckpointFile), folder);
}

OpenCheckpoint open_checkpoint(Communicator& world, const std::string& path) {
  const std::string packed = run_on_first_rank(world, [&] { return pack_open(path); });
  const json found = json::from_msgpack(packed.begin(), packed.end());
  OpenCheckpoint opened{
      .folder = found["folder"].get<std::string>(), .json = {}, .reader = std::make_shared<CheckpointReader>(world)};
  opened.json = check_text(found["text"].get<std::string>(), opened.folder);
  for (const json& file : found["files"]) {
    opened.reader->add(file[0].get<std::string>(), file[1].get<std::string>(),
                       {file[2].get<std::string>(), file[3].get<int64_t>()});
  }
  return opened;
}

}  // namespace moonhalo::io
