// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/tensor/host_block.h"

namespace moonhalo {

/// A field that a solver holds in boxes, any number on each rank, in no grid (block-structured AMR). They are copied
/// into a ShardTensor cut into even slabs of dim 0, and back, by one exchange each; who sends what to whom is planned
/// once.
///
///     boxes   [a on 0][ b on 1 ]           field   rows 0-3 on rank 0:  parts of a, b
///             [c on 0][d on 2  ]                   rows 4-7 on rank 1:  parts of b, c, d
class BoxSet {
 public:
  /// `make_mesh` gives a mesh of one dim over the ranks of `world`, in their order. Boxes of all ranks have one dtype
  /// and number of dims and do not overlap; begin says where they lie. Elements that none of them owns are zero.
  /// Collective over `world`; ValueError, on every rank alike.
  BoxSet(std::vector<Block> mine, Communicator& world, const std::function<MeshPtr(int64_t ranks)>& make_mesh);

  const at::Tensor& field() const { return field_; }
  size_t boxes() const { return mine_.size(); }
  /// From the boxes into the field. Collective.
  void read();
  /// From the field into the boxes, not their ghosts. Collective.
  void write() const;

 private:
  struct Region {  // where a box and a slab meet
    int peer;      // who has the other of the two
    std::vector<int64_t> in_box, in_slab, length;
    size_t box = 0;
  };
  void exchange(bool read, const at::Tensor& slab) const;

  std::vector<at::Tensor> mine_;    // owned parts, in place
  std::vector<Region> from_boxes_;  // parts of this rank's boxes, in the order of slabs and boxes
  std::vector<Region> from_slab_;   // parts of this rank's slab, in the order of owners and boxes
  at::Tensor field_, staged_;
};

}  // namespace moonhalo
