// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/halo_cache.h"

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/halo_options.h"

namespace moonhalo {

// An exchange's steps for halos that are kept.
void HaloExchange::take_kept() {
  bool any = false;
  for (const Request& request : requests_) {
    if (!request.kept) continue;
    any = true;
    auto part = request.kept->parts.begin();
    for (const IntervalMap::Transfer& transfer : request.map->receives_) {
      for (const Copy& copy : transfer.copies) IntervalMap::target_part(request.result, copy).copy_(*part++);
    }
  }
  if (any) note_halo("kept");
}

// Copies: what arrived may be in the operator's own tensors, or beside what is not kept.
void HaloExchange::keep_arrived() {
  for (const PeerBuffer& buffer : incoming_) {
    const auto keep = [&](const Part& part, const at::Tensor& data) {
      if (requests_[part.request].keeps)
        requests_[part.request].keeps->parts.push_back(data.clone(at::MemoryFormat::Contiguous));
    };
    if (buffer.data.defined()) {
      each_part(buffer, keep);
    } else {
      const Part& lone = buffer.parts[0];
      keep(lone, IntervalMap::target_part(requests_[lone.request].result, *lone.copy));
    }
  }
  for (Request& request : requests_) {
    if (request.keeps) request.keeps->arrived = true;
  }
}

}  // namespace moonhalo
