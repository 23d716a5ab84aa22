// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/base/box.h"

namespace moonhalo::imported {

/// A model's file, for LibTorch's readers of archives. Bytes of a range that is left out are not read when the reader
/// asks for just that range; `left_out` says what it would have got. Each rank opens the file for itself.
class ModelFile final : public caffe2::serialize::ReadAdapterInterface {
 public:
  struct Range {
    int64_t begin = 0, bytes = 0;
  };

  /// Throws ValueError for a file that cannot be opened.
  explicit ModelFile(const std::string& path);
  ~ModelFile() override;

  size_t size() const override { return size_; }
  size_t read(uint64_t begin, void* target, size_t bytes, const char* what = "") const override;

  /// Throws ValueError if the file has become shorter.
  void read_all(int64_t begin, int64_t bytes, void* target) const;
  void leave_out(const Range& range) { ranges_[range.begin] = range.bytes; }
  /// The range whose bytes were left out where they should have gone to `target`.
  std::optional<Range> left_out(const void* target) const;

 private:
  size_t read_from(uint64_t begin, size_t bytes, void* target) const;

  std::string path_;
  int descriptor_;
  size_t size_ = 0;
  std::map<int64_t, int64_t> ranges_;  // where they begin, and their bytes
  mutable std::unordered_map<const void*, Range> places_;
};

/// Where the bytes of a record are in the file; -1 if they are compressed.
int64_t place_of_record(const ModelFile& file, caffe2::serialize::PyTorchStreamReader& reader, const std::string& name);

/// A tensor that is in a file.
struct StoredTensor {
  std::shared_ptr<const ModelFile> file;
  at::ScalarType dtype = at::kFloat;
  int64_t begin = 0;   ///< the byte of the file where the storage begins
  int64_t offset = 0;  ///< of the first element in its storage, in elements
  std::vector<int64_t> sizes, strides;
};

/// Returns the elements in a box, row-major. Only bytes of rows that are in the box are read.
at::Tensor read_box(const StoredTensor& stored, const Box& box);
/// Returns a tensor that is deferred until it is materialized; each rank then reads what it owns.
at::Tensor deferred_tensor(const StoredTensor& stored, c10::Device device, bool requires_grad);

}  // namespace moonhalo::imported
