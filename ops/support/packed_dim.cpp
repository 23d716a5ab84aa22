// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/packed_dim.h"

#include <ATen/Functions.h>
#include <c10/util/accumulate.h>

#include <array>
#include <utility>

#include "moonhalo/engine/exchange/halo_exchange.h"

namespace moonhalo {
namespace {

// Rows of some parts: all parts have the same rows of them.
struct PartRows {
  Interval parts, rows;
};

// A run of packed rows: the end of a part, whole parts, the beginning of a part; some of these are empty.
std::array<PartRows, 3> rows_of_run(const Interval& run, int64_t width) {
  if (run.empty()) return {};
  const int64_t first = run.begin / width, last = run.end / width;
  const int64_t begin = run.begin % width, end = run.end % width;
  if (first == last) return {{{{first, first + 1}, {begin, end}}, {}, {}}};
  const int64_t whole = first + (begin > 0);
  return {{{{first, whole}, {begin, width}}, {{whole, last}, {0, width}}, {{last, last + (end > 0)}, {0, end}}}};
}

Box box_in_parts(const Box& packed, int64_t dim, const PartRows& some) {
  Box box;
  for (int64_t d = 0; d < packed.ndim(); ++d) {
    if (d == dim) box.push_back(some.parts);
    box.push_back(d == dim ? some.rows : packed[d]);
  }
  return box;
}

Box box_in_packed(const Box& parts, int64_t dim, int64_t first_row) {
  Box box;
  for (int64_t d = 0; d < parts.ndim(); ++d) {
    if (d != dim) box.push_back(d == dim + 1 ? parts[d].shifted(first_row) : parts[d]);
  }
  return box;
}

using Maps = std::vector<std::shared_ptr<const IntervalMap>>;

// Places by map: where its rows belong.
void gather_into(const Maps& maps, const at::Tensor& local, const std::vector<at::Tensor>& places) {
  HaloExchange exchange;
  for (size_t i = 0; i < maps.size(); ++i) exchange.add_gather_into(*maps[i], local, places[i]);
  exchange.start();
  exchange.wait();
  exchange.gathered(0);
}

}  // namespace

PackedDim::PackedDim(SpecPtr packed, SpecPtr parts, int64_t dim)
    : packed_(std::move(packed)), parts_(std::move(parts)), dim_(dim) {
  const int64_t n = parts_->global_shape()[dim_], width = parts_->global_shape()[dim_ + 1];
  for (int64_t part = 0; part < n; ++part) {
    to_parts_.push_back(std::make_shared<const IntervalMap>(packed_, [&](int64_t rank) {
      return requests_for(box_in_packed(block_box(*parts_, rank), dim_, part * width));
    }));
  }
  for (size_t place = 0; place < 3; ++place) {
    to_packed_.push_back(std::make_shared<const IntervalMap>(parts_, [&](int64_t rank) {
      const Box box = block_box(*packed_, rank);
      return requests_for(box_in_parts(box, dim_, rows_of_run(box[dim_], width)[place]));
    }));
  }
}

at::Tensor PackedDim::unpack(const at::Tensor& packed) const {
  at::Tensor parts = at::empty(parts_->local_shape(), packed.options());
  if (packed.is_meta()) return parts;  // LibTorch asks for a shape
  std::vector<at::Tensor> places;
  for (size_t part = 0; part < to_parts_.size(); ++part)
    places.push_back(parts.select(dim_, static_cast<int64_t>(part)));
  gather_into(to_parts_, packed, places);
  return parts;
}

at::Tensor PackedDim::pack(const at::Tensor& parts) const {
  at::Tensor packed = at::empty(packed_->local_shape(), parts.options());
  if (parts.is_meta()) return packed;
  std::vector<at::Tensor> places;
  int64_t row = 0;
  for (const auto& map : to_packed_) {
    const auto& shape = map->needed_shape();
    const int64_t rows = shape[dim_] * shape[dim_ + 1];
    places.push_back(packed.narrow(dim_, row, rows).unflatten(dim_, {shape[dim_], shape[dim_ + 1]}));
    row += rows;
  }
  gather_into(to_packed_, parts, places);
  return packed;
}

SpecPtr with_parts(const SpecPtr& spec, int64_t dim, int64_t n, std::vector<int64_t> sizes) {
  std::vector<int64_t> shape = spec->global_shape();
  shape[dim] = n;
  shape.insert(shape.begin() + dim + 1, c10::sum_integers(sizes));
  Layout layout(spec->mesh(), shape);
  layout.partials = spec->layout().partials;
  layout.stored = spec->layout().stored;
  for (int64_t d = 0; d < spec->ndim(); ++d) layout.cuts[d < dim ? d : d + 1] = spec->cut(d);
  layout.cuts[dim + 1].sizes = std::move(sizes);
  return intern(std::move(layout));
}

}  // namespace moonhalo
