// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>

namespace moonhalo {

class CopiedMemory;
struct GatherMeta;
struct CachedRoutes;

/// The engine's notes beside a ShardTensor. LibTorch has one place for that, its BackendMeta.
struct ShardTensorMeta final : c10::BackendMeta {
  std::shared_ptr<GatherMeta> gathered;  ///< of this object alone (unsharded_cache.cpp)
  std::shared_ptr<CachedRoutes> routes;  ///< of this object alone (ops/support/cached_routes.cpp)
  std::shared_ptr<CopiedMemory> copied;  ///< of all that have this block: it is a copy (view_copies.h)
  bool any_order = false;       ///< of this object alone: a plain tensor's strides are not known (result_strides.h)
  bool has_new_layout = false;  ///< of this object alone, of any order: its block lay otherwise than row by row

  /// A tensor that takes over another's metadata (detach, set_data) has its block too.
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>&) const override {
    if (!copied) return {};
    auto notes = c10::make_intrusive<ShardTensorMeta>();
    notes->copied = copied;
    return notes;
  }
};

/// Null where there are none.
inline ShardTensorMeta* notes_of(c10::TensorImpl& impl) {
  return static_cast<ShardTensorMeta*>(impl.get_backend_meta());
}

inline ShardTensorMeta& make_notes(c10::TensorImpl& impl) {
  if (notes_of(impl) == nullptr) impl.set_backend_meta(c10::make_intrusive<ShardTensorMeta>());
  return *notes_of(impl);
}

}  // namespace moonhalo
