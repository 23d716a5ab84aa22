// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/safetensors.h"

namespace moonhalo::io {

/// Reads tensors of safetensors files that all ranks see, each rank what its block needs. Copies are read in parts and
/// exchanged, so that the ranks together read each byte about once; small ones each reads for itself. The headers are
/// known before any tensor is read, so everything can be checked first.
class CheckpointReader {
 public:
  explicit CheckpointReader(Communicator& world) : world_(world) {}

  /// A file of an entry, by the header that rank 0 read (the same on every rank). A rank that finds another header in
  /// it says so in finish(): it sees another disk. Errors as of load_safetensors, and for a tensor that another file of
  /// the entry has.
  void add(const std::string& entry, const std::string& path, const SafetensorsText& text);
  /// Null when the entry, or its tensor, is not there.
  const StoredTensor* find(const std::string& entry, const std::string& tensor) const;
  /// The names of an entry's tensors, sorted.
  std::vector<std::string> names(const std::string& entry) const;

  /// Reads the data of these entries and compares their checksums, where the files have them; nothing is changed.
  /// ValueError on every rank for data that are not those that were saved. Collective; each rank reads a share, or,
  /// `own_files`, all: of files that other ranks do not see.
  void verify(const std::vector<std::string>& entries, bool own_files = false);

  /// Reads a tensor into one of its shape, where it is after flush(); values are cast where the dtype is another. A
  /// plain one is read on every rank. Collective over the world, or the mesh. A disk that fails says so in finish().
  void read_into(const std::string& entry, const std::string& tensor, const at::Tensor& target);
  /// As read_into, by this rank alone: for tensors that only some ranks have. Not collective.
  void read_alone(const std::string& entry, const std::string& tensor, const at::Tensor& target);
  /// Reads a tensor that is this rank's block of `target` alone. Not collective.
  void read_block(const std::string& entry, const std::string& tensor, const at::Tensor& target);
  /// Collective: exchanges what ranks have read for each other so far. Few large messages do better than one a tensor.
  void flush();
  /// Flushes. Collective: what failed on one rank fails on all. ValueError for a file that became shorter since its
  /// header was read.
  void finish();

  /// The tensors that this rank has read from the files.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct File {
    std::string path;
    std::string header;  ///< that rank 0 read
    std::optional<PositionedFile> opened;
  };
  void open(File& file) const;
  struct Located {
    StoredTensor tensor;
    std::shared_ptr<File> file;
  };
  struct Extent {
    std::vector<int64_t> shape;
    int64_t element_bytes;
  };
  static Extent extent_of(const ShardSpec& spec, const StoredTensor& tensor);
  void read(File& file, const StoredTensor& tensor, const Extent& extent, const Box& box, void* data);
  bool read_to_places(File& file, const StoredTensor& tensor, const Extent& extent, const Box& box,
                      const std::vector<ReadInto>& places);
  /// A tensor that is read in parts.
  struct Shared {
    File* file;
    const StoredTensor* tensor;
    SpecPtr spec;
    at::Tensor block;
    std::vector<Box> boxes;
    bool is_shared = false;  ///< the ranks put it straight into each other's blocks
  };
  void add_shared(Shared shared);
  void exchange(const std::vector<Shared>& all);
  void put_in_place(const std::vector<Shared>& all);
  /// Memory until the next flush(): touching new memory costs more than reading.
  at::Tensor scratch(const std::vector<int64_t>& shape, at::ScalarType dtype);
  void read_copies(File& file, const StoredTensor& tensor, Communicator* group, const at::Tensor& target);
  void read_block(File& file, const StoredTensor& tensor, const at::Tensor& target);
  void read_own_block(File& file, const StoredTensor& tensor, const at::Tensor& target);

  Communicator& world_;
  std::map<std::string, std::map<std::string, Located>> entries_;
  std::map<const DeviceMesh*, std::vector<int64_t>> bytes_by_rank_;
  std::vector<Shared> shared_;
  int64_t shared_bytes_ = 0;
  at::Tensor scratch_;
  int64_t scratch_used_ = 0;
  std::exception_ptr failed_;
  int64_t bytes_read_ = 0;
};

}  // namespace moonhalo::io
