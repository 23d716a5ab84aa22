// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/halo_boxes.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace moonhalo {
namespace {

// The box of one side across one dim on a rank, or an empty one.
Box box_of(const SpecPtr& input, const std::vector<int64_t>& cut, int64_t across, bool low,
           const std::function<Interval(int64_t, int64_t)>& need, int64_t rank) {
  Box box = block_box(*input, rank);
  bool empty = false;
  for (const int64_t d : cut) {
    const Interval owned = box[d], wanted = need(d, rank).intersect({0, input->global_shape()[d]});
    if (d < across) box[d] = owned.intersect(wanted);
    if (d == across && low) box[d] = {wanted.begin, std::min(owned.begin, wanted.end)};
    if (d == across && !low) box[d] = {std::max(owned.end, wanted.begin), wanted.end};
    if (d > across) box[d] = wanted;
    empty |= wanted.empty() || box[d].empty();
  }
  for (const int64_t d : cut) {
    if (empty) box[d] = {0, 0};
  }
  return box;
}

}  // namespace

std::vector<BorrowedBox> borrowed_boxes(const SpecPtr& input, const std::vector<int64_t>& cut,
                                        const std::function<Interval(int64_t, int64_t)>& need) {
  std::vector<BorrowedBox> result;
  for (const int64_t across : cut) {
    for (const bool low : {true, false}) {
      const auto box = [&](int64_t rank) { return box_of(input, cut, across, low, need, rank); };
      BorrowedBox borrowed;
      borrowed.map = std::make_shared<const IntervalMap>(input, [&](int64_t rank) { return requests_for(box(rank)); });
      borrowed.box = box(input->mesh()->rank());
      result.push_back(std::move(borrowed));
    }
  }
  return result;
}

at::Tensor assemble(const Box& box, const std::vector<Piece>& pieces, const at::Scalar& fill) {
  at::Tensor result = at::empty(box.shape(), pieces[0].data.options());
  int64_t known = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const Piece& piece : pieces) {
    const Box both = box.intersect(piece.box);
    if (both.empty()) continue;
    at::Tensor to = result, from = piece.data;
    for (int64_t d = 0; d < box.ndim(); ++d) {
      to = to.narrow(d, both[d].begin - box[d].begin, both[d].size());
      from = from.narrow(d, both[d].begin - piece.box[d].begin, both[d].size());
    }
    known += to.numel();
    copies.emplace_back(to, from);
  }
  if (known < result.numel()) result.fill_(fill);
  for (auto& [to, from] : copies) to.copy_(from);
  return result;
}

}  // namespace moonhalo
