// SPDX-License-Identifier: Apache-2.0
#include "engine/halo_exchange.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "engine/fresh_memory.h"
#include "engine/halo.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

bool HaloExchange::halo_overlaps() { return halo_options().overlap; }

size_t HaloExchange::borrow(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill,
                            const HaloSource& source) {
  TORCH_INTERNAL_ASSERT(local.sizes() == at::IntArrayRef(map.owned_shape_), "interval map for a block of ",
                        shape_string(map.owned_shape_), " got one of ", local.sizes());
  Leg leg{&map, local, {}, false};
  const bool one_view = map.receives_.empty() && map.covered_ && map.local_.size() == 1 && map.local_[0].flips.empty();
  leg.whole = map.identity_ || one_view;
  if (leg.whole) {
    leg.result = map.identity_ ? local : IntervalMap::source_part(local, map.local_[0]);
  } else {
    leg.result = empty_block(map.needed_shape_, local.options());
    if (!map.covered_) leg.result.fill_(fill);
  }
  leg.source = source;
  leg.kept = source.find(map);
  legs_.push_back(std::move(leg));
  return legs_.size() - 1;
}

size_t HaloExchange::give_back(const IntervalMap& map, const at::Tensor& grad) {
  TORCH_INTERNAL_ASSERT(grad.sizes() == at::IntArrayRef(map.needed_shape_), "adjoint of an interval map for ",
                        shape_string(map.needed_shape_), " got ", grad.sizes());
  legs_.push_back({&map, grad, {}, true});
  return legs_.size() - 1;
}

// By peer, and for each by leg and region: an order that both ends know.
std::vector<HaloExchange::Parcel> HaloExchange::parcels(bool incoming) const {
  std::map<int, Parcel> by_peer;
  for (size_t leg = 0; leg < legs_.size(); ++leg) {
    if (!legs_[leg].travels()) continue;
    const IntervalMap& map = *legs_[leg].map;
    for (const IntervalMap::Transfer& transfer : incoming != legs_[leg].back ? map.receives_ : map.sends_) {
      Parcel& parcel = by_peer[transfer.peer];
      parcel.peer = transfer.peer;
      parcel.numel += transfer.numel;
      for (const Copy& copy : transfer.copies) parcel.parts.push_back({leg, &copy});
    }
  }
  std::vector<Parcel> result;
  for (auto& [peer, parcel] : by_peer) result.push_back(std::move(parcel));
  return result;
}

at::Tensor HaloExchange::outgoing(const Part& part) const {
  const Leg& leg = legs_[part.leg];
  return leg.back ? IntervalMap::target_part(leg.given, *part.copy) : IntervalMap::source_part(leg.given, *part.copy);
}

template <typename Give>
void HaloExchange::each_part(const Parcel& parcel, const Give& give) {
  const at::Tensor flat = parcel.data.view({-1});
  int64_t at = 0;
  for (const Part& part : parcel.parts) {
    give(part, flat.narrow(0, at, part.copy->numel).view(part.copy->length));
    at += part.copy->numel;
  }
}

void HaloExchange::pack(const Parcel& parcel, const at::Tensor& flat) const {
  int64_t at = 0;
  for (const Part& part : parcel.parts) {
    flat.narrow(0, at, part.copy->numel).view(part.copy->length).copy_(outgoing(part));
    at += part.copy->numel;
  }
}

void HaloExchange::send_p2p(Communicator& group) {
  std::vector<Message> sends, receives;
  for (Parcel& parcel : incoming_) {
    const Part& first = parcel.parts[0];
    const bool lone = parcel.parts.size() == 1;
    at::Tensor place;
    if (lone && !legs_[first.leg].back) place = IntervalMap::target_part(legs_[first.leg].result, *first.copy);
    if (!place.defined() || !(group.takes_strided() || place.is_contiguous())) {
      parcel.data = lone ? at::empty(first.copy->length, tensor_options_) : at::empty({parcel.numel}, tensor_options_);
      place = parcel.data;
    }
    receives.push_back({parcel.peer, place});
  }
  for (const Parcel& parcel : parcels(/*incoming=*/false)) {
    at::Tensor data;
    if (parcel.parts.size() == 1) {
      data = outgoing(parcel.parts[0]);
      if (!group.takes_strided()) data = data.contiguous();
    } else {
      data = at::empty({parcel.numel}, tensor_options_);
      pack(parcel, data);
    }
    sends.push_back({parcel.peer, std::move(data)});
  }
  started_ = Clock::now();
  work_ = group.exchange_async(std::move(sends), std::move(receives));
}

void HaloExchange::send_all_to_all(Communicator& group) {
  std::vector<int64_t> send_counts(group.size(), 0), receive_counts(group.size(), 0);
  const std::vector<Parcel> sends = parcels(/*incoming=*/false);
  int64_t sent = 0, received = 0;
  for (const Parcel& parcel : sends) sent += send_counts[parcel.peer] = parcel.numel;
  for (const Parcel& parcel : incoming_) received += receive_counts[parcel.peer] = parcel.numel;
  const at::Tensor in = at::empty({sent}, tensor_options_);
  at::Tensor out = at::empty({received}, tensor_options_);
  int64_t at = 0;
  for (const Parcel& parcel : sends) {
    pack(parcel, in.narrow(0, at, parcel.numel));
    at += parcel.numel;
  }
  started_ = Clock::now();
  group.all_to_all(in, send_counts, out, receive_counts);
  at = 0;
  for (Parcel& parcel : incoming_) {
    parcel.data = out.narrow(0, at, parcel.numel);
    at += parcel.numel;
  }
}

bool HaloExchange::moves() const {
  return std::any_of(legs_.begin(), legs_.end(), [](const Leg& leg) { return leg.travels(); });
}

void HaloExchange::note(const char* event) const {
  if (moves()) note_halo(event);
}

void HaloExchange::start(bool asynchronous) {
  // Noted before anything can fail, so that all ranks keep alike.
  for (Leg& leg : legs_) {
    if (leg.travels()) leg.keeps = leg.source.keep(*leg.map);
  }
  take_kept();
  if (moves()) {
    tensor_options_ = legs_[0].given.options();
    for (const Leg& leg : legs_) {
      TORCH_INTERNAL_ASSERT(leg.given.scalar_type() == legs_[0].given.scalar_type(), "one exchange of several dtypes");
    }
    Communicator& group = legs_[0].map->mesh_->group();
    incoming_ = parcels(/*incoming=*/true);
    note_halo("start");
    under_way_ = true;
    const bool collective = halo_options().backend == HaloBackend::kAllToAll;
    if (collective) {
      send_all_to_all(group);
    } else {
      send_p2p(group);
    }
    if (collective || !asynchronous) arrive();
  }
  for (const Leg& leg : legs_) {
    if (leg.back || leg.whole) continue;
    for (const Copy& copy : leg.map->local_) {
      IntervalMap::target_part(leg.result, copy).copy_(IntervalMap::source_part(leg.given, copy));
    }
  }
}

void HaloExchange::take_kept() {
  bool any = false;
  for (const Leg& leg : legs_) {
    if (!leg.kept) continue;
    any = true;
    auto part = leg.kept->parts.begin();
    for (const IntervalMap::Transfer& transfer : leg.map->receives_) {
      for (const Copy& copy : transfer.copies) IntervalMap::target_part(leg.result, copy).copy_(*part++);
    }
  }
  if (any) note_halo("kept");
}

// Copies: what arrived may lie in the operator's own tensors, or beside what is not kept.
void HaloExchange::keep_arrived() {
  for (const Parcel& parcel : incoming_) {
    const auto keep = [&](const Part& part, const at::Tensor& data) {
      if (legs_[part.leg].keeps) legs_[part.leg].keeps->parts.push_back(data.clone(at::MemoryFormat::Contiguous));
    };
    if (parcel.data.defined()) {
      each_part(parcel, keep);
    } else {
      const Part& lone = parcel.parts[0];
      keep(lone, IntervalMap::target_part(legs_[lone.leg].result, *lone.copy));
    }
  }
  for (Leg& leg : legs_) {
    if (leg.keeps) leg.keeps->arrived = true;
  }
}

void HaloExchange::arrive() {
  const Clock::time_point waiting = work_ ? Clock::now() : started_;
  if (work_) work_->wait();
  work_.reset();
  under_way_ = false;
  HaloTimes& times = halo_times();
  const Clock::time_point now = Clock::now();
  ++times.exchanges;
  times.under_way += seconds(now - started_);
  times.waited += seconds(now - waiting);
  note_halo("finish");
  keep_arrived();
}

void HaloExchange::wait() {
  if (under_way_) arrive();
}

at::Tensor HaloExchange::borrowed(size_t leg) {
  for (const Parcel& parcel : incoming_) {
    if (!parcel.data.defined()) continue;
    each_part(parcel, [&](const Part& part, const at::Tensor& data) {
      if (part.leg == leg) IntervalMap::target_part(legs_[leg].result, *part.copy).copy_(data);
    });
  }
  return legs_[leg].result;
}

at::Tensor HaloExchange::returned(size_t leg, const at::Tensor& owned) {
  const IntervalMap& map = *legs_[leg].map;
  const at::Tensor& grad = legs_[leg].given;
  const auto has = [leg](const Part& part) { return part.leg == leg; };
  const bool arrivals = std::any_of(incoming_.begin(), incoming_.end(), [&](const Parcel& parcel) {
    return std::any_of(parcel.parts.begin(), parcel.parts.end(), has);
  });
  auto whole = map.local_.end();
  at::Tensor result = owned;
  if (!result.defined()) {
    // The owned block, usually copied whole into the needed box, starts the sum.
    const int64_t numel = c10::multiply_integers(map.owned_shape_);
    whole = std::find_if(map.local_.begin(), map.local_.end(),
                         [&](const Copy& copy) { return copy.numel == numel && copy.flips.empty(); });
    if (whole == map.local_.end()) {
      result = at::zeros(map.owned_shape_, grad.options());
    } else {
      result = IntervalMap::target_part(grad, *whole);
      if (map.local_.size() > 1 || arrivals) result = result.clone(at::MemoryFormat::Contiguous);
    }
  }
  const auto add = [&](const Copy& copy, const at::Tensor& part) {
    IntervalMap::region(result, copy.source, copy.length).add_(copy.flips.empty() ? part : part.flip(copy.flips));
  };
  for (auto copy = map.local_.begin(); copy != map.local_.end(); ++copy) {
    if (copy != whole) add(*copy, IntervalMap::target_part(grad, *copy));
  }
  for (const Parcel& parcel : incoming_) {
    if (!parcel.data.defined()) continue;
    each_part(parcel, [&](const Part& part, const at::Tensor& data) {
      if (part.leg == leg) add(*part.copy, data);
    });
  }
  return result;
}

}  // namespace moonhalo
