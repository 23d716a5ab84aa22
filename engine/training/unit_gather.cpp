// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/unit_gather.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/equal_copies.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

Communicator& group_of(const ShardSpec& spec, const StoredCut& cut) { return spec.mesh()->group(cut.mesh_dim); }

// Returns how many elements a rank of the group holds.
int64_t elements_of(const ShardSpec& spec, const StoredCut& cut, int rank) {
  std::vector<int64_t> shape = spec.local_shape();
  shape[cut.dim] = spec.cut(cut.dim).sizes[rank];
  return c10::multiply_integers(shape);
}

WorkPtr exchange(Communicator& ranks, std::vector<Message> sends, std::vector<Message> receives) {
  const auto moves_nothing = [](const Message& message) { return message.nbytes() == 0; };
  std::erase_if(sends, moves_nothing);
  std::erase_if(receives, moves_nothing);
  return ranks.exchange_async(std::move(sends), std::move(receives));
}

// Calls visit(tensor, its place in `flat`).
template <typename Visit>
void each_part(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, const Visit& visit) {
  int64_t start = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t count = tensor.numel();
    visit(tensor, flat.narrow(0, std::exchange(start, start + count), count).view(tensor.sizes()));
  }
}

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
    group->parts.push_back({i, impl.spec(), *cut, {0}});
    for (const int64_t size : impl.spec()->cut(cut->dim).sizes)
      group->parts.back().begins.push_back(group->parts.back().begins.back() + size);
    group->blocks.push_back(impl.local());
  }
  const auto describe = [&tensors] { return specs_of(tensors); };
  const CallScope scope(fingerprint_of(tensors), "gather_parameters", describe);
  const TrafficScope moving(Traffic::kParameters);
  for (Group& group : groups_) {
    Communicator& ranks = group_of(*group.parts[0].spec, group.parts[0].cut);
    ranks.takes_parts() ? post_in_place(group, ranks) : post_packed(group, ranks);
  }
}

void UnitGather::make_whole(const Group& group) {
  for (size_t i = 0; i < group.parts.size(); ++i) {
    const Part& part = group.parts[i];
    whole_[part.index] = empty_block(whole_spec(part.spec)->local_shape(), group.blocks[i].options());
  }
}

// Returns where the rank's blocks belong.
std::vector<at::Tensor> UnitGather::rows_of(const Group& group, int rank) const {
  std::vector<at::Tensor> rows;
  for (const Part& part : group.parts) {
    const std::vector<int64_t>& begins = part.begins;
    rows.push_back(whole_[part.index].narrow(part.cut.dim, begins[rank], begins[rank + 1] - begins[rank]));
  }
  return rows;
}

// Blocks go straight to their rows.
void UnitGather::post_in_place(Group& group, Communicator& ranks) {
  make_whole(group);
  std::vector<Message> sends, receives;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<at::Tensor> rows = rows_of(group, rank);
    if (rank == ranks.rank()) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i].copy_(group.blocks[i]);
    } else {
      sends.push_back({rank, {}, group.blocks});
      receives.push_back({rank, {}, rows});
    }
  }
  group.work = exchange(ranks, std::move(sends), std::move(receives));
}

// The whole tensors are made when the data has arrived, so that no more is held meanwhile than one of both.
void UnitGather::post_packed(Group& group, Communicator& ranks) {
  std::vector<int64_t> counts;  // elements by rank
  for (int rank = 0; rank < ranks.size(); ++rank) {
    counts.push_back(0);
    for (const Part& part : group.parts) counts.back() += elements_of(*part.spec, part.cut, rank);
  }
  group.packed = split_block(empty_block({c10::sum_integers(counts)}, group.blocks[0].options()), counts);
  const at::Tensor& mine = group.packed[ranks.rank()];
  each_part(mine, group.blocks, [](const at::Tensor& block, const at::Tensor& place) { place.copy_(block); });
  std::vector<Message> sends, receives;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == ranks.rank()) continue;
    sends.push_back({rank, mine});
    receives.push_back({rank, group.packed[rank]});
  }
  group.work = exchange(ranks, std::move(sends), std::move(receives));
}

// Returns the number of rows that a rank has of each tensor.
std::vector<int64_t> UnitGather::sizes_of(const Group& group, int rank) {
  std::vector<int64_t> sizes;
  for (const Part& part : group.parts) sizes.push_back(part.spec->cut(part.cut.dim).sizes[rank]);
  return sizes;
}

// Where copies are joined, what other ranks would send is zeros.
void UnitGather::unpack(const Group& group) {
  const Communicator& members = group_of(*group.parts[0].spec, group.parts[0].cut);
  const auto ranks = static_cast<int>(group.packed.size());
  const auto calls = calls_by_rank(members, ranks, [&](int rank) { return sizes_of(group, rank); });
  if (std::find(calls.begin(), calls.end(), 0) != calls.end()) {
    const at::DisableRecordFunctionGuard unseen;
    for (const Part& part : group.parts) {
      if (!is_fake(whole_[part.index])) whole_[part.index].zero_();
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (calls[rank] == 0 && rank != members.rank()) continue;
    const SeenAs seen(calls[rank]);
    const std::vector<at::Tensor> rows = rows_of(group, rank);
    if (rank == members.rank()) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i].copy_(group.blocks[i]);
    } else {
      each_part(group.packed[rank], rows, [](const at::Tensor& place, const at::Tensor& block) { place.copy_(block); });
    }
  }
}

std::vector<at::Tensor> UnitGather::finish() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (Group& group : groups_) {
    group.work->wait();
    if (group.packed.empty()) continue;
    make_whole(group);
    unpack(group);
    group.packed.clear();
  }
  return std::move(whole_);
}

}  // namespace moonhalo
