// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/read_together.h"

#include <ATen/ATen.h>

#include <optional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/io/conversion.h"
#include "moonhalo/io/io_stats.h"
#include "moonhalo/io/memory.h"
#include "moonhalo/io/reader.h"
#include "moonhalo/io/scatter.h"

namespace moonhalo::io {
namespace {

/// Returns as one number what all ranks must hold alike: all that plans are made from.
class Fingerprint {
 public:
  void add(int64_t value) { hash_ = (hash_ ^ static_cast<uint64_t>(value)) * 1099511628211ull; }  // FNV-1a
  void add(at::IntArrayRef values) {
    add(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) add(value);
  }
  int64_t value() const { return static_cast<int64_t>(hash_ >> 1); }

 private:
  uint64_t hash_ = 1469598103934665603ull;
};

bool decodes(const Selection& source) { return Reader::decodes(*source.dataset().file(), source.dataset().info()); }

int64_t fingerprint(const Selection& source, const ReadOptions& options, const BlockHalo& halo) {
  Fingerprint print;
  for (const char c : source.dataset().name()) print.add(c);
  for (const auto& slice : source.slices()) print.add({slice.begin, slice.count, slice.step, slice.dropped});
  print.add(static_cast<int64_t>(source.dataset().dtype()));
  print.add(decodes(source) ? at::IntArrayRef(source.dataset().chunks()) : at::IntArrayRef());
  print.add({options.decode, options.dtype ? static_cast<int64_t>(*options.dtype) : -1});
  print.add(halo.lo);
  print.add(halo.hi);
  return print.value();
}

void check_same(int64_t mine, const Selection& source, Communicator& group, const h5::Where& where) {
  at::Tensor extremes = at::tensor({mine, -mine}, at::kLong);
  group.all_reduce(extremes, ReduceOp::kMax);
  TORCH_CHECK_VALUE(extremes[0].item<int64_t>() == -extremes[1].item<int64_t>(), where.to_string(),
                    ": the ranks selected different data\n  have  here shape ",
                    shape_string(source.shape()), " of ", source.dataset().type_name(),
                    "\n  fix   pass the same dataset and selection on every rank");
}

/// One rank's part in a shared plan.
class SharedRead {
 public:
  SharedRead(const Selection& source, const MeshPtr& mesh, const IoPlan& plan, const ReadOptions& options)
      : source_(source),
        mesh_(mesh),
        plan_(plan),
        options_(options),
        where_{"read", source.dataset().path(), "dataset \"" + source.dataset().name() + "\""} {}

  at::Tensor run() {
    const Box needs = plan_.needs(mesh_->rank());
    io_stats().asked += needs.numel() * static_cast<int64_t>(source_.dataset().info().element_size);
    std::optional<Conversion> conversion;
    std::optional<Reader> reader;
    at::Tensor out;
    fail_together(mesh_->group(), [&] {
      conversion = Conversion::of(source_, options_, where_);
      out = room_for(needs.shape(), conversion->dtype, where_);
      reader.emplace(*source_.dataset().file(), source_.dataset().info(), source_.slices(), where_);
    });
    for (int64_t round = 0; round < plan_.rounds(); ++round) {
      const at::Tensor part = exchange(round, read(round, *reader));
      if (part.numel() == 0) continue;
      const Box rows = plan_.needs(round, mesh_->rank());
      at::Tensor place = out;
      for (int64_t dim = 0; dim < rows.ndim(); ++dim) {
        place = place.narrow(dim, rows[dim].begin - needs[dim].begin, rows[dim].size());
      }
      put(part.view(conversion->stored), *conversion, place);
    }
    std::vector<int64_t> shape;
    for (int64_t dim = 0; dim < needs.ndim(); ++dim) {
      if (!source_.slices()[static_cast<size_t>(dim)].dropped) shape.push_back(needs[dim].size());
    }
    return out.view(shape);
  }

 private:
  /// The chunks that this rank reads, for all.
  at::Tensor read(int64_t round, Reader& reader) const {
    const Box cells = plan_.cells_read(round, mesh_->rank());
    at::Tensor data;
    fail_together(mesh_->group(), [&] {
      const size_t element_size = source_.dataset().info().element_size;
      data = at::empty(rows_of(plan_.grid(), cells).shape(), moved_as(element_size));
      reader.read_cells(plan_.grid(), cells, data.mutable_data_ptr());
    });
    return data;
  }

  at::Tensor exchange(int64_t round, const at::Tensor& data) const {
    const auto owned = [&](int64_t rank) { return rows_of(plan_.grid(), plan_.cells_read(round, rank)); };
    const Ownership ownership{mesh_, plan_.global_shape(), owned, [](int64_t, int64_t) { return true; }};
    const IntervalMap map(ownership, [&](int64_t rank) { return requests_for(plan_.needs(round, rank)); });
    io_stats().exchanged += map.elements_received() * data.element_size();
    return gather(map, data);
  }

  void put(const at::Tensor& part, const Conversion& conversion, const at::Tensor& place) const {
    if (conversion.dtype == conversion.stored && !conversion.decoder) {
      place.copy_(part);
      return;
    }
    const at::Tensor values = at::empty(part.sizes(), conversion.dtype);
    conversion.apply(part.contiguous(), values, where_);
    place.copy_(values);
  }

  const Selection& source_;
  const MeshPtr& mesh_;
  const IoPlan& plan_;
  const ReadOptions& options_;
  const h5::Where where_;
};

}  // namespace

at::Tensor read_together(const Selection& source, const SpecPtr& spec, const ReadOptions& options,
                         const BlockHalo& halo) {
  const DatasetInfo& info = source.dataset().info();
  Communicator& group = spec->mesh()->group();
  check_same(fingerprint(source, options, halo), source, group,
             {"scatter_tensor", source.dataset().path(), "dataset \"" + info.name + "\""});
  const auto dtype = options.dtype.value_or(at::kFloat);
  const bool converts_here = !options.dtype || dtype == info.dtype || at::isFloatingType(dtype);
  if (decodes(source) && converts_here && !group.is_fake()) {
    const IoPlan plan(chunk_grid(*info.map, source.slices()), info.element_size, spec, halo);
    if (plan.shared()) return SharedRead(source, spec->mesh(), plan, options).run();
  }
  at::Tensor block;
  fail_together(group, [&] { block = read_block(source, *spec, options, halo); });
  return block;
}

}  // namespace moonhalo::io
