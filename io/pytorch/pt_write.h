// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace moonhalo::io {

/// Makes a file that torch.load opens by default (weights_only=True): one value, given part by part.
///
///     io::PtWriter writer("save_pt", path);
///     writer.begin_dict();                       a collections.OrderedDict
///     writer.text("weight"), writer.tensor(w);   a key, its value
///     writer.end_dict();
///     writer.finish();
///
/// Of one rank, and not collective. ValueError for a ShardTensor (of which this rank has a block) and for a dtype that
/// torch.save does not store.
class PtWriter {
 public:
  PtWriter(std::string who, std::string path);

  /// Values of Python: None, True or False, an int, a float.
  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void number(double value);
  /// A str where it is UTF-8, else bytes.
  void text(std::string_view value);
  /// Row-major, on the CPU. A tensor that was given before is stored once.
  void tensor(const at::Tensor& tensor);
  void begin_list();
  void end_list();
  void begin_dict();
  void end_dict();
  /// Writes the file, which appears under its name when it is complete. RuntimeError where the disk refuses it.
  void finish();

 private:
  void global(std::string_view module, std::string_view name);
  void unicode(std::string_view value);
  void sizes(at::IntArrayRef values);

  std::string who_, path_, pickle_;
  std::vector<at::Tensor> given_, storages_;  ///< as given, so that addresses stay taken; as they are stored
  std::map<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, at::ScalarType>, size_t> keys_;
};

/// Saves plain tensors by name, with their shapes and dtypes, as torch.save(state_dict) does. Of one rank, and not
/// collective.
void save_pt(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace moonhalo::io
