// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The values that are read outside of the domain along one dim.
enum class Boundary : uint8_t { kZero, kCircular, kReflect, kReplicate };

/// The rows that a rank needs along one dim of the global index space. Requests of different ranks may overlap. Rows
/// outside of [0, extent) are filled according to `boundary`. `reversed` reads the interval from its end to its
/// beginning (flip).
struct HaloRequest {
  Interval rows;
  Boundary boundary = Boundary::kZero;
  bool reversed = false;
};

/// Returns the box of the global index space that `rank` owns.
Box block_box(const ShardSpec& spec, int64_t rank);
/// Returns requests for `box`, with zeros outside of the domain.
std::vector<HaloRequest> requests_for(const Box& box);

/// Requests in which the rows of a dim follow from the blocks of that dim alone, as with windows. A plan then looks at
/// the blocks of each dim, and not at every rank: at 64 + 64 of 64 x 64 ranks.
struct GridRequests {
  SpecPtr readers;  ///< on the mesh of the map's `from`
  /// Returns what a rank needs along `dim`. It owns the rows `owned` of `from` and `reading` of `readers` there.
  std::function<HaloRequest(int64_t dim, const Interval& owned, const Interval& reading)> along;
  /// The shape of the result of a rank that needs nothing; if left out, the sizes of its requests.
  std::optional<std::vector<int64_t>> shape_of_nothing = std::nullopt;
};

/// Describes which box each rank of a mesh owns and which ranks may read it. All ranks must pass the same functions.
struct Ownership {
  MeshPtr mesh;
  std::vector<int64_t> global_shape;
  std::function<Box(int64_t rank)> owned;
  /// True if rank `user` reads its share of the box of `owner` from `owner`. The boxes that serve one user do not
  /// overlap.
  std::function<bool(int64_t owner, int64_t user)> serves;
  /// Mesh dims along which only ranks with equal coordinates serve each other. A plan looks at no other pairs.
  /// Empty: a plan may look at all pairs of ranks.
  std::vector<int64_t> same_coordinates = {};

  /// Returns the ownership of the blocks of `spec`. Along mesh dims where it is replicated or partial, a rank is served
  /// by the owners with its own coordinate.
  static Ownership of(const SpecPtr& spec);
};

class HaloExchange;

/// The plan of the one communication primitive (gather and scatter_add, halo_exchange.h): rank r owns the block of
/// `from` and needs a box of the global index space.
///
///     owned   |0 1 2 3 4|5 6|7 8 9|        needed by rank 1 (halo 1 + 2): [4, 9)
///     rank       0       1     2           row 4 from rank 0, rows 7 8 from rank 2
///
/// Every rank computes the plan from facts that all ranks hold, without communication. Boxes are products of intervals
/// over dims, so corners are sent directly by their owner. A request may span several blocks. Rows that no rank serves
/// are filled like rows outside of the domain.
class IntervalMap {
 public:
  /// `requests(rank)` returns one HaloRequest per tensor dim, for any rank of the mesh. It must return the same on
  /// every rank.
  IntervalMap(const SpecPtr& from, const std::function<std::vector<HaloRequest>(int64_t rank)>& requests);
  IntervalMap(const Ownership& from, const std::function<std::vector<HaloRequest>(int64_t rank)>& requests);
  /// The same map as one whose requests(rank) returns requests.along(dim, ...) for each dim.
  IntervalMap(const SpecPtr& from, const GridRequests& requests);

  const std::vector<int64_t>& needed_shape() const { return needed_shape_; }
  /// True if any rank sends anything. Equal on all ranks.
  bool exchanges() const { return exchanges_; }
  /// Identifies the maps of all ranks: the sharding, and each request that differs from the block that the rank owns.
  /// Two maps may agree on one rank and differ on another; if their keys are equal, they agree on all ranks.
  struct Key {
    SpecPtr from;
    std::vector<int64_t> requests;  // each: rank * ndim + dim, begin, end, boundary and direction
  };
  /// Null if no rank sends anything, or if the map was made from an Ownership. The first call makes it, from the
  /// requests of all ranks.
  std::shared_ptr<const Key> key() const;
  /// The regions that this rank receives, in the order of a HaloSource's rows. `source` is the start in the block of
  /// `peer`.
  struct Received {
    int peer;
    std::vector<int64_t> source, length;
  };
  std::vector<Received> received() const;
  /// Returns the number of elements that this rank sends.
  int64_t elements_sent() const { return elements_sent_; }
  /// Returns the number of elements that this rank receives; the adjoint sends the same number.
  int64_t elements_received() const;

 private:
  struct Copy {                                   // needed[target] = owned[source], with the dims in `flips` reversed
    std::vector<int64_t> source, target, length;  // per dim: where the two regions start, and their common shape
    std::vector<int64_t> flips;
    int64_t numel = 0;
  };
  struct Transfer {  // all copies between this rank and `peer`, in the same order on both
    int peer;
    std::vector<Copy> copies;
    int64_t numel = 0;
  };
  struct Planner;
  struct KeySource;
  friend class HaloExchange;
  void take(const Planner& planner);
  static at::Tensor region(const at::Tensor& tensor, at::IntArrayRef start, at::IntArrayRef length);
  static at::Tensor source_part(const at::Tensor& owned, const Copy& copy);
  static at::Tensor target_part(const at::Tensor& needed, const Copy& copy);

  MeshPtr mesh_;
  std::shared_ptr<KeySource> key_;
  std::vector<int64_t> owned_shape_, needed_shape_;
  std::vector<Copy> local_;
  std::vector<Transfer> sends_, receives_;
  bool identity_ = false;  // this rank's needed box is its owned block; others may still need its rows
  bool exchanges_ = false;
  bool covered_ = false;  // every needed element is written, so the result need not be filled first
  int64_t elements_sent_ = 0;
};

}  // namespace moonhalo
