// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/unit_gather.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/call_tag.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

Communicator& group_of(const ShardSpec& spec, const StoredCut& cut) { return spec.mesh()->group(cut.mesh_dim); }

}  // namespace

std::optional<StoredCut> stored_cut(const ShardSpec& spec) {
  const uint64_t stored = spec.layout().stored;
  if (std::popcount(stored) != 1 || spec.has_partial()) return std::nullopt;
  const int64_t mesh_dim = std::countr_zero(stored);
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    if (spec.cut(d).mesh_dims == std::vector<int64_t>{mesh_dim}) return StoredCut{d, mesh_dim};
  }
  return std::nullopt;
}

SpecPtr whole_spec(const SpecPtr& spec) {
  Layout layout = spec->layout();
  layout.cuts[stored_cut(*spec)->dim] = {};
  return intern(std::move(layout));
}

UnitGather::UnitGather(const std::vector<at::Tensor>& tensors) : whole_(tensors.size()) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ShardTensorImpl& impl = *shard_impl(tensors[i]);
    const std::optional<StoredCut> cut = stored_cut(*impl.spec());
    TORCH_INTERNAL_ASSERT(cut);
    const auto fits = [&](const Group& group) {
      const Part& first = group.parts[0];
      return first.spec->mesh() == impl.spec()->mesh() && first.cut.mesh_dim == cut->mesh_dim &&
             group.blocks[0].scalar_type() == impl.local().scalar_type();
    };
    auto group = std::find_if(groups_.begin(), groups_.end(), fits);
    if (group == groups_.end()) group = groups_.emplace(groups_.end());
    group->parts.push_back({i, impl.spec(), *cut});
    group->blocks.push_back(impl.local());
  }
  const auto describe = [&tensors] { return specs_of(tensors); };
  const CallScope scope(tag_of(tensors), "gather_parameters", describe);
  for (Group& group : groups_) post(group);
}

// Blocks go straight to their rows of the whole tensors, where the communicator can do that.
void UnitGather::post(Group& group) {
  Communicator& ranks = group_of(*group.parts[0].spec, group.parts[0].cut);
  std::vector<Message> sends, receives;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == ranks.rank()) continue;
    sends.push_back({rank, {}, group.blocks});
    receives.push_back({rank, {}});
  }
  for (size_t i = 0; i < group.parts.size(); ++i) {
    const Part& part = group.parts[i];
    at::Tensor& whole = whole_[part.index];
    whole = empty_block(whole_spec(part.spec)->local_shape(), group.blocks[i].options());
    int64_t row = 0;
    auto receive = receives.begin();
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const int64_t rows = part.spec->cut(part.cut.dim).sizes[rank];
      const at::Tensor place = whole.narrow(part.cut.dim, std::exchange(row, row + rows), rows);
      if (rank == ranks.rank()) {
        place.copy_(group.blocks[i]);
      } else {
        (receive++)->parts.push_back(place);
      }
    }
  }
  group.blocks.clear();
  const auto moves_nothing = [](const Message& message) { return message.nbytes() == 0; };
  std::erase_if(sends, moves_nothing);
  std::erase_if(receives, moves_nothing);
  group.work = ranks.exchange_async(std::move(sends), std::move(receives));
}

std::vector<at::Tensor> UnitGather::finish() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (Group& group : groups_) group.work->wait();
  return std::move(whole_);
}

}  // namespace moonhalo
