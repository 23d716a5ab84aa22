// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/tensor_halos.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/tensor/drop_halos.h"
#include "moonhalo/engine/tensor/host_halos.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/tensor_context.h"

namespace moonhalo {

// All that a tensor keeps, of one version.
struct TensorHalos {
  uint32_t version;
  int64_t setting;
  std::vector<std::shared_ptr<HaloCache::Entry>> entries = {};  // oldest first
};

namespace {

constexpr size_t kMostEntries = 16;

// Null where nothing is kept, or only of another version or setting.
TensorHalos* kept_by(ShardTensorImpl& impl) {
  ShardTensorMeta* notes = notes_of(impl);
  TensorHalos* kept = notes != nullptr ? notes->halos.get() : nullptr;
  return kept != nullptr && kept->version == version_of(impl) && kept->setting == halo_setting() ? kept : nullptr;
}

class CacheOfTensor final : public HaloCache {
 public:
  CacheOfTensor(at::Tensor tensor, const c10::OperatorHandle& op) : tensor_(std::move(tensor)), op_(op) {}
  /// ValueError on a rank whose block was written behind the ShardTensor's back since.
  std::shared_ptr<const Entry> find(const IntervalMap& map) const override;
  std::shared_ptr<Entry> keep(const IntervalMap& map) const override;

 private:
  at::Tensor tensor_;
  c10::OperatorHandle op_;
};

bool equal(const IntervalMap::Key& a, const IntervalMap::Key& b) {
  return &a == &b || (a.from == b.from && a.requests == b.requests);
}

std::shared_ptr<const HaloCache::Entry> CacheOfTensor::find(const IntervalMap& map) const {
  if (auto filled = rows_in_ghosts(map, tensor_, op_.operator_name().name.c_str())) return filled;
  if (!map.key() || !halo_options().keep) return nullptr;
  ShardTensorImpl& impl = *shard_impl(tensor_);
  const TensorHalos* kept = kept_by(impl);
  if (kept == nullptr) return nullptr;
  const auto found = std::find_if(kept->entries.begin(), kept->entries.end(),
                                  [&](const auto& entry) { return equal(*entry->key, *map.key()); });
  if (found == kept->entries.end()) return nullptr;
  const Entry& halo = **found;
  const uint32_t now = version_of(*impl.local().unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(
      halo.block_version == now, op_.operator_name().name,
      ": this rank's block was written behind the ShardTensor's back, while other ranks keep its old edges\n  have  ",
      impl.spec()->to_string(), ", rank ", impl.spec()->mesh()->rank(), "'s block at version ", now,
      ", its edges kept at ", halo.block_version,
      "\n  fix   write through the ShardTensor, on every rank (not through to_local() or .data()), or ",
      "set_halo{keep = false}");
  TORCH_CHECK_VALUE(halo.arrived, op_.operator_name().name,
                    ": edges that were to be kept never arrived on this rank\n  have  ", impl.spec()->to_string(),
                    "\n  fix   see the error that ended the operator which exchanged them");
  return *found;
}

std::shared_ptr<HaloCache::Entry> CacheOfTensor::keep(const IntervalMap& map) const {
  if (!map.key() || !halo_options().keep) return nullptr;
  ShardTensorImpl& impl = *shard_impl(tensor_);
  if (impl.spec() != map.key()->from) return nullptr;
  if (kept_by(impl) == nullptr)
    make_notes(impl).halos = std::make_shared<TensorHalos>(TensorHalos{version_of(impl), halo_setting()});
  auto& entries = kept_by(impl)->entries;
  entries.erase(
      std::remove_if(entries.begin(), entries.end(), [&](const auto& entry) { return equal(*entry->key, *map.key()); }),
      entries.end());
  if (entries.size() == kMostEntries) entries.erase(entries.begin());
  entries.push_back(std::make_shared<Entry>());
  entries.back()->key = map.key();
  entries.back()->block_version = version_of(*impl.local().unsafeGetTensorImpl());
  return entries.back();
}

}  // namespace

CurrentCall::CurrentCall(const c10::OperatorHandle& op, Arguments arguments)
    : op_(op), arguments_(std::move(arguments)), current_(tensor_context->call, this) {}

HaloCachePtr halo_cache_of_argument(int index) {
  const CurrentCall* const call = tensor_context->call;
  if (call == nullptr || c10::InferenceMode::is_enabled()) return nullptr;
  HaloCachePtr cache;
  for (const auto& [argument, tensor] : call->arguments_) {
    if (argument != index || !tensor.unsafeGetTensorImpl()->version_counter().enabled()) continue;
    cache = std::make_shared<CacheOfTensor>(tensor, call->op_);
  }
  return cache;
}

void invalidate_halos(ShardTensorImpl& impl) {
  drop_halos(impl);
  if (!impl.local().is_inference()) impl.local().unsafeGetTensorImpl()->bump_version();
}

}  // namespace moonhalo
