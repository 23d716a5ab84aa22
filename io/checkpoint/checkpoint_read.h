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

/// Reads tensors of safetensors files that all ranks see; each rank reads what its block needs. If ranks hold copies,
/// each reads a part and they exchange the parts, so that all ranks together read each byte about once; each rank reads
/// small copies itself. The headers are added first, so everything can be checked before a tensor changes:
///
///     CheckpointReader reader(world);
///     reader.add("model", "run/model.safetensors", header);    header: read by rank 0, the same on all ranks
///     reader.find("model", "weight")                           shape and dtype, or null
///     reader.read_into("model", "weight", weight);             plain, or a ShardTensor
///     reader.finish();
class CheckpointReader {
 public:
  explicit CheckpointReader(Communicator& world) : world_(world) {}

  /// Adds a file of an entry by the header that rank 0 read, the same on every rank. finish() reports a rank that finds
  /// another header in the file, because it sees another disk. Throws as load_safetensors does, and for a tensor that
  /// another file of the entry has.
  void add(const std::string& entry, const std::string& path, const SafetensorsText& text);
  /// Returns null if there is no such entry, or no such tensor in it.
  const StoredTensor* find(const std::string& entry, const std::string& tensor) const;
  /// The names of an entry's tensors, sorted.
  std::vector<std::string> names(const std::string& entry) const;

  /// Reads the data of these entries and compares the checksums, if the files have them; changes nothing. Throws
  /// ValueError on every rank if one differs. Collective. Each rank reads a share; with `own_files` all, of files that
  /// other ranks do not see. In a dry run nothing is compared.
  void verify(const std::vector<std::string>& entries, bool own_files = false);

  /// Reads a tensor into `target`, which has its shape and may have another dtype. The values are there after flush().
  /// Every rank reads a plain target. Collective over the world, or over the mesh of `target`. finish() reports errors
  /// of the disk.
  void read_into(const std::string& entry, const std::string& tensor, const at::Tensor& target);
  /// Does the same on this rank alone, for tensors that only some ranks have. Not collective.
  void read_alone(const std::string& entry, const std::string& tensor, const at::Tensor& target);
  /// Reads a stored tensor that is this rank's block of `target`. Not collective.
  void read_block(const std::string& entry, const std::string& tensor, const at::Tensor& target);
  /// Exchanges what the ranks have read for each other so far, in few large messages. Collective.
  void flush();
  /// Flushes, and throws on all ranks what failed on any, such as a file that became shorter since its header was read.
  /// Collective.
  void finish();

  /// Bytes of tensors that this rank has read from the files.
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
  void read_copies(File& file, const StoredTensor& tensor, Communicator* group, const at::Tensor& target,
                   const DeviceMesh* mesh = nullptr);
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
