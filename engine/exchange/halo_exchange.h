// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <vector>

#include "moonhalo/engine/exchange/halo_cache.h"
#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {

/// Does the moves of several interval maps of one mesh in one exchange: each pair of ranks exchanges one message,
/// however many maps, tensors and regions it carries. Gathers (owned rows to the ranks that need them) and their
/// adjoints (gradients, added where the rows are owned) may travel together.
///
///     HaloExchange edges;
///     const size_t low = edges.add_gather(*low_map, x), high = edges.add_gather(*high_map, x);
///     edges.start();
///     ... what needs no neighbour ...
///     edges.wait();                        edges.gathered(low), edges.gathered(high)
///
/// Every rank adds the same maps in the same order; all tensors have one dtype. start() is collective over the mesh if
/// any of the maps exchanges. Receives are posted first; a lone region goes from place to place where the communicator
/// can, more are packed one behind the other. Maps must outlive it, and what is sent must not be written before wait().
/// One that is dropped is waited for by its destructor.
class HaloExchange {
 public:
  HaloExchange() = default;
  HaloExchange(const HaloExchange&) = delete;

  /// Number of the request. `local` is this rank's owned block; outside the domain with Boundary::kZero stands `fill`.
  /// Where `cache` has kept what the map would bring, nothing travels for this request; where it has not, it will.
  size_t add_gather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0,
                    const HaloCachePtr& cache = {});
  /// The same into a tensor of the needed box's shape and of the same dtype and device, which gathered() then gives.
  size_t add_gather_into(const IntervalMap& map, const at::Tensor& local, const at::Tensor& into);
  /// `grad` has the shape of the needed box.
  size_t add_scatter_add(const IntervalMap& map, const at::Tensor& grad);

  /// Sends what the requests need. Waits, too, where overlapping is off (set_halo) unless `asynchronous` is asked for,
  /// and always with the all-to-all back end.
  void start(bool asynchronous = halo_overlaps());
  void wait();

  /// True if anything travels on any rank. The same answer on every rank.
  bool moves() const;
  /// note_halo where something travels.
  void trace(const char* event) const;

  /// After wait(): the needed box of a gather. May be the local block itself or a view of it.
  at::Tensor gathered(size_t request);
  /// After wait(): the sum, per owned element, of all its copies' gradients; added in place to `owned` if that is
  /// defined.
  at::Tensor scattered(size_t request, const at::Tensor& owned = {});

 private:
  using Copy = IntervalMap::Copy;
  static bool gives_a_view(const IntervalMap& map);
  struct Request {
    const IntervalMap* map;
    at::Tensor given, result;  // result: of a gather
    bool back;
    bool whole = false;  // a gather without copies: the result is a view of what was given
    HaloCachePtr cache = {};
    std::shared_ptr<const HaloCache::Entry> kept = nullptr;  // nothing travels
    std::shared_ptr<HaloCache::Entry> keeps = nullptr;       // what arrives
    bool travels() const { return map->exchanges_ && !kept; }
  };
  struct Part {  // one region of one request
    size_t request;
    const Copy* copy;
  };
  struct PeerBuffer {  // all regions for, or from, one peer
    int peer;
    std::vector<Part> parts;
    int64_t numel = 0;
    at::Tensor data;  // incoming: undefined where it arrives in its place
  };
  static bool halo_overlaps();
  std::vector<PeerBuffer> buffers(bool incoming) const;
  at::Tensor outgoing(const Part& part) const;
  at::Tensor lay_out(std::vector<PeerBuffer>& peers) const;
  void pack(const std::vector<PeerBuffer>& peers) const;
  Message outgoing_message(PeerBuffer& buffer, const Communicator& group) const;
  Message incoming_message(PeerBuffer& buffer, const Communicator& group) const;
  static void each_part(const PeerBuffer& buffer, c10::function_ref<void(const Part&, const at::Tensor&)> give);
  void send_p2p(Communicator& group);
  void send_all_to_all(Communicator& group);
  void take_kept();
  void keep_arrived();
  void arrive();
  void unpack();

  std::vector<Request> requests_;
  std::vector<PeerBuffer> incoming_;
  at::TensorOptions tensor_options_;
  WorkPtr work_;
  bool under_way_ = false, unpacked_ = false;
  std::chrono::steady_clock::time_point started_;
};

/// The needed box of `map`, filled. Collective over the mesh if anything moves. `local` is this rank's owned block;
/// dtype is free. Outside the domain with Boundary::kZero stands `fill`. What `cache` has kept is taken from it, what
/// is received is kept with it. May return `local` itself or a view of it.
at::Tensor gather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0,
                  const HaloCachePtr& cache = {});
/// The adjoint: `grad` has the shape of the needed box. Returns the sum, per owned element, of every place it was
/// copied to, added to `owned` (a block of this rank) in place if that is defined. <gather(x), y> = <x, scatter_add(y)>
/// over all ranks. Collective over the mesh.
at::Tensor scatter_add(const IntervalMap& map, const at::Tensor& grad, const at::Tensor& owned = {});

/// A gather in two halves; between them the caller can compute.
class PendingGather {
 public:
  /// Starts it. `map` must outlive it, and `local` must not be written before finish().
  PendingGather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0);
  /// Waits for the rows and returns the needed box.
  at::Tensor finish();

 private:
  HaloExchange exchange_;
};

}  // namespace moonhalo
