// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/spec.h"

namespace moonhalo {

/// What stands beyond the ends of the domain along one dim.
enum class Edge : uint8_t { kZero, kCircular, kReflect, kReplicate };

/// The rows [begin, end) of the global index space that a rank needs along one dim. They may overlap other ranks'
/// needs, and where they leave [0, extent) `edge` says what is read. `reversed` reads the interval from its end to
/// its beginning (flip).
struct Need {
  int64_t begin = 0;
  int64_t end = 0;
  Edge edge = Edge::kZero;
  bool reversed = false;
};

/// The one communication primitive: rank r owns the block of `from` and needs a box of the global index space.
///
///     owned   |0 1 2 3 4|5 6|7 8 9|        needed by rank 1 (halo 1 + 2): [4, 9)
///     rank       0       1     2           row 4 from rank 0, rows 7 8 from rank 2
///
/// The plan is made from facts every rank holds (no negotiation); boxes are products over dims, so corners travel
/// directly from their owner, and a need may reach over several blocks. Where `from` is replicated over a mesh dim
/// each rank is served by the owners that share its coordinate there. Partial dims are carried along as they are.
class IntervalMap {
 public:
  /// `needs(rank)`: one Need per tensor dim, for any rank of the mesh; it must give the same answer on every rank.
  IntervalMap(SpecPtr from, const std::function<std::vector<Need>(int64_t rank)>& needs);

  /// The needed box, filled. Collective over the mesh. `local` is this rank's owned block; dtype is free.
  /// Outside the domain with Edge::kZero stands `fill`. Returns `local` itself when nothing moves.
  at::Tensor apply(const at::Tensor& local, double fill = 0) const;
  /// The adjoint: `grad` has the shape of the needed box; returns the sum, per owned element, of every place it was
  /// copied to. <apply(x), y> = <x, adjoint(y)> over all ranks. Collective over the mesh.
  at::Tensor adjoint(const at::Tensor& grad) const;
  /// The same, added to `owned` (a block of this rank) in place; returns it. Undefined `owned`: as adjoint.
  at::Tensor add_adjoint(const at::Tensor& grad, const at::Tensor& owned) const;

  /// As apply, in two halves: between them the interior can be computed while edges travel.
  class Pending;
  std::unique_ptr<Pending> start(const at::Tensor& local, double fill = 0) const;

  const std::vector<int64_t>& needed_shape() const { return needed_shape_; }
  /// True on a rank whose needed box is its owned block (nothing is received). Others may still need its rows.
  bool identity() const { return identity_; }
  /// Elements this rank sends.
  int64_t elements_sent() const { return elements_sent_; }
  const SpecPtr& from() const { return from_; }

 private:
  struct Box {  // a region of a local tensor: per dim start and length, flipped dims, source or target
    std::vector<int64_t> start, length;
  };
  struct Copy {  // needed[target] = owned[source], with the dims in `flips` reversed
    Box source, target;
    std::vector<int64_t> flips;
    int64_t numel = 0;
  };
  struct Transfer {  // all copies between this rank and `peer`, in an order both ranks know
    int peer;
    std::vector<Copy> copies;
    int64_t numel = 0;
  };
  static at::Tensor view(const at::Tensor& tensor, const Box& box);

  SpecPtr from_;
  std::vector<int64_t> needed_shape_;
  std::vector<Copy> local_;
  std::vector<Transfer> sends_, receives_;
  bool identity_ = false;
  bool exchanges_ = false;  // some rank needs more than it owns
  bool covered_ = false;  // every needed element is written, so the result need not be filled first
  int64_t elements_sent_ = 0;
  friend class Pending;
};

class IntervalMap::Pending {
 public:
  Pending(const IntervalMap& map, const at::Tensor& local, double fill);
  /// Waits for the edges and returns the needed box.
  at::Tensor finish();

 private:
  const IntervalMap& map_;
  at::Tensor result_;
  std::vector<at::Tensor> arrived_;
  WorkPtr work_;
};

}  // namespace moonhalo
