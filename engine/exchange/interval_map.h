// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Says what stands beyond the ends of the domain along one dim.
enum class Boundary : uint8_t { kZero, kCircular, kReflect, kReplicate };

/// The rows of the global index space that a rank needs along one dim. They may overlap what other ranks need, and
/// where they leave [0, extent) `boundary` says what is read. `reversed` reads the interval from its end to its
/// beginning (flip).
struct HaloRequest {
  Interval rows;
  Boundary boundary = Boundary::kZero;
  bool reversed = false;
};

/// The block of `rank`.
Box block_box(const ShardSpec& spec, int64_t rank);
/// Requests for `box`, with zeros beyond the domain.
std::vector<HaloRequest> requests_for(const Box& box);

/// Says which box every rank of a mesh owns, and from which ranks it may be read. All ranks must give the same answers.
struct Ownership {
  MeshPtr mesh;
  std::vector<int64_t> global_shape;
  std::function<Box(int64_t rank)> owned;
  /// True if `user` reads what it needs of the box of `owner`. The boxes that serve one user do not overlap.
  std::function<bool(int64_t owner, int64_t user)> serves;

  /// The blocks of `spec`. Where it is replicated over a mesh dim (or partial) each rank is served by the owners that
  /// share its coordinate there.
  static Ownership of(const SpecPtr& spec);
};

class HaloExchange;

/// The plan of the one communication primitive (gather and scatter_add, halo_exchange.h): rank r owns the block of
/// `from` and needs a box of the global index space.
///
///     owned   |0 1 2 3 4|5 6|7 8 9|        needed by rank 1 (halo 1 + 2): [4, 9)
///     rank       0       1     2           row 4 from rank 0, rows 7 8 from rank 2
///
/// The plan is made from facts every rank holds (no negotiation); boxes are products over dims, so corners travel
/// directly from their owner, and a request may reach over several blocks. What no owner serves is filled like the
/// outside of the domain.
class IntervalMap {
 public:
  /// `requests(rank)`: one HaloRequest per tensor dim, for any rank of the mesh; it must give the same answer on every
  /// rank.
  IntervalMap(const SpecPtr& from, const std::function<std::vector<HaloRequest>(int64_t rank)>& requests);
  IntervalMap(const Ownership& from, const std::function<std::vector<HaloRequest>(int64_t rank)>& requests);

  const std::vector<int64_t>& needed_shape() const { return needed_shape_; }
  /// True if any rank sends anything. The same answer on every rank.
  bool exchanges() const { return exchanges_; }
  /// The map of all ranks at once: the cut, and every request that is not just what its rank owns. Two maps
  /// that agree on one rank may differ on another; two with equal keys do not.
  struct Key {
    SpecPtr from;
    std::vector<int64_t> requests;  // each: rank * ndim + dim, begin, end, boundary and direction
  };
  /// Null where nothing travels, or the map was made from an Ownership.
  const std::shared_ptr<const Key>& key() const { return key_; }
  /// The regions that this rank receives, in the order of a kept halo's parts: where they start in the block of `peer`.
  struct Received {
    int peer;
    std::vector<int64_t> source, length;
  };
  std::vector<Received> received() const;
  /// Elements this rank sends.
  int64_t elements_sent() const { return elements_sent_; }
  /// Elements this rank receives; the adjoint sends as many.
  int64_t elements_received() const;

 private:
  struct Copy {                                   // needed[target] = owned[source], with the dims in `flips` reversed
    std::vector<int64_t> source, target, length;  // per dim: where the two regions start, and their common shape
    std::vector<int64_t> flips;
    int64_t numel = 0;
  };
  struct Transfer {  // all copies between this rank and `peer`, in an order both ranks know
    int peer;
    std::vector<Copy> copies;
    int64_t numel = 0;
  };
  struct Planner;
  friend class HaloExchange;
  static at::Tensor region(const at::Tensor& tensor, at::IntArrayRef start, at::IntArrayRef length);
  static at::Tensor source_part(const at::Tensor& owned, const Copy& copy);
  static at::Tensor target_part(const at::Tensor& needed, const Copy& copy);

  MeshPtr mesh_;
  std::shared_ptr<const Key> key_;
  std::vector<int64_t> owned_shape_, needed_shape_;
  std::vector<Copy> local_;
  std::vector<Transfer> sends_, receives_;
  bool identity_ = false;  // this rank's needed box is its owned block; others may still need its rows
  bool exchanges_ = false;
  bool covered_ = false;  // every needed element is written, so the result need not be filled first
  int64_t elements_sent_ = 0;
};

}  // namespace moonhalo
