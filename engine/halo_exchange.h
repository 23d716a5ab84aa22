// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <vector>

#include "engine/interval_map.h"
#include "engine/kept_halos.h"

namespace moonhalo {

/// What several interval maps of one mesh move, in one exchange: each pair of ranks exchanges one message, however many
/// maps, tensors and regions it carries. Forward (borrow: owned rows to who needs them) and adjoint (give_back: their
/// gradients home) may travel together.
///
///     HaloExchange edges;
///     const size_t low = edges.borrow(*low_map, x), high = edges.borrow(*high_map, x);
///     edges.start();
///     ... what needs no neighbour ...
///     edges.wait();                        edges.borrowed(low), edges.borrowed(high)
///
/// Every rank adds the same maps in the same order; all tensors have one dtype. start() is collective over the mesh if
/// any of the maps exchanges. Receives are posted first; a lone region goes from place to place where the communicator
/// can, more are packed one behind the other. Maps must outlive it, and what is sent must not be written before wait().
/// One that is dropped is waited for by its destructor.
class HaloExchange {
 public:
  HaloExchange() = default;
  HaloExchange(const HaloExchange&) = delete;

  /// Number of the leg. `local` is this rank's owned block; outside the domain with Edge::kZero stands `fill`. Where
  /// `source` has kept what the map would bring, nothing travels for this leg; where it has not, it will.
  size_t borrow(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0,
                const HaloSource& source = {});
  /// `grad` has the shape of the needed box.
  size_t give_back(const IntervalMap& map, const at::Tensor& grad);

  /// Sends what the legs need. Waits, too, where overlapping is off (set_halo) unless `asynchronous` is asked for, and
  /// always with the all-to-all back end.
  void start(bool asynchronous = halo_overlaps());
  void wait();

  /// Whether anything travels on any rank. The same answer on every rank.
  bool moves() const;
  /// note_halo where something travels.
  void note(const char* event) const;

  /// After wait(): the needed box of a borrow. May be the local block itself or a view of it.
  at::Tensor borrowed(size_t leg);
  /// After wait(): the sum, per owned element, of all its copies' gradients; added in place to `owned` if that is
  /// defined.
  at::Tensor returned(size_t leg, const at::Tensor& owned = {});

 private:
  using Copy = IntervalMap::Copy;
  struct Leg {
    const IntervalMap* map;
    at::Tensor given, result;  // result: of a borrow
    bool back;
    bool whole = false;  // a borrow without copies: the result is a view of what was given
    HaloSource source = {};
    std::shared_ptr<const KeptHalo> kept = nullptr;  // nothing travels
    std::shared_ptr<KeptHalo> keeps = nullptr;       // what arrives
    bool travels() const { return map->exchanges_ && !kept; }
  };
  struct Part {  // one region of one leg
    size_t leg;
    const Copy* copy;
  };
  struct Parcel {  // all regions for, or from, one peer
    int peer;
    std::vector<Part> parts;
    int64_t numel = 0;
    at::Tensor data;  // incoming: undefined where it arrives in its place
  };
  static bool halo_overlaps();
  std::vector<Parcel> parcels(bool incoming) const;
  at::Tensor outgoing(const Part& part) const;
  at::Tensor packed(const Parcel& parcel) const;
  void pack(const Parcel& parcel, const at::Tensor& flat) const;
  template <typename Give>
  static void each_part(const Parcel& parcel, const Give& give);
  void send_p2p(Communicator& group);
  void send_all_to_all(Communicator& group);
  void take_kept();
  void keep_arrived();
  void arrive();

  std::vector<Leg> legs_;
  std::vector<Parcel> incoming_;
  at::TensorOptions tensor_options_;
  WorkPtr work_;
  bool under_way_ = false;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace moonhalo
