// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/unit_gather.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/call_tag.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

// Returns the shape of the block that a rank of the group holds.
std::vector<int64_t> block_shape(const ShardSpec& spec, const StoredCut& cut, int64_t rank) {
  std::vector<int64_t> shape = spec.local_shape();
  shape[cut.dim] = spec.cut(cut.dim).sizes[rank];
  return shape;
}

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

UnitGather::UnitGather(const std::vector<at::Tensor>& tensors) : count_(tensors.size()) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ShardTensorImpl& impl = *shard_impl(tensors[i]);
    const std::optional<StoredCut> cut = stored_cut(*impl.spec());
    TORCH_INTERNAL_ASSERT(cut);
    const auto fits = [&](const Message& message) {
      const Part& first = message.parts[0];
      return first.spec->mesh() == impl.spec()->mesh() && first.cut.mesh_dim == cut->mesh_dim &&
             message.blocks[0].scalar_type() == impl.local().scalar_type();
    };
    auto message = std::find_if(messages_.begin(), messages_.end(), fits);
    if (message == messages_.end()) message = messages_.emplace(messages_.end());
    message->parts.push_back({i, impl.spec(), *cut});
    message->blocks.push_back(impl.local());
  }
  const auto describe = [&tensors] { return specs_of(tensors); };
  const CallScope scope(tag_of(tensors), "gather_parameters", describe);
  for (Message& message : messages_) post(message);
}

void UnitGather::post(Message& message) {
  Communicator& group = group_of(*message.parts[0].spec, message.parts[0].cut);
  std::vector<int64_t> counts(group.size(), 0);
  for (const Part& part : message.parts) {
    for (int rank = 0; rank < group.size(); ++rank)
      counts[rank] += c10::multiply_integers(block_shape(*part.spec, part.cut, rank));
  }
  for (int rank = 0; rank < group.size(); ++rank)
    message.by_rank.push_back(empty_block({counts[rank]}, message.blocks[0].options()));
  const at::Tensor& mine = message.by_rank[group.rank()];
  int64_t start = 0;
  for (const at::Tensor& block : message.blocks) {
    mine.narrow(0, start, block.numel()).view(block.sizes()).copy_(block);
    start += block.numel();
  }
  message.blocks.clear();
  std::vector<moonhalo::Message> sends, receives;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    if (mine.numel() > 0) sends.push_back({rank, mine});
    if (counts[rank] > 0) receives.push_back({rank, message.by_rank[rank]});
  }
  message.work = group.exchange_async(std::move(sends), std::move(receives));
}

// `begins`: where the next part begins, by rank.
at::Tensor UnitGather::joined(const Message& message, const Part& part, std::vector<int64_t>& begins) {
  const auto& sizes = part.spec->cut(part.cut.dim).sizes;
  at::Tensor whole = empty_block(whole_spec(part.spec)->local_shape(), message.by_rank[0].options());
  int64_t row = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const std::vector<int64_t> shape = block_shape(*part.spec, part.cut, static_cast<int64_t>(rank));
    const int64_t count = c10::multiply_integers(shape);
    whole.narrow(part.cut.dim, row, sizes[rank])
        .copy_(message.by_rank[rank].narrow(0, begins[rank], count).view(shape));
    begins[rank] += count;
    row += sizes[rank];
  }
  return whole;
}

std::vector<at::Tensor> UnitGather::finish() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> whole(count_);
  for (Message& message : messages_) {
    message.work->wait();
    std::vector<int64_t> begins(message.by_rank.size(), 0);
    for (const Part& part : message.parts) whole[part.index] = joined(message, part, begins);
    message.by_rank.clear();
  }
  return whole;
}

}  // namespace moonhalo
