// SPDX-License-Identifier: Apache-2.0
// Routes that are kept with the index that they were made for, such as the edges of a graph.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <list>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/ops/support/picked_rows.h"

namespace moonhalo {
namespace {

struct CachedRoute {
  RouteFacts facts;
  PickedRoutePtr route;
  at::Tensor values;  // this rank's entries, copied
  SpecPtr spec;       // of the ShardTensor that the index is, or is a view of
  uint64_t origin = 0, writes = 0;
  uint32_t version = 0, block_version = 0;
  std::shared_ptr<const WriteCount> count;  // on devices, where values are not compared
};

constexpr size_t kMostRoutes = 16;

// Comparing on a device would make the host wait.
bool compared(const at::Tensor& values) { return values.is_cpu(); }

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && (!compared(a) || a.equal(b));
}

// The tensor that a view looks into.
ShardTensorImpl* viewed(const at::Tensor& tensor) {
  ShardTensorImpl* whole = tensor.is_view() ? shard_impl(at::Tensor(tensor._base())) : nullptr;
  return whole != nullptr ? whole : shard_impl(tensor);
}

// Each rank may find out for itself if an index that every rank has whole is as it was.
struct WholeIndex {
  c10::weak_intrusive_ptr<c10::TensorImpl> owner;
  uint32_t version;
  CachedRoute kept;
};
const RankLocal<std::list<WholeIndex>> whole_of_rank;

}  // namespace

struct CachedRoutes {
  std::list<CachedRoute> list;  // the latest first
};

namespace {

PickedRoutePtr route_of_whole(const at::Tensor& given, const RouteFacts& facts, const at::Tensor& values,
                              const std::function<PickedRoutePtr()>& make) {
  const ShardTensorImpl* impl = shard_impl(given);
  const at::Tensor& plain = impl != nullptr ? impl->local() : given;
  const auto owner = plain.is_view() ? plain._base().getIntrusivePtr() : plain.getIntrusivePtr();
  const uint32_t version = version_of(*owner);
  auto& list = *whole_of_rank;
  list.remove_if([](const WholeIndex& index) { return index.owner.expired(); });
  for (auto index = list.begin(); index != list.end(); ++index) {
    if (index->owner.lock() != owner || index->version != version || !(index->kept.facts == facts)) continue;
    if (!same_values(index->kept.values, values)) continue;
    list.splice(list.begin(), list, index);
    return index->kept.route;
  }
  CachedRoute kept{.facts = facts, .route = make(), .values = values.clone()};
  PickedRoutePtr route = kept.route;
  list.push_front({c10::weak_intrusive_ptr<c10::TensorImpl>(owner), version, std::move(kept)});
  if (list.size() > kMostRoutes) list.pop_back();
  return route;
}

}  // namespace

PickedRoutePtr cached_route(const at::Tensor& given, const RouteFacts& facts, const at::Tensor& values, const char* op,
                            const std::function<PickedRoutePtr()>& make) {
  if (!given.defined() || c10::InferenceMode::is_enabled() || given.is_inference()) return make();
  if (facts.known) return route_of_whole(given, facts, values, make);
  const ShardTensorImpl* own = shard_impl(given);
  ShardTensorImpl* whole = viewed(given);
  if (whole == nullptr || !whole->version_counter().enabled()) return make();
  const uint32_t version = version_of(*whole), block_version = version_of(*whole->local().unsafeGetTensorImpl());
  ShardTensorMeta& notes = make_notes(*whole);
  if (!notes.routes) notes.routes = std::make_shared<CachedRoutes>();
  const std::shared_ptr<CachedRoutes> routes = notes.routes;
  for (const CachedRoute& kept : routes->list) {
    if (kept.origin != own->origin || kept.version != version || kept.spec != whole->spec() || !(kept.facts == facts) ||
        (kept.count && writes_so_far(*kept.count) != kept.writes))
      continue;
    TORCH_CHECK_VALUE(
        kept.block_version == block_version && same_values(kept.values, values), op,
        ": this rank's block of the index was written behind the ShardTensor's back, while all ranks keep whose rows "
        "it names\n",
        "  have  ", whole->spec()->to_string(), ", rank ", whole->spec()->mesh()->rank(), "'s block at version ",
        block_version, ", whose rows were asked for at ", kept.block_version,
        "\n  fix   write through the ShardTensor, on every rank, or make a new one (from_local) of the changed block");
    return kept.route;
  }
  CachedRoute kept{.facts = facts,
                   .route = make(),
                   .values = values.clone(),
                   .spec = whole->spec(),
                   .origin = own->origin,
                   .version = version,
                   .block_version = block_version};
  if (!compared(values)) {
    kept.count = count_writes(whole->local());
    kept.writes = writes_so_far(*kept.count);
  }
  routes->list.push_front(std::move(kept));
  if (routes->list.size() > kMostRoutes) routes->list.pop_back();
  return routes->list.front().route;
}

}  // namespace moonhalo
