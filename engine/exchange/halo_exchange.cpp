// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/halo_exchange.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/equal_copies.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/exchange/regions.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// True if equal copies are made once (equal_copies.h): nothing is computed or sent. A result that is computed takes
// each copy.
template <typename Request>
bool joins_equal_copies(const std::vector<Request>& requests, const Communicator& group) {
  const auto has_values = [](const at::Tensor& tensor) { return !is_fake(tensor) && tensor.numel() > 0; };
  const auto is_computed = [&](const Request& request) {
    const bool has_result = !request.back && !request.whole;
    return has_values(request.given) || (has_result && has_values(request.result));
  };
  return JoinEqualCopies::applies_to(group) && std::none_of(requests.begin(), requests.end(), is_computed);
}

// The end of the peers from `first` on whose regions have the same shapes as those of the first.
template <typename PeerBuffer>
size_t end_of_equal(const std::vector<PeerBuffer>& peers, size_t first) {
  const auto is_equal = [](const auto& a, const auto& b) {
    return a.request == b.request && a.copy->length == b.copy->length && a.copy->flips == b.copy->flips;
  };
  const auto& parts = peers[first].parts;
  size_t end = first + 1;
  while (end < peers.size() &&
         std::equal(parts.begin(), parts.end(), peers[end].parts.begin(), peers[end].parts.end(), is_equal))
    ++end;
  return end;
}

// Calls give(first, count) for the peers one by one (`count` 1), or for all of the same shapes at once.
template <typename PeerBuffer, typename Give>
void each_shape(const std::vector<PeerBuffer>& peers, bool joins, const Give& give) {
  for (size_t first = 0, end = 0; first < peers.size(); first = end) {
    end = joins ? end_of_equal(peers, first) : first + 1;
    give(first, end - first);
  }
}

// Adds the message of peer `first`, and those of the peers behind it that have the same shapes: of the same data. The
// first of these holds as much memory as their own data would, unless the data is in its place (`in_place`).
template <typename PeerBuffer>
void add_messages(std::vector<PeerBuffer>& peers, size_t first, size_t count, const at::Tensor& data, bool in_place,
                  std::vector<Message>& messages) {
  for (size_t i = first; i < first + count; ++i) messages.push_back({peers[i].peer, data});
  if (count > 1 && !in_place) peers[first + 1].data = data.new_empty({static_cast<int64_t>(count) - 1, data.numel()});
}

}  // namespace

bool HaloExchange::halo_overlaps() { return halo_options().overlap; }

bool HaloExchange::gives_a_view(const IntervalMap& map) {
  return map.identity_ ||
         (map.receives_.empty() && map.covered_ && map.local_.size() == 1 && map.local_[0].flips.empty());
}

size_t HaloExchange::add_gather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill,
                                const HaloSource& source) {
  TORCH_INTERNAL_ASSERT(local.sizes() == at::IntArrayRef(map.owned_shape_), "interval map for a block of ",
                        shape_string(map.owned_shape_), " got one of ", local.sizes());
  Request request{&map, local, {}, false};
  request.whole = gives_a_view(map);
  if (request.whole) {
    request.result = map.identity_ ? local : IntervalMap::source_part(local, map.local_[0]);
  } else {
    request.result = empty_block(map.needed_shape_, local.options());
    if (!map.covered_) request.result.fill_(fill);
  }
  if (source) request.held = source(map);
  requests_.push_back(std::move(request));
  return requests_.size() - 1;
}

size_t HaloExchange::add_gather_into(const IntervalMap& map, const at::Tensor& local, const at::Tensor& into) {
  TORCH_INTERNAL_ASSERT(into.sizes() == at::IntArrayRef(map.needed_shape_) && into.dtype() == local.dtype() &&
                            into.device() == local.device(),
                        "a gather of ", shape_string(map.needed_shape_), " into ", into.sizes());
  requests_.push_back({&map, local, into, false});
  requests_.back().whole = gives_a_view(map);
  if (requests_.back().whole) {
    into.copy_(map.identity_ ? local : IntervalMap::source_part(local, map.local_[0]));
  } else if (!map.covered_) {
    into.zero_();
  }
  return requests_.size() - 1;
}

size_t HaloExchange::add_scatter_add(const IntervalMap& map, const at::Tensor& grad) {
  TORCH_INTERNAL_ASSERT(grad.sizes() == at::IntArrayRef(map.needed_shape_), "adjoint of an interval map for ",
                        shape_string(map.needed_shape_), " got ", grad.sizes());
  requests_.push_back({&map, grad, {}, true});
  return requests_.size() - 1;
}

// By peer, and for each by request and region: an order that both ends know.
std::vector<HaloExchange::PeerBuffer> HaloExchange::buffers(bool incoming) const {
  struct Entry {
    size_t request;
    const IntervalMap::Transfer* transfer;
  };
  std::vector<Entry> entries;
  for (size_t request = 0; request < requests_.size(); ++request) {
    if (!requests_[request].is_exchanged()) continue;
    const IntervalMap& map = *requests_[request].map;
    for (const IntervalMap::Transfer& transfer : incoming != requests_[request].back ? map.receives_ : map.sends_)
      entries.push_back({request, &transfer});
  }
  const auto by_peer = [](const Entry& a, const Entry& b) { return a.transfer->peer < b.transfer->peer; };
  if (!std::is_sorted(entries.begin(), entries.end(), by_peer))  // of one map they are
    std::stable_sort(entries.begin(), entries.end(), by_peer);
  std::vector<PeerBuffer> result;
  for (const auto& [request, transfer] : entries) {
    if (result.empty() || result.back().peer != transfer->peer) result.push_back({transfer->peer, {}});
    result.back().numel += transfer->numel;
    for (const Copy& copy : transfer->copies) result.back().parts.push_back({request, &copy});
  }
  return result;
}

at::Tensor HaloExchange::outgoing(const Part& part) const {
  const Request& request = requests_[part.request];
  return request.back ? IntervalMap::target_part(request.given, *part.copy)
                      : IntervalMap::source_part(request.given, *part.copy);
}

void HaloExchange::each_part(const PeerBuffer& buffer, c10::function_ref<void(const Part&, const at::Tensor&)> give) {
  const at::Tensor flat = buffer.data.view({-1});
  int64_t at = 0;
  for (const Part& part : buffer.parts) {
    give(part, flat.narrow(0, at, part.copy->numel).view(part.copy->length));
    at += part.copy->numel;
  }
}

// One behind the other, so that they are packed, and sent on, together.
at::Tensor HaloExchange::lay_out(std::vector<PeerBuffer>& peers) const {
  int64_t numel = 0;
  for (const PeerBuffer& buffer : peers) numel += buffer.numel;
  const at::Tensor all = at::empty({numel}, tensor_options_);
  int64_t at = 0;
  for (PeerBuffer& buffer : peers) {
    buffer.data = all.narrow(0, at, buffer.numel);
    at += buffer.numel;
  }
  return all;
}

void HaloExchange::pack(const std::vector<PeerBuffer>& peers) const {
  std::vector<RegionCopy> copies;
  for (const PeerBuffer& buffer : peers)
    each_part(buffer, [&](const Part& part, const at::Tensor& data) { copies.push_back({outgoing(part), data}); });
  copy_regions(copies);
}

// On the host a lone region is sent from its place, or to it, where the communicator can take it there.
Message HaloExchange::outgoing_message(PeerBuffer& buffer, const Communicator& group) const {
  if (buffer.parts.size() == 1) {
    const at::Tensor data = outgoing(buffer.parts[0]);
    return {buffer.peer, group.takes_strided() ? data : data.contiguous()};
  }
  buffer.data = at::empty({buffer.numel}, tensor_options_);
  pack({buffer});
  return {buffer.peer, buffer.data};
}
Message HaloExchange::incoming_message(PeerBuffer& buffer, const Communicator& group) const {
  const Part& first = buffer.parts[0];
  const bool lone = buffer.parts.size() == 1;
  if (lone && !requests_[first.request].back) {
    const at::Tensor place = IntervalMap::target_part(requests_[first.request].result, *first.copy);
    if (group.takes_strided() || place.is_contiguous()) return {buffer.peer, place};
  }
  buffer.data = lone ? at::empty(first.copy->length, tensor_options_) : at::empty({buffer.numel}, tensor_options_);
  return {buffer.peer, buffer.data};
}

// On a device all regions for all peers are packed by one launch.
void HaloExchange::send_p2p(Communicator& group) {
  const bool together = !tensor_options_.device().is_cpu(), joins = joins_equal_copies(requests_, group);
  std::vector<PeerBuffer> leaving = buffers(/*incoming=*/false);
  if (together) {
    lay_out(incoming_);
    lay_out(leaving);
    pack(leaving);
  }
  std::vector<Message> sends, receives;
  each_shape(incoming_, joins, [&](size_t first, size_t count) {
    PeerBuffer& buffer = incoming_[first];
    const at::Tensor data = together ? buffer.data : incoming_message(buffer, group).data;
    add_messages(incoming_, first, count, data, /*in_place=*/!buffer.data.defined(), receives);
  });
  each_shape(leaving, joins, [&](size_t first, size_t count) {
    const EqualCopies equal(static_cast<int64_t>(count));
    PeerBuffer& buffer = leaving[first];
    const at::Tensor data = together ? buffer.data : outgoing_message(buffer, group).data;
    const bool in_place = count > 1 && data.is_alias_of(requests_[buffer.parts[0].request].given);
    add_messages(leaving, first, count, data, in_place, sends);
  });
  started_ = Clock::now();
  work_ = group.exchange_async(std::move(sends), std::move(receives));
}

void HaloExchange::send_all_to_all(Communicator& group) {
  std::vector<int64_t> send_counts(group.size(), 0), receive_counts(group.size(), 0);
  std::vector<PeerBuffer> leaving = buffers(/*incoming=*/false);
  for (const PeerBuffer& buffer : leaving) send_counts[buffer.peer] = buffer.numel;
  for (const PeerBuffer& buffer : incoming_) receive_counts[buffer.peer] = buffer.numel;
  const at::Tensor in = lay_out(leaving);
  at::Tensor out = lay_out(incoming_);
  pack(leaving);
  started_ = Clock::now();
  group.all_to_all(in, send_counts, out, receive_counts);
}

bool HaloExchange::moves() const {
  return std::any_of(requests_.begin(), requests_.end(), [](const Request& request) { return request.is_exchanged(); });
}

void HaloExchange::trace(const char* event) const {
  if (moves()) note_halo(event);
}

void HaloExchange::place_held() {
  bool any = false;
  for (const Request& request : requests_) {
    if (!request.held) continue;
    any = true;
    auto rows = request.held->begin();
    for (const IntervalMap::Transfer& transfer : request.map->receives_) {
      for (const Copy& copy : transfer.copies) IntervalMap::target_part(request.result, copy).copy_(*rows++);
    }
  }
  if (any) note_halo("ghosts");
}

void HaloExchange::start(bool asynchronous) {
  place_held();
  if (moves()) {
    const TrafficScope moving(Traffic::kHalo);
    tensor_options_ = requests_[0].given.options();
    for (const Request& request : requests_) {
      TORCH_INTERNAL_ASSERT(request.given.scalar_type() == requests_[0].given.scalar_type(),
                            "one exchange of several dtypes");
    }
    Communicator& group = requests_[0].map->mesh_->group();
    incoming_ = buffers(/*incoming=*/true);
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
  for (const Request& request : requests_) {
    if (request.back || request.whole) continue;
    for (const Copy& copy : request.map->local_) {
      IntervalMap::target_part(request.result, copy).copy_(IntervalMap::source_part(request.given, copy));
    }
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
  // The clock of the host tells nothing of a device, which computes on while the host waits.
  if (tensor_options_.device().is_cpu()) {
    times.under_way += seconds(now - started_);
    times.waited += seconds(now - waiting);
  }
  note_halo("finish");
}

void HaloExchange::wait() {
  if (under_way_) arrive();
}

at::Tensor HaloExchange::gathered(size_t request) {
  if (!unpacked_) unpack();
  return requests_[request].result;
}

// Puts in its place what arrived for all gathers.
void HaloExchange::unpack() {
  const bool joins = !incoming_.empty() && joins_equal_copies(requests_, requests_[0].map->mesh_->group());
  std::vector<RegionCopy> copies;
  each_shape(incoming_, joins, [&](size_t first, size_t count) {
    if (!incoming_[first].data.defined()) return;
    each_part(incoming_[first], [&](const Part& part, const at::Tensor& data) {
      const Request& request = requests_[part.request];
      if (!request.back) copies.push_back({data, IntervalMap::target_part(request.result, *part.copy)});
    });
    if (!joins) return;
    const EqualCopies equal(static_cast<int64_t>(count));
    copy_regions(std::exchange(copies, {}));
  });
  copy_regions(copies);
  unpacked_ = true;
}

at::Tensor HaloExchange::scattered(size_t request, const at::Tensor& owned) {
  const IntervalMap& map = *requests_[request].map;
  const at::Tensor& grad = requests_[request].given;
  const auto has = [request](const Part& part) { return part.request == request; };
  const bool arrivals = std::any_of(incoming_.begin(), incoming_.end(), [&](const PeerBuffer& buffer) {
    return std::any_of(buffer.parts.begin(), buffer.parts.end(), has);
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
  std::vector<RegionSum> sums;
  const auto add = [&](const Copy& copy, const at::Tensor& part) {
    sums.push_back({copy.source, copy.flips.empty() ? part : part.flip(copy.flips)});
  };
  for (auto copy = map.local_.begin(); copy != map.local_.end(); ++copy) {
    if (copy != whole) add(*copy, IntervalMap::target_part(grad, *copy));
  }
  const bool joins = arrivals && joins_equal_copies(requests_, map.mesh_->group());
  // On the host one launch of all gains nothing. Reversed copies of one message are freed before those of the next.
  const bool message_by_message = joins || result.is_cpu();
  each_shape(incoming_, joins, [&](size_t first, size_t count) {
    if (!incoming_[first].data.defined()) return;
    if (message_by_message) add_regions(result, std::exchange(sums, {}));
    const EqualCopies equal(static_cast<int64_t>(count));
    each_part(incoming_[first], [&](const Part& part, const at::Tensor& data) {
      if (part.request == request) add(*part.copy, data);
    });
    if (message_by_message) add_regions(result, std::exchange(sums, {}));
  });
  add_regions(result, sums);
  return result;
}

at::Tensor gather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill, const HaloSource& source) {
  HaloExchange exchange;
  exchange.add_gather(map, local, fill, source);
  exchange.start();
  exchange.wait();
  return exchange.gathered(0);
}

at::Tensor scatter_add(const IntervalMap& map, const at::Tensor& grad, const at::Tensor& owned) {
  HaloExchange exchange;
  exchange.add_scatter_add(map, grad);
  exchange.start();
  exchange.wait();
  return exchange.scattered(0, owned);
}

PendingGather::PendingGather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill) {
  exchange_.add_gather(map, local, fill);
  exchange_.start(/*asynchronous=*/true);
}

at::Tensor PendingGather::finish() {
  exchange_.wait();
  return exchange_.gathered(0);
}

}  // namespace moonhalo
