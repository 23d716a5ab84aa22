// SPDX-License-Identifier: Apache-2.0
#include "engine/kept_halos.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "engine/halo.h"
#include "engine/shard_tensor.h"
#include "engine/tensor_notes.h"
#include "engine/versions.h"

namespace moonhalo {

// All that a tensor keeps, of one version.
struct KeptHalos {
  uint32_t version;
  int64_t setting;
  std::vector<std::shared_ptr<KeptHalo>> halos = {};  // oldest first
};

namespace {

thread_local const HaloCall* call_of_thread = nullptr;

// Null where nothing is kept, or only of another version or setting.
KeptHalos* kept_by(ShardTensorImpl& impl) {
  TensorNotes* notes = notes_of(impl);
  KeptHalos* kept = notes != nullptr ? notes->halos.get() : nullptr;
  return kept != nullptr && kept->version == version_of(impl) && kept->setting == halo_setting() ? kept : nullptr;
}

bool equal(const IntervalMap::Key& a, const IntervalMap::Key& b) {
  return &a == &b || (a.from == b.from && a.needs == b.needs);
}

}  // namespace

HaloCall::HaloCall(const c10::OperatorHandle& op, Arguments arguments)
    : op_(op), arguments_(std::move(arguments)), before_(std::exchange(call_of_thread, this)) {}

HaloCall::~HaloCall() { call_of_thread = before_; }

HaloSource HaloSource::of_argument(int index) {
  HaloSource source;
  if (call_of_thread == nullptr || c10::InferenceMode::is_enabled()) return source;
  for (const auto& [argument, tensor] : call_of_thread->arguments_) {
    if (argument != index || !tensor.unsafeGetTensorImpl()->version_counter().enabled()) continue;
    source.tensor_ = tensor;
    source.op_ = &call_of_thread->op_;
  }
  return source;
}

std::shared_ptr<const KeptHalo> HaloSource::find(const IntervalMap& map) const {
  if (!tensor_.defined() || !map.key()) return nullptr;
  ShardTensorImpl& impl = *shard_impl(tensor_);
  const KeptHalos* kept = kept_by(impl);
  if (kept == nullptr) return nullptr;
  const auto found = std::find_if(kept->halos.begin(), kept->halos.end(),
                                  [&](const auto& halo) { return equal(*halo->key, *map.key()); });
  if (found == kept->halos.end()) return nullptr;
  const KeptHalo& halo = **found;
  const uint32_t now = version_of(*impl.local().unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(halo.block_version == now, op_->operator_name().name,
                    ": this rank's block was written behind the ShardTensor's back, while other ranks keep its old edges\n  have  ",
                    impl.spec()->to_string(), ", rank ", impl.spec()->mesh()->rank(), "'s block at version ", now, ", its edges kept at ",
                    halo.block_version, "\n  fix   write through the ShardTensor, on every rank (not through to_local() or .data()), or ",
                    "set_halo{keep = false}");
  TORCH_CHECK_VALUE(halo.arrived, op_->operator_name().name, ": edges that were to be kept never arrived on this rank\n  have  ",
                    impl.spec()->to_string(), "\n  fix   see the error that ended the operator which exchanged them");
  return *found;
}

std::shared_ptr<KeptHalo> HaloSource::keep(const IntervalMap& map) const {
  if (!tensor_.defined() || !map.key()) return nullptr;
  ShardTensorImpl& impl = *shard_impl(tensor_);
  if (impl.spec() != map.key()->from) return nullptr;
  if (kept_by(impl) == nullptr)
    make_notes(impl).halos = std::make_shared<KeptHalos>(KeptHalos{version_of(impl), halo_setting()});
  auto& halos = kept_by(impl)->halos;
  halos.erase(
      std::remove_if(halos.begin(), halos.end(), [&](const auto& halo) { return equal(*halo->key, *map.key()); }),
      halos.end());
  if (halos.size() == kMost) halos.erase(halos.begin());
  halos.push_back(std::make_shared<KeptHalo>());
  halos.back()->key = map.key();
  halos.back()->block_version = version_of(*impl.local().unsafeGetTensorImpl());
  return halos.back();
}

void drop_kept_halos(ShardTensorImpl& impl) {
  if (TensorNotes* notes = notes_of(impl)) notes->halos.reset();
}

void halos_become_old(ShardTensorImpl& impl) {
  drop_kept_halos(impl);
  if (!impl.local().is_inference()) impl.local().unsafeGetTensorImpl()->bump_version();
}

}  // namespace moonhalo
