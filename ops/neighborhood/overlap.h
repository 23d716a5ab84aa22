// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <tuple>
#include <vector>

#include "moonhalo/engine/exchange/halo_source.h"
#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/window/halo_split.h"

namespace moonhalo {

/// Neighbourhood attention of one rank whose windows reach over keys and values of others, which are fetched and,
/// backward, whose gradients return to their owners, both in one exchange. The interior of split_outputs is worked
/// on meanwhile, without a copy of the block; the slabs afterwards, on copies of the keys and values that their
/// windows reach.
class NeighborhoodBlocks {
 public:
  /// `query` cuts all tensors; `whole` is the call in global terms. From facts that every rank holds.
  NeighborhoodBlocks(const NeighborhoodCall& whole, const SpecPtr& query, const SpecPtr& value);

  /// True if anything is sent on any rank; if not, the blocks are wholes of their own. The same on every rank.
  bool exchanges() const { return !key_maps_.empty(); }

  struct Sources {  ///< of halos of the blocks key and value (LocalCall::halo_source)
    HaloSource key, value;
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
  struct Piece {  // some of the queries, and the keys that their kernel is given
    Box queries, keys;
    NeighborhoodCall call;
  };
  using Tiles = std::vector<Tile>;
  static Piece piece(const NeighborhoodCall& whole, const HaloSplit::Part& part);
  void start_borrowing(HaloExchange& exchange, const at::Tensor& key, const at::Tensor& value,
                       const Sources& sources) const;
  std::array<Tiles, 2> at_hand(HaloExchange& exchange, const at::Tensor& key, const at::Tensor& value) const;
  at::Tensor mine(const at::Tensor& tensor, const Box& queries) const;

  Box owned_;
  std::vector<Box> halo_rows_;
  HaloMaps key_maps_, value_maps_;
  std::vector<Piece> interior_;  // in two halves, or empty; their keys are the owned ones
  std::vector<Piece> edges_;
};

}  // namespace moonhalo
