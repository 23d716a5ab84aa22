// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/halo_boxes.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace moonhalo {
namespace {

Rows meet(Rows a, Rows b) {
  const int64_t begin = std::max(a.first, b.first), end = std::min(a.second, b.second);
  return begin < end ? Rows{begin, end} : Rows{0, 0};
}

// The box of one side across one dim on a rank, or an empty one.
Ranges box_of(const SpecPtr& input, const std::vector<int64_t>& cut, int64_t across, bool low,
              const std::function<Rows(int64_t, int64_t)>& need, int64_t rank) {
  Ranges box;
  for (int64_t d = 0; d < input->ndim(); ++d) box.push_back(input->block_range(d, rank));
  bool empty = false;
  for (const int64_t d : cut) {
    const Rows owned = box[d], wanted = meet(need(d, rank), {0, input->global_shape()[d]});
    if (d < across) box[d] = meet(owned, wanted);
    if (d == across) {
      box[d] = low ? Rows{wanted.first, std::min(owned.first, wanted.second)}
                   : Rows{std::max(owned.second, wanted.first), wanted.second};
    }
    if (d > across) box[d] = wanted;
    empty |= wanted.first >= wanted.second || box[d].first >= box[d].second;
  }
  for (const int64_t d : cut) {
    if (empty) box[d] = {0, 0};
  }
  return box;
}

}  // namespace

std::vector<BorrowedBox> borrowed_boxes(const SpecPtr& input, const std::vector<int64_t>& cut,
                                        const std::function<Rows(int64_t, int64_t)>& need) {
  std::vector<BorrowedBox> result;
  for (const int64_t across : cut) {
    for (const bool low : {true, false}) {
      const auto box = [&](int64_t rank) { return box_of(input, cut, across, low, need, rank); };
      BorrowedBox borrowed;
      borrowed.map = std::make_shared<const IntervalMap>(input, [&](int64_t rank) {
        std::vector<Need> needs;
        for (const auto& [begin, end] : box(rank)) needs.push_back({.begin = begin, .end = end});
        return needs;
      });
      borrowed.box = box(input->mesh()->rank());
      result.push_back(std::move(borrowed));
    }
  }
  return result;
}

at::Tensor assemble(const Ranges& box, const std::vector<Piece>& pieces, const at::Scalar& fill) {
  std::vector<int64_t> shape;
  for (const auto& [begin, end] : box) shape.push_back(end - begin);
  at::Tensor result = at::empty(shape, pieces[0].data.options());
  int64_t known = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const Piece& piece : pieces) {
    at::Tensor to = result, from = piece.data;
    for (size_t d = 0; d < box.size() && to.numel() > 0; ++d) {
      const auto [begin, end] = meet(box[d], piece.box[d]);
      const auto dim = static_cast<int64_t>(d);
      to = to.narrow(dim, begin < end ? begin - box[d].first : 0, end - begin);
      if (begin < end) from = from.narrow(dim, begin - piece.box[d].first, end - begin);
    }
    if (to.numel() == 0) continue;
    known += to.numel();
    copies.emplace_back(to, from);
  }
  if (known < result.numel()) result.fill_(fill);
  for (auto& [to, from] : copies) to.copy_(from);
  return result;
}

}  // namespace moonhalo
