// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/io/checkpoint/background_write.h"
#include "moonhalo/io/shares/file_parts.h"

namespace moonhalo::io {

/// Writes the safetensors files of a checkpoint (checkpoint_folder.h), all ranks at once: every tensor whole and
/// row-major, each rank the bytes that share_out gives it, straight from where they are. All ranks see the same
/// file system.
///
///     CheckpointWriter writer(world, "run/step100");      each rank; then, identically on all of them:
///     writer.add("model", {{"weight", weight}, ...});     run/step100.partial/model.safetensors
///     writer.check_same_entries();
///     writer.create();                                    rank 0 alone
///     writer.write();                                     or copy(), for a BackgroundWrite
///
/// The headers get the checksums of the tensors when all bytes are known.
///
/// ShardTensors are written by the ranks of their mesh (of slices of a mesh: of the one that holds their owner),
/// plain tensors by their owner: rank 0, or the rank that is given to add(). Where only some ranks have a tensor,
/// the others give one of device "meta".
class CheckpointWriter {
 public:
  /// `in_background`: for copy().
  CheckpointWriter(Communicator& world, std::string path, bool in_background = false);
  /// Makes one for this rank alone, which writes plain tensors: nothing is collective, other ranks may have other
  /// disks.
  explicit CheckpointWriter(std::string path);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;

  /// Sums Partial tensors, which is collective over their mesh. `owners`: a rank of the world for each tensor, or none.
  /// `metadata` and errors as of save_safetensors.
  void add(const std::string& name, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
           const std::vector<int64_t>& owners = {}, std::map<std::string, std::string> metadata = {});
  /// Collective. ValueError on every rank unless all have added tensors of the same names, shapes and dtypes.
  void check_same_entries();
  /// Makes the files in PATH.partial, with space for all tensors. Rank 0 alone.
  void create();
  /// Returns when the tensors are on the disk. Collective; what fails on one rank fails on all.
  void write();
  /// Copies what this rank has to write, so that the tensors may change. Collective if very short runs are gathered.
  std::shared_ptr<BackgroundWrite> copy();

  /// Bytes that this rank writes, without headers.
  int64_t bytes() const;

 private:
  struct File;
  bool writes(const MeshPtr& mesh, int64_t owner);
  uint32_t crc_of(size_t part, int64_t offset, const char* data, int64_t bytes) const;
  FilePart make_part(const at::Tensor& tensor, int64_t owner);

  const CommunicatorPtr alone_;
  Communicator& world_;
  const std::string path_;
  const int64_t short_run_;
  std::vector<File> files_;
  std::vector<FilePart> parts_;
  std::vector<size_t> tensor_of_part_;  // its number over all files
  size_t tensors_ = 0;
  std::map<const DeviceMesh*, std::vector<int64_t>> bytes_by_rank_;
  std::map<const DeviceMesh*, std::vector<std::string>> members_;
};

}  // namespace moonhalo::io
