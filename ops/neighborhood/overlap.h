// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/tensor_halos.h"
#include "moonhalo/ops/neighborhood/block.h"

namespace moonhalo {

/// Neighbourhood attention of one rank whose windows reach over keys and values of others, which are borrowed
/// and, backward, whose gradients go home, both in one exchange. Queries whose windows lie within the owned keys are
/// worked on meanwhile, without a copy of the block; those near an edge afterwards, on copies as wide as their windows
/// reach.
///
///     queries      |e e|i i i i i i|e e|
///     keys     b b |o o o o o o o o o o| b b       b borrowed: shells around the owned box
///
/// Of several cut dims the first one's shells hold the corners, and its edges are as long as the block.
class NeighborhoodBlocks {
 public:
  /// `query` cuts all tensors; `whole` is the call in global terms. From facts that every rank holds.
  NeighborhoodBlocks(const NeighborhoodCall& whole, const SpecPtr& query, const SpecPtr& value);

  /// Whether anything travels on any rank; if not, the blocks are wholes of their own. The same on every rank.
  bool exchanges() const { return exchanges_; }

  struct Sources {  ///< the ShardTensors whose blocks key and value are
    HaloCachePtr key, value;
  };
  /// Output and logsumexp of the owned queries. Blocks are local and plain. Collective over the mesh.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const Sources& sources) const;
  /// Gradients of the owned query, key and value; arguments as neighborhood_backward. Collective over the mesh.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_output,
                                                          const at::Tensor& grad_logsumexp, const at::Tensor& query,
                                                          const at::Tensor& key, const at::Tensor& value,
                                                          const at::Tensor& output, const at::Tensor& logsumexp,
                                                          const Sources& sources) const;

 private:
  // Boxes are global, of the spatial dims.
  struct Shell {
    Box box;
    std::shared_ptr<const IntervalMap> key, value;
  };
  struct Piece {
    Box queries, keys;
    NeighborhoodCall call;
  };
  struct Source {  // keys or values at hand
    const Box* box;
    at::Tensor rows;
  };
  struct AtHand {
    std::vector<Source> keys, values;
  };
  static at::Tensor part(const at::Tensor& tensor, const Box& of, const Box& box);
  static at::Tensor assembled(const Box& box, const std::vector<Source>& sources);
  Piece piece(const NeighborhoodCall& whole, const Box& queries) const;
  std::vector<Piece> halves(const Piece& whole) const;
  Box shell_box(const NeighborhoodCall& whole, const SpecPtr& query, int64_t across, bool low, int64_t rank) const;
  void plan_shells(const NeighborhoodCall& whole, const SpecPtr& query, const SpecPtr& value);
  void plan_pieces(const NeighborhoodCall& whole);
  void start_borrowing(HaloExchange& exchange, const at::Tensor& key, const at::Tensor& value,
                       const Sources& sources) const;
  AtHand at_hand(HaloExchange& exchange, const at::Tensor& key, const at::Tensor& value) const;
  at::Tensor mine(const at::Tensor& tensor, const Box& queries) const;

  Box owned_;
  std::vector<bool> cut_;
  std::vector<Shell> shells_;
  std::vector<Piece> interior_;  // in two halves, or empty; their keys are the owned ones
  std::vector<Piece> edges_;
  bool exchanges_ = false;
};

}  // namespace moonhalo
