// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The sharding of a stored tensor: along tensor dim `dim`, by mesh dim `mesh_dim`.
struct StoredCut {
  int64_t dim, mesh_dim;
};
/// Returns nullopt if no placement is stored, if several are, or if other mesh dims shard the same tensor dim. Not
/// collective.
std::optional<StoredCut> stored_cut(const ShardSpec& spec);
/// Returns the spec without that sharding. Not collective.
SpecPtr whole_spec(const SpecPtr& spec);

/// An all-gather of several stored ShardTensors, with one message per pair of ranks for each mesh dim and dtype. The
/// constructor posts it; it may be in flight while the ranks compute. If blocks are written meanwhile, the results must
/// not be used, on any rank. Collective over the mesh.
class UnitGather {
 public:
  /// Every tensor has a stored_cut. All ranks pass the same tensors in the same order.
  explicit UnitGather(const std::vector<at::Tensor>& tensors);
  /// Waits and returns the gathered blocks in the given order. Call it once.
  std::vector<at::Tensor> finish();

 private:
  struct Part {
    size_t index;
    SpecPtr spec;
    StoredCut cut;
    std::vector<int64_t> begins;  // of the rows of each rank, and the end
  };
  // The tensors of one mesh dim and dtype.
  struct Group {
    std::vector<Part> parts;
    std::vector<at::Tensor> blocks;  // this rank's, by part
    std::vector<at::Tensor> packed;  // all blocks of a rank, concatenated, if they are sent packed: parts of one tensor
    WorkPtr work;
  };
  void post_in_place(Group& group, Communicator& ranks);
  void post_packed(Group& group, Communicator& ranks);
  void make_whole(const Group& group);
  void unpack(const Group& group);
  static std::vector<int64_t> sizes_of(const Group& group, int rank);
  std::vector<at::Tensor> rows_of(const Group& group, int rank) const;

  std::vector<Group> groups_;
  std::vector<at::Tensor> whole_;
};

}  // namespace moonhalo
