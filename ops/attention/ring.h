// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "moonhalo/ops/attention/block_kernel.h"
#include "moonhalo/ops/attention/specs.h"

namespace moonhalo {

/// One attention as this rank carries it out: its blocks, the ring, and what is merged afterwards. Made from specs
/// alone.
///
///     step 0        own queries, own keys
///     step s        keys of the rank s ahead, which arrived during step s - 1; queries of the rank s behind, if it
///                   sends any
///     afterwards    results of sent queries return during the next step; mesh dims that cut keys alone merge by
///                   log-sum-exp
///
/// Blocks are sent straight from owner to user: the same bytes as from neighbour to neighbour, and rows that no
/// other rank needs are not sent. Backward takes such steps too; gradients of keys and queries that were sent
/// return in the same way. There a sent query needs its gradient and two sums but not its output, so of equal
/// blocks sending queries is 3/4 of the bytes, and all are sent.
class AttentionRing {
 public:
  AttentionRing(AttentionSpecs specs, AttentionCall call);

  const AttentionSpecs& specs() const { return specs_; }
  /// Specs of results: Partial where ranks hold addends.
  SpecPtr output_spec() const { return output_; }
  SpecPtr grad_query_spec() const { return grad_query_; }
  SpecPtr grad_key_spec() const { return grad_key_; }
  SpecPtr grad_value_spec() const { return grad_value_; }
  SpecPtr grad_mask_spec() const { return grad_mask_; }

  /// Output and logsumexp of this rank's blocks. Collective over the mesh. The mask may be undefined.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const at::Tensor& mask, uint64_t dropout_key) const;
  struct Gradients {
    at::Tensor query, key, value, mask;
  };
  /// Collective over the mesh. `output` and `logsumexp` whole, not Partial.
  Gradients backward(const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const at::Tensor& mask, const at::Tensor& output,
                     const at::Tensor& logsumexp, uint64_t dropout_key, bool needs_mask) const;

 private:
  struct Messages;
  struct Step;
  struct Blocks;
  struct Backward;
  void ring_members();
  void partition_work();
  void choose_result_specs();
  Messages messages() const;
  Blocks blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask) const;
  void exchange_inputs(const AttentionWork& work, int64_t step, const Blocks& blocks, Step& state,
                       Messages& messages) const;
  void rotate(std::vector<Step>& steps, const AttentionWork& work,
              const std::function<void(int64_t step, Messages&)>& inputs,
              const std::function<void(int64_t step)>& compute,
              const std::function<void(int64_t step, Messages&)>& results,
              const std::function<void(int64_t step)>& arrived) const;
  void merge(at::Tensor& output, at::Tensor& logsumexp) const;
  /// True if the mask is cut along the keys, as they are.
  bool cuts_mask_keys() const;
  at::Tensor mask_of(const at::Tensor& mask, const Interval& queries, const Interval& keys) const;
  /// The members s ahead, whose keys are used here in step s, and s behind, which use the keys of this one.
  int64_t next_rank(int64_t s) const { return (me_ + s) % work_->size(); }
  int64_t previous_rank(int64_t s) const { return (me_ - s + work_->size()) % work_->size(); }
  /// The rank of the mesh of the member that is `places` ahead; below 0 it is behind.
  int rank_ahead(int64_t places) const { return members_[next_rank(places + work_->size())]; }

  AttentionSpecs specs_;
  AttentionCall call_;
  SpecPtr output_, grad_query_, grad_key_, grad_value_, grad_mask_;
  bool everywhere_ = false;      // the keys of all members are on every one of them
  std::vector<int> members_;     // ranks of the mesh
  int64_t me_ = 0;               // place among them
  int64_t key_begin_ = 0;        // of this rank's block
  std::vector<int64_t> merged_;  // mesh dims that cut the keys alone
  std::unique_ptr<const AttentionWork> work_, backward_work_;
};

}  // namespace moonhalo
