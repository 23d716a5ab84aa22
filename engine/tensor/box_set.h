// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/tensor/host_block.h"

namespace moonhalo {

/// A field that a solver holds in boxes, any number on each rank, in no grid (block-structured AMR). They are copied
/// into a ShardTensor cut into slabs of dim 0, and back, by one exchange each; who sends what to whom is planned once.
///
///     boxes   [a on 0][ b on 1 ]           field   rows 0-3 on rank 0:  parts of a, b
///             [c on 0][d on 2  ]                   rows 4-7 on rank 1:  parts of b, c, d
class BoxSet {
 public:
  /// `make_mesh` gives a mesh of one dim over the ranks of `world`, in their order. Boxes of all ranks have one
  /// dtype and number of dims and do not overlap; begin says where they are. Elements that none of them owns are
  /// zero. The slabs are as even as can be, and are on the last `holders` ranks (0: on all); those of others are
  /// empty. Collective over `world`; ValueError, on every rank.
  BoxSet(std::vector<Block> mine, Communicator& world, const std::function<MeshPtr(int64_t ranks)>& make_mesh,
         int64_t holders = 0);

  const at::Tensor& field() const { return field_; }
  /// True where a box of any rank owns the element: bool, cut as the field. Sends nothing.
  at::Tensor owned() const;
  size_t boxes() const { return mine_.size(); }
  /// From the boxes into the field. Collective.
  void read();
  /// From the field into the boxes, not their ghosts. Collective.
  void write() const;

  /// read() in two halves. `boxes` stand for those that were given, in their order and of their shapes, and may be
  /// written as soon as it has started. Collective; finish on every rank, whenever it likes.
  struct Reading {
    WorkPtr work;
    std::map<int, at::Tensor> arriving, leaving;  ///< by peer
  };
  /// The memory of `ended`, a reading of this set that has ended, serves again. `later`: others will read what leaves
  /// this rank at their own pace, so it is written past the caches.
  Reading start_read(const std::vector<at::Tensor>& boxes, Reading ended = {}, bool later = false) const;
  void finish_read(Reading& reading);

 private:
  struct Region {  // what a box and a slab share
    int peer;      // who has the other of the two
    std::vector<int64_t> in_box, in_slab, length;
    size_t box = 0;
  };
  using Give = std::function<at::Tensor(const Region&)>;  // the region in place
  Reading start(const std::vector<Region>& sent, const Give& give, const std::vector<Region>& received, Reading ended,
                bool later = false) const;
  static void finish(const std::vector<Region>& received, Reading& reading, const Give& place);

  std::vector<at::Tensor> mine_;    // owned parts, in place
  std::vector<Region> from_boxes_;  // parts of this rank's boxes, in the order of slabs and boxes
  std::vector<Region> from_slab_;   // parts of this rank's slab, in the order of owners and boxes
  at::Tensor field_, staged_;
};

}  // namespace moonhalo
