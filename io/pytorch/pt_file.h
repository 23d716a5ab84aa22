// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/pytorch/archive.h"
#include "moonhalo/io/pytorch/pickle.h"

namespace moonhalo::io {

/// A tensor of a file of PyTorch: its `dtype`, `shape` and `strides` (in elements), and which bytes of the file hold
/// it.
struct PtTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape, strides;
  int64_t offset = 0;                            ///< of its first element in its storage, in elements
  int64_t storage_begin = 0, storage_bytes = 0;  ///< the bytes of the file that its storage takes
  bool conj = false, neg = false;  ///< its numbers are the conjugate or the negative of those in the storage
};

/// A file that torch.save wrote (.pt, .pth, .ckpt, .bin), or a .mdlus of PhysicsNeMo, read as data: nothing of its
/// pickle is carried out. Tensors are read from the disk when they are asked for.
///
///     const auto file = io::PtFile::open("model.pt");
///     for (const auto& [name, tensor] : file->tensors()) weights[name] = file->read(tensor);
///
/// Of one rank, and not collective: each rank opens the file for itself.
class PtFile {
 public:
  /// Reads the directory and the pickle. ValueError for a file that cannot be opened, is not one of PyTorch's (with
  /// what it is), is damaged or cut short, or was written in the format of before PyTorch 1.6; checks that all tensors
  /// are within the file.
  static std::shared_ptr<PtFile> open(const std::string& path);

  /// All values of the file, tensors and others.
  const Pickle& pickle() const { return *pickle_; }
  /// The tensor of a value of kind kTensor; of a kStorage: all of it, with one dim.
  const PtTensor& tensor(const PickleValue& value) const;
  /// All tensors with their names, in the order of the file: "state_dict.conv.weight". Of a pickled module the names
  /// are those of its state_dict().
  std::vector<std::pair<std::string, PtTensor>> tensors() const;
  /// "PyTorch, zip, pickle protocol 2"
  std::string format() const;
  /// JSON that stands beside the pickle, in a .mdlus: "args.json", "metadata.json".
  const std::map<std::string, std::string>& notes() const { return notes_; }

  /// Reads a tensor as torch.load gives it, on the CPU: with its strides, and sharing memory with tensors of the same
  /// storage that were read before and are still in use. RuntimeError where the disk fails.
  at::Tensor read(const PtTensor& tensor);
  /// Reads the elements in a box of the tensor, row-major; only bytes from the first to the last element of each run
  /// are read.
  at::Tensor read_block(const PtTensor& tensor, const Box& box);
  /// Reads what a tensor of the same shape needs: this rank's block as a ShardTensor of its spec, or all of it, plain.
  /// The dtype is the file's.
  at::Tensor read_for(const PtTensor& tensor, const at::Tensor& target);

 private:
  PtFile(std::string what, const std::string& path);
  struct Archive {
    FileRange range;
    std::vector<ArchiveEntry> entries;
  };
  Archive unpack();
  void read_archive(Archive archive);
  void parse();
  const ArchiveEntry* find(const std::string& name) const;
  void check_tensors();
  PtTensor make_tensor(const PickleNode& node) const;
  PtTensor storage_of(const PickleNode& storage, const std::string& who) const;
  void check(bool good, const std::string& damage) const;

  const std::string what_;
  PositionedFile file_;
  FileRange range_;
  std::string format_;
  std::map<std::string, ArchiveEntry> entries_;
  std::string root_;  ///< before the names of the entries: "model/"
  std::map<std::string, std::string> notes_;
  std::unique_ptr<Pickle> pickle_;
  std::unordered_map<int64_t, PtTensor> tensors_;  ///< by node
  /// In use, by where they begin and their bytes: a damaged file may give one place two sizes.
  std::map<std::pair<int64_t, int64_t>, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

/// The entries of a zip archive: name and bytes. ValueError as of PtFile::open. Not collective.
std::vector<ArchiveEntry> list_zip_file(const std::string& path);

}  // namespace moonhalo::io
