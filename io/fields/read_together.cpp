// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/read_together.h"

#include <ATen/ATen.h>

#include <cstring>
#include <optional>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/stream_copy.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/rank_shares.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/base/memory.h"
#include "moonhalo/io/fields/conversion.h"
#include "moonhalo/io/fields/reader.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/shares/file_shares.h"
#include "moonhalo/io/shares/run_plan.h"
#include "moonhalo/io/shares/shared_blocks.h"

namespace moonhalo::io {
namespace {

/// Returns as one number what all ranks must hold identically: all that plans are made from.
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

bool is_plain(const Selection& source) {
  return Reader::is_plain(*source.dataset().file(), source.dataset().info(), source.slices());
}

int64_t fingerprint(const Selection& source, const ReadOptions& options, const BlockHalo& halo) {
  Fingerprint print;
  for (const char c : source.dataset().name()) print.add(c);
  for (const std::string& member : source.dataset().info().member) {
    print.add(-1);
    for (const char c : member) print.add(c);
  }
  for (const auto& slice : source.slices()) print.add({slice.begin, slice.count, slice.step, slice.dropped});
  print.add(static_cast<int64_t>(source.dataset().dtype()));
  print.add(decodes(source) ? at::IntArrayRef(source.dataset().chunks()) : at::IntArrayRef());
  print.add(is_plain(source) ? at::IntArrayRef(source.dataset().shape()) : at::IntArrayRef());
  print.add({options.decode, options.dtype ? static_cast<int64_t>(*options.dtype) : -1});
  print.add(halo.lo);
  print.add(halo.hi);
  return print.value();
}

void check_same(int64_t mine, const Selection& source, Communicator& group, const h5::Where& where) {
  at::Tensor extremes = at::tensor({mine, -mine}, at::kLong);
  group.all_reduce(extremes, ReduceOp::kMax);
  TORCH_CHECK_VALUE(extremes[0].item<int64_t>() == -extremes[1].item<int64_t>(), where.to_string(),
                    ": the ranks selected different data\n  have  here shape ", shape_string(source.shape()), " of ",
                    source.dataset().type_name(), "\n  fix   pass the same dataset and selection on every rank");
}

/// The dims the other way round.
Box turned(const Box& box) {
  Box result;
  for (int64_t dim = box.ndim(); dim-- > 0;) result.push_back(box[dim]);
  return result;
}

/// One rank's part in a shared plan. In a dry run nothing is read, and parts of the file count as zeros: the result has
/// the memory and the messages of a real one, and no values.
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
    std::optional<Conversion> conversion;
    std::optional<Reader> reader;
    at::Tensor out;
    fail_together(mesh_->group(), [&] {
      conversion = Conversion::of(source_, options_, where_);
      out = allocate_for(needs.shape(), conversion->dtype, where_);
      reader.emplace(*source_.dataset().file(), source_.dataset().info(), source_.slices(), where_);
    });
    if (!is_dry()) io_stats().asked += needs.numel() * static_cast<int64_t>(source_.dataset().info().element_size);
    note_moved_boxes(
        *mesh_,
        {.rounds = plan_.rounds(),
         .from = [&](int64_t round, int64_t rank) { return rows_of(plan_.grid(), plan_.cells_read(round, rank)); },
         .to = [&](int64_t round, int64_t rank) { return plan_.needs(round, rank); }});
    if (SharedBlocks::possible(mesh_->group())) {
      put_in_place(*reader, *conversion, out);
      return shaped(out, needs);
    }
    for (int64_t round = 0; round < plan_.rounds(); ++round) {
      const Box rows = plan_.needs(round, mesh_->rank());
      at::Tensor place = rows.empty() ? at::empty(rows.shape(), out.options()) : out;
      for (int64_t dim = 0; dim < rows.ndim() && !rows.empty(); ++dim) {
        place = place.narrow(dim, rows[dim].begin - needs[dim].begin, rows[dim].size());
      }
      exchange(round, read(round, *reader), *conversion, place);
    }
    return shaped(out, needs);
  }

  /// True for a result of a dry run that is computed: its values are to be read.
  bool lacks_values(const at::Tensor& out) const { return is_dry() && !is_fake(out); }

 private:
  bool is_dry() const { return mesh_->group().is_fake(); }

  at::Tensor shaped(const at::Tensor& out, const Box& needs) const {
    std::vector<int64_t> shape;
    for (int64_t dim = 0; dim < needs.ndim(); ++dim) {
      if (!source_.slices()[static_cast<size_t>(dim)].dropped) shape.push_back(needs[dim].size());
    }
    return out.view(shape);
  }

  void put_in_place(Reader& reader, const Conversion& conversion, const at::Tensor& out);
  /// Boxes of at most kPieceBytes that are long runs of the file.
  std::vector<Box> run_pieces(const Box& rows) const {
    const DatasetInfo& info = source_.dataset().info();
    const auto element_size = static_cast<int64_t>(info.element_size);
    if (!info.reversed) return pieces_of(rows, element_size, kPieceBytes);
    std::vector<Box> pieces = pieces_of(turned(rows), element_size, kPieceBytes);
    for (Box& piece : pieces) piece = turned(piece);
    return pieces;
  }

  void put_rows(const at::Tensor& data, const Box& rows, const Conversion& conversion, const SharedBlocks& blocks);

  /// The chunks, or runs, that this rank reads, for all.
  at::Tensor read(int64_t round, Reader& reader) {
    const Box cells = plan_.cells_read(round, mesh_->rank());
    at::Tensor data;
    fail_together(mesh_->group(), [&] {
      const Box rows = rows_of(plan_.grid(), cells);
      data = room(rows);
      decodes(source_) ? read_cells(reader, cells, data) : read_runs(reader, rows, data);
    });
    return data;
  }

  at::Tensor room(const Box& rows) {
    if (!room_.defined() || room_.numel() < rows.numel())
      room_ = at::empty({rows.numel()}, moved_as(source_.dataset().info().element_size));
    return room_.narrow(0, 0, rows.numel()).view(rows.shape());
  }

  void read_cells(Reader& reader, const Box& cells, const at::Tensor& data) const {
    if (is_dry()) return clear(data);
    reader.read_cells(plan_.grid(), cells, data.mutable_data_ptr());
  }

  static void clear(const at::Tensor& data) {
    if (!is_fake(data)) std::memset(data.mutable_data_ptr(), 0, data.nbytes());
  }

  void read_runs(Reader& reader, const Box& rows, const at::Tensor& data) const {
    if (is_dry()) return clear(data);
    std::vector<Slice> slices = source_.slices();
    for (size_t dim = 0; dim < slices.size(); ++dim) {
      slices[dim].begin += rows[static_cast<int64_t>(dim)].begin * slices[dim].step;
      slices[dim].count = rows[static_cast<int64_t>(dim)].size();
    }
    reader.read_for_all(slices, *source_.dataset().info().dtype, data.mutable_data_ptr());
  }

  /// Brings what was read to `place`, this rank's rows of the round.
  void exchange(int64_t round, const at::Tensor& data, const Conversion& conversion, const at::Tensor& place) const {
    const auto owned = [&](int64_t rank) { return rows_of(plan_.grid(), plan_.cells_read(round, rank)); };
    const Ownership ownership{mesh_, plan_.global_shape(), owned, [](int64_t, int64_t) { return true; }};
    const IntervalMap map(ownership, [&](int64_t rank) { return requests_for(plan_.needs(round, rank)); });
    io_stats().exchanged += map.elements_received() * data.element_size();
    if (conversion.dtype == conversion.stored && !conversion.decoder) {
      HaloExchange exchange;
      const size_t request = exchange.add_gather_into(map, data, place.view(data.scalar_type()));
      exchange.start();
      exchange.wait();
      exchange.gathered(request);  // copies what could not arrive in its place
      return;
    }
    const at::Tensor part = gather(map, data).view(conversion.stored);
    if (part.numel() == 0) return;
    const at::Tensor values = at::empty(part.sizes(), conversion.dtype);
    conversion.apply(part.contiguous(), values, where_);
    place.copy_(values);
  }

  const Selection& source_;
  const MeshPtr& mesh_;
  const IoPlan& plan_;
  const ReadOptions& options_;
  const h5::Where where_;
  at::Tensor room_;  // for what is read at once
};

/// Ranks that are threads put what they read straight into all blocks that need it: nothing is copied twice, and no
/// rank waits for another before the end.
void SharedRead::put_in_place(Reader& reader, const Conversion& conversion, const at::Tensor& out) {
  SharedBlocks blocks(mesh_->group(), {out});
  const auto element_size = static_cast<int64_t>(source_.dataset().info().element_size);
  fail_together(mesh_->group(), [&] {
    for (int64_t round = 0; round < plan_.rounds(); ++round) {
      const Box cells = plan_.cells_read(round, mesh_->rank()), rows = rows_of(plan_.grid(), cells);
      const Box needed = plan_.needs(round, mesh_->rank());
      io_stats().exchanged += (needed.numel() - needed.intersect(rows).numel()) * element_size;
      if (decodes(source_)) {
        const at::Tensor data = room(rows);
        read_cells(reader, cells, data);
        put_rows(data, rows, conversion, blocks);
        continue;
      }
      for (const Box& piece : run_pieces(rows)) {
        const at::Tensor data = room(piece);
        read_runs(reader, piece, data);
        put_rows(data, piece, conversion, blocks);
      }
    }
    finish_stream();
    blocks.release();
  });
}

void SharedRead::put_rows(const at::Tensor& data, const Box& rows, const Conversion& conversion,
                          const SharedBlocks& blocks) {
  if (rows.empty()) return;
  at::Tensor values = data;
  if (conversion.dtype != conversion.stored || conversion.decoder) {
    values = at::empty(data.sizes(), conversion.dtype);
    conversion.apply(data.view(conversion.stored), values, where_);
  }
  blocks.put(0, values.const_data_ptr(), rows, [&](int64_t rank) { return plan_.needs(rank); });
}

std::optional<IoPlan> shared_plan(const Selection& source, const SpecPtr& spec, const BlockHalo& halo) {
  const DatasetInfo& info = source.dataset().info();
  if (decodes(source)) {
    IoPlan plan(chunk_grid(*info.map, source.slices()), info.element_size, spec, halo);
    if (plan.shared()) return plan;
  } else if (is_plain(source) && info.dtype) {
    return plan_runs(Reader::plain_array(*source.dataset().file(), info), source.slices(), spec, halo);
  }
  return std::nullopt;
}

}  // namespace

at::Tensor read_together(const Selection& source, const SpecPtr& spec, const ReadOptions& options,
                         const BlockHalo& halo) {
  const DatasetInfo& info = source.dataset().info();
  Communicator& group = spec->mesh()->group();
  check_same(fingerprint(source, options, halo), source, group,
             {"scatter_tensor", source.dataset().path(), "dataset \"" + info.name + "\""});
  const auto dtype = options.dtype.value_or(at::kFloat);
  const bool converts_here = !options.dtype || dtype == info.dtype || at::isFloatingType(dtype);
  if (converts_here) {
    if (const auto plan = shared_plan(source, spec, halo)) {
      SharedRead shared(source, spec->mesh(), *plan, options);
      const at::Tensor block = shared.run();
      if (!shared.lacks_values(block)) return block;
      return read_block(source, *spec, {.dtype = options.dtype, .decode = options.decode, .out = block}, halo);
    }
  }
  at::Tensor block;
  fail_together(group, [&] { block = read_block(source, *spec, options, halo); });
  return block;
}

}  // namespace moonhalo::io
