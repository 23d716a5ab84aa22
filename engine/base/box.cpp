// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/box.h"

#include <algorithm>

namespace moonhalo {

// Compiled here once, because four hundred files include the header.
Box::Box(std::initializer_list<Interval> dims) : dims_(dims) {}

void Box::push_back(const Interval& rows) {
  constexpr size_t kUsualDims = 5;  // a plan of 4,096 ranks makes many boxes
  if (dims_.capacity() == 0) dims_.reserve(kUsualDims);
  dims_.push_back(rows);
}

bool Box::operator==(const Box& other) const { return dims_ == other.dims_; }

bool Box::operator<(const Box& other) const { return dims_ < other.dims_; }

int64_t Box::numel() const {
  int64_t numel = 1;
  for (const Interval& rows : dims_) numel *= rows.size();
  return numel;
}

bool Box::empty() const {
  return std::any_of(dims_.begin(), dims_.end(), [](const Interval& rows) { return rows.empty(); });
}

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> shape;
  for (const Interval& rows : dims_) shape.push_back(rows.size());
  return shape;
}

Box Box::intersect(const Box& other) const {
  Box both;
  for (int64_t d = 0; d < ndim(); ++d) both.push_back(dims_[d].intersect(other[d]));
  return both;
}

}  // namespace moonhalo
