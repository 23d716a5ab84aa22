// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A list of tensors on its way between ranks that have the same place in two slices of a mesh: what the tensors are,
/// in words, and this rank's block of each. So number, shapes, dtypes and placements may change from list to list.
/// Tensors are plain, undefined, or ShardTensors that are not Partial, on a mesh of the same shape.
class TensorList {
 public:
  /// The tensors that leave a rank.
  explicit TensorList(const std::vector<at::Tensor>& tensors);
  /// No tensors: the stage that makes them has failed, or one before it.
  static TensorList failed();
  /// The tensors that come to a rank with slice `mesh`; `blocks` are to be filled.
  TensorList(const std::vector<int64_t>& words, const MeshPtr& mesh);

  bool has_failed() const { return failed_; }
  const std::vector<int64_t>& words() const { return words_; }
  const std::vector<at::Tensor>& blocks() const { return blocks_; }
  std::vector<at::Tensor>& blocks() { return blocks_; }
  /// The tensors, as leaves that require a gradient where the sent ones do.
  std::vector<at::Tensor> tensors(uint64_t origin) const;

 private:
  struct Entry {
    bool defined = false, requires_grad = false;
    SpecPtr spec;  // null: plain
  };
  TensorList() = default;
  bool failed_ = false;
  std::vector<int64_t> words_;
  std::vector<Entry> entries_;
  std::vector<at::Tensor> blocks_;  // of the defined tensors
};

/// One direction between two ranks of a pipeline. Lists come in the order in which they are sent. `what` says in errors
/// what is sent, and is compared between the two.
class TensorLink {
 public:
  /// `pair`: a group of these two ranks, for this direction alone. `capacity`: lists that may be under way.
  TensorLink(CommunicatorPtr pair, int64_t capacity)
      : pair_(std::move(pair)), peer_(1 - pair_->rank()), capacity_(static_cast<size_t>(capacity)) {}

  /// Waits until this list fits, not until it is taken. The tensors must not be written until then.
  void send(const TensorList& list, const std::string& what);
  /// Nothing where the list has failed.
  std::optional<std::vector<at::Tensor>> receive(const MeshPtr& mesh, const std::string& what);
  /// In a dry run, where nothing comes: what a list of these words would bring, all zeros.
  std::vector<at::Tensor> receive_zeros(const std::vector<int64_t>& words, const MeshPtr& mesh,
                                        const std::string& what);
  /// Returns when everything sent was taken.
  void finish();
  /// Forgets what was sent: the other rank may never take it.
  void abandon();

 private:
  void wait_for_capacity(size_t most_under_way);

  CommunicatorPtr pair_;
  int peer_;
  size_t capacity_;
  std::deque<std::vector<WorkPtr>> under_way_;  // by list
};

/// The tensors of rank `root` of `group` on all its ranks; in a dry run this rank's own. Collective over the group.
std::vector<at::Tensor> broadcast_tensors(Communicator& group, int root, const std::vector<at::Tensor>& tensors,
                                          const MeshPtr& mesh);

}  // namespace moonhalo
