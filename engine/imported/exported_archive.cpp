// SPDX-License-Identifier: Apache-2.0
// The zip file that torch.export.save writes: a program in JSON, and tensors as their bytes.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "moonhalo/engine/deferred/deferred_read.h"
#include "moonhalo/engine/imported/exported_graph.h"
#include "moonhalo/engine/imported/model_file.h"

namespace moonhalo::exported {
namespace {

using nlohmann::json;

int64_t integer_of(const json& sized) {
  TORCH_CHECK_VALUE(sized.contains("as_int"), "a stored tensor has a size that is not a number");
  return sized.at("as_int").get<int64_t>();
}

// The number of elements from the start of the storage to the last one of the tensor. In a damaged file sizes and
// strides may be any numbers.
int64_t reach_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset) {
  TORCH_CHECK_VALUE(sizes.size() == strides.size() && offset >= 0, "a stored tensor has sizes ", sizes, " and strides ",
                    strides);
  int64_t last = offset;
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK_VALUE(sizes[i] >= 0 && strides[i] >= 0, "a stored tensor has sizes ", sizes, " and strides ", strides);
    if (sizes[i] == 0) return 0;
    int64_t step = 0;
    const bool overflow =
        __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last);
    TORCH_CHECK_VALUE(!overflow, "a stored tensor has sizes ", sizes, " and strides ", strides);
  }
  return last + 1;
}

bool has_elements(at::IntArrayRef sizes, int64_t smallest) {
  int64_t count = 1;
  bool overflow = false;
  for (const int64_t size : sizes) {
    if (size == 0) return false;
    overflow = overflow || __builtin_mul_overflow(count, size, &count);
  }
  return overflow || count >= smallest;
}

class ArchiveReader {
 public:
  ArchiveReader(const std::string& path, const c10::Device& device)
      : file_(std::make_shared<imported::ModelFile>(path)), reader_(file_), device_(device) {}

  bool has(const std::string& name) { return reader_.hasRecord(name); }

  std::string text(const std::string& name) {
    const auto [data, size] = reader_.getRecord(name);
    return {static_cast<const char*>(data.get()), size};
  }

  // The tensors of one folder by name; those that share bytes in the file share memory.
  void add_tensors(const std::string& folder, const std::string& list, std::map<std::string, at::Tensor>& tensors) {
    if (!has(folder + list)) return;
    const json config = json::parse(text(folder + list)).at("config");
    for (const auto& [name, entry] : config.items()) {
      const std::string record = entry.at("path_name").get<std::string>();
      if (record.starts_with("custom_obj")) continue;  // refused where the program uses it
      TORCH_CHECK_NOT_IMPLEMENTED(!entry.at("use_pickle").get<bool>(), "the tensor '", name,
                                  "' is stored as a pickle, which is not read");
      tensors.emplace(name, tensor(folder + record, entry.at("tensor_meta")));
    }
  }

 private:
  at::Tensor tensor(const std::string& record, const json& meta) {
    const std::string key = record + meta.dump();
    at::Tensor& made = made_[key];
    if (made.defined()) return made;
    const at::ScalarType type = scalar_type(meta.at("dtype").get<int64_t>());
    std::vector<int64_t> sizes, strides;
    for (const json& size : meta.at("sizes")) sizes.push_back(integer_of(size));
    for (const json& stride : meta.at("strides")) strides.push_back(integer_of(stride));
    const int64_t offset = integer_of(meta.at("storage_offset"));
    const bool requires_grad =
        meta.at("requires_grad").get<bool>() && (c10::isFloatingType(type) || c10::isComplexType(type));
    const int64_t reach = reach_of(sizes, strides, offset);
    if (const int64_t begin = place_if_deferred(record, sizes); begin >= 0) {
      check_reach(record, static_cast<int64_t>(reader_.getRecordSize(record)), type, reach);
      const imported::StoredTensor stored{file_, type, begin, offset, sizes, strides};
      return made = imported::deferred_tensor(stored, device_, requires_grad);
    }
    at::Tensor& bytes = bytes_[record];
    if (!bytes.defined()) {
      const size_t size = reader_.getRecordSize(record);
      bytes = at::empty({static_cast<int64_t>(size)}, at::kByte);
      reader_.getRecord(record, bytes.mutable_data_ptr(), size);
    }
    check_reach(record, bytes.numel(), type, reach);
    at::Tensor whole = at::empty({0}, at::TensorOptions(type));
    whole.set_(bytes.storage(), 0, {bytes.numel() / static_cast<int64_t>(whole.element_size())}, {1});
    made = whole.as_strided(sizes, strides, offset).to(device_).requires_grad_(requires_grad);
    return made;
  }

  // Where the file has a tensor that is to be deferred; -1 for others.
  int64_t place_if_deferred(const std::string& record, at::IntArrayRef sizes) {
    const std::optional<int64_t> smallest = smallest_deferred();
    if (!smallest || !has_elements(sizes, *smallest)) return -1;
    return imported::place_of_record(*file_, reader_, record);
  }

  static void check_reach(const std::string& record, int64_t bytes, at::ScalarType type, int64_t reach) {
    const auto width = static_cast<int64_t>(c10::elementSize(type));
    TORCH_CHECK_VALUE(reach <= bytes / width, "'", record, "' has ", bytes, " bytes, its tensor needs ", reach,
                      " elements of ", width, " bytes");
  }

  std::shared_ptr<imported::ModelFile> file_;
  caffe2::serialize::PyTorchStreamReader reader_;
  c10::Device device_;
  std::map<std::string, at::Tensor> bytes_, made_;
};

}  // namespace

at::ScalarType scalar_type(int64_t number) {
  static const std::map<int64_t, at::ScalarType> types = {
      {1, at::kByte},           {2, at::kChar},  {3, at::kShort},    {4, at::kInt},         {5, at::kLong},
      {6, at::kHalf},           {7, at::kFloat}, {8, at::kDouble},   {9, at::kComplexHalf}, {10, at::kComplexFloat},
      {11, at::kComplexDouble}, {12, at::kBool}, {13, at::kBFloat16}};
  const auto found = types.find(number);
  TORCH_CHECK_VALUE(found != types.end(), "number ", number, " is not a dtype that is read");
  return found->second;
}

Archive read_archive(const std::string& path, const c10::Device& device) {
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(path), "export.load: no file '", path, "'");
  ArchiveReader reader(path, device);
  TORCH_CHECK_VALUE(reader.has("models/model.json"), "it has no models/model.json",
                    reader.has("serialized_exported_program.json") ? ", but a program of an older PyTorch" : "");
  Archive archive;
  archive.program = reader.text("models/model.json");
  reader.add_tensors("data/weights/", "model_weights_config.json", archive.tensors);
  reader.add_tensors("data/constants/", "model_constants_config.json", archive.tensors);
  return archive;
}

}  // namespace moonhalo::exported
