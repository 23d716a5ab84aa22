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

/// Writes the safetensors files of a checkpoint (checkpoint_folder.h), all ranks at once. Tensors are whole and
/// row-major in the files; each rank writes the bytes that share_out assigns to it, without a copy of the tensor. All
/// ranks see the same file system.
///
///     CheckpointWriter writer(world, "run/step100");      each rank; then, identically on all of them:
///     writer.add("model", {{"weight", weight}, ...});     run/step100.partial/model.safetensors
///     writer.check_same_entries();
///     writer.create();                                    rank 0 alone, then:
///     writer.write();                                     or copy(), for a BackgroundWrite
///
/// write_checkpoint (packed_checkpoint.h) does these steps. The headers get the checksums of the tensors at the end. In
/// a dry run no file is written: messages and memory are those of a real one.
///
/// A ShardTensor is written by the ranks of its mesh; of a tensor on slices of a mesh, by the slice that contains its
/// owner. A plain tensor is written by its owner: rank 0, or the rank given to add(). Ranks that lack a tensor give one
/// of device "meta".
class CheckpointWriter {
 public:
  /// `in_background`: copy() will be called, not write().
  CheckpointWriter(Communicator& world, std::string path, bool in_background = false);
  /// Makes a writer of this rank alone, for plain tensors: nothing is collective, and other ranks may have other disks.
  /// `is_dry`: of a rank of a dry run.
  explicit CheckpointWriter(std::string path, bool is_dry = false);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;

  /// Adds the file NAME.safetensors. Reduces Partial tensors, which is collective over their mesh. `owners`: a rank of
  /// the world for each tensor; empty: rank 0. `metadata` and errors are those of save_safetensors.
  void add(const std::string& name, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
           const std::vector<int64_t>& owners = {}, std::map<std::string, std::string> metadata = {});
  /// Throws ValueError on every rank if the ranks have added other names, shapes or dtypes. Collective.
  void check_same_entries();
  /// Makes the files in PATH.partial with their final sizes. Rank 0 alone.
  void create();
  /// Writes the tensors and returns when they are on the disk. Collective: throws on all ranks if it fails on one.
  void write();
  /// Copies the bytes that this rank has to write, so that the tensors may change. Collective if elements are sent.
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
  const bool is_dry_;
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
