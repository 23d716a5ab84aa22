// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Says how a tensor is stored: in rows of `dim` over one mesh dim.
struct StoredCut {
  int64_t dim, mesh_dim;
};
/// Nothing where no placement is stored, several are, or the dim is cut by others too.
std::optional<StoredCut> stored_cut(const ShardSpec& spec);
/// The spec without that cut.
SpecPtr whole_spec(const SpecPtr& spec);

/// Stored ShardTensors on their way to every rank, all in one message per pair of ranks (of one mesh dim and dtype). It
/// is posted at once, collective over the mesh, and may travel while the ranks compute; `finish` waits. Of blocks that
/// are written meanwhile what arrives is of no use, on all ranks alike.
class UnitGather {
 public:
  /// Each has a stored_cut. All ranks give the same tensors in the same order.
  explicit UnitGather(const std::vector<at::Tensor>& tensors);
  /// Blocks of the whole tensors, in the order given. Once.
  std::vector<at::Tensor> finish();

 private:
  struct Part {
    size_t index;
    SpecPtr spec;
    StoredCut cut;
  };
  // All of one mesh dim and dtype.
  struct Group {
    std::vector<Part> parts;
    std::vector<at::Tensor> blocks;  // this rank's, by part
    std::vector<at::Tensor> packed;  // all blocks of a rank, one behind the other, if they are sent so
    WorkPtr work;
  };
  void post_in_place(Group& group, Communicator& ranks);
  void post_packed(Group& group, Communicator& ranks);
  void make_whole(const Group& group);
  std::vector<at::Tensor> rows_of(const Group& group, int rank) const;

  std::vector<Group> groups_;
  std::vector<at::Tensor> whole_;
};

}  // namespace moonhalo
