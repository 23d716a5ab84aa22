// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/picked_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

std::vector<int64_t> mesh_dims_of(const ShardSpec& spec, const std::vector<int64_t>& dims) {
  std::vector<int64_t> used;
  for (const int64_t d : dims) used.insert(used.end(), spec.cut(d).mesh_dims.begin(), spec.cut(d).mesh_dims.end());
  return used;
}

std::vector<int64_t> others(int64_t ndim, const std::vector<int64_t>& dims) {
  std::vector<int64_t> rest;
  for (int64_t d = 0; d < ndim; ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) rest.push_back(d);
  }
  return rest;
}

std::vector<int64_t> without(std::vector<int64_t> list, const std::vector<int64_t>& items) {
  std::erase_if(list, [&](int64_t item) { return intersects({item}, items); });
  return list;
}

// True if every mesh dim of `more`, one after another, comes behind those that are used.
bool in_order(const std::vector<int64_t>& used, const std::vector<int64_t>& more) {
  return std::is_sorted(more.begin(), more.end()) && more[0] > *std::max_element(used.begin(), used.end());
}

// Entries by place follow the table's blocks: as many rows are cut as the table is.
std::vector<int64_t> sizes_like(const ShardSpec& table, const std::vector<int64_t>& dims, int64_t entries,
                                int64_t parts) {
  for (const int64_t d : dims) {
    const auto& sizes = table.cut(d).sizes;
    if (static_cast<int64_t>(sizes.size()) == parts && sizes != balanced_sizes(table.global_shape()[d], parts))
      return proportional_sizes(sizes, entries);
  }
  return balanced_sizes(entries, parts);
}

// Places in a tensor of several blocks, as seen from this rank: the ranks that share its blocks of `dims`.
class Places {
 public:
  Places(const SpecPtr& spec, std::vector<int64_t> dims) : spec_(spec), dims_(std::move(dims)) {
    const DeviceMesh& mesh = *spec->mesh();
    const auto shared = mesh_dims_of(*spec, dims_);
    int64_t blocks = 1;
    for (const int64_t d : dims_) {
      const auto sizes = spec->block_sizes(d);
      blocks *= static_cast<int64_t>(sizes.size());
      most_ *= std::max<int64_t>(1, *std::max_element(sizes.begin(), sizes.end()));
    }
    ranks_.assign(blocks, -1);
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      bool beside = true;
      for (int64_t m = 0; m < mesh.ndim(); ++m)
        beside &= intersects({m}, shared) || mesh.coordinate(rank, m) == mesh.coordinate(m);
      if (!beside) continue;
      int64_t block = 0;
      for (const int64_t d : dims_)
        block = block * static_cast<int64_t>(spec->block_sizes(d).size()) + spec->block_index(d, rank);
      ranks_[block] = rank;
    }
  }

  /// No rank has more places.
  int64_t most() const { return most_; }

  /// Names the holders of global rows, by dim. The rows exist and have one shape.
  NamedRows of(const std::vector<at::Tensor>& rows) const {
    const auto numbers = [&](const std::vector<int64_t>& list) { return at::tensor(list, rows[0].options()); };
    at::Tensor block = at::zeros_like(rows[0], at::MemoryFormat::Contiguous), place = at::zeros_like(block);
    for (size_t i = 0; i < dims_.size(); ++i) {
      const auto sizes = spec_->block_sizes(dims_[i]);
      if (sizes.size() == 1) {
        place = place * sizes[0] + rows[i];
        continue;
      }
      std::vector<int64_t> ends(sizes.size()), begins(sizes.size());
      std::partial_sum(sizes.begin(), sizes.end(), ends.begin());
      for (size_t b = 0; b < sizes.size(); ++b) begins[b] = ends[b] - sizes[b];
      // Searching among the ends leaves out empty blocks.
      const at::Tensor own = at::searchsorted(numbers(ends), rows[i].contiguous(), /*out_int32=*/false, /*right=*/true)
                                 .clamp_max(static_cast<int64_t>(sizes.size()) - 1);
      const auto by_block = [&](const std::vector<int64_t>& list) { return numbers(list).take(own); };
      place = place * by_block(sizes) + (rows[i] - by_block(begins));
      block = block * static_cast<int64_t>(sizes.size()) + own;
    }
    return {numbers(ranks_).take(block), place};
  }

 private:
  SpecPtr spec_;
  std::vector<int64_t> dims_;
  std::vector<int64_t> ranks_;  // by block, the last dim fastest
  int64_t most_ = 1;
};

// The ranks that have the entries of an index, by entry, where every rank has them all.
at::Tensor askers(const SpecPtr& entries, at::IntArrayRef shape, const at::TensorOptions& options) {
  std::vector<at::Tensor> rows;
  const int64_t ndim = entries->ndim();
  for (int64_t d = 0; d < ndim; ++d) {
    std::vector<int64_t> along(ndim, 1);
    along[d] = shape[d];
    rows.push_back(at::arange(shape[d], options).view(along).expand(shape));
  }
  return Places(entries, all_dims(ndim)).of(rows).holder;
}

// The values of an index decide which ranks exchange rows, and how many.
void check_index_is_computed(const PickedRows& picked, const std::vector<at::Tensor>& indices, const char* op) {
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t dim = picked.dims[i];
    TORCH_CHECK_NOT_IMPLEMENTED(!is_fake(indices[i]), op,
                                ": which rows of a cut dim are sent depends on values that are not computed",
                                "\n  have  a fake index of ", picked.entries->global_numel(), " rows of dim ", dim,
                                " of ", picked.table->to_string(), "\n  fix   redistribute the tensor such that dim ",
                                dim, " is whole, or make the dry run with values (without --fake-tensors)");
  }
}

// Negative rows count from the end. Throws on all ranks the same; what one rank has alone is sent to the others.
// Returns the rows, and whether `varies` holds for any rank.
std::pair<std::vector<at::Tensor>, bool> checked_rows(const PickedRows& picked, std::vector<at::Tensor> indices,
                                                      bool varies, const char* op) {
  const ShardSpec& table = *picked.table;
  for (at::Tensor& index : indices) index = index.to(at::kLong);
  if (picked.known) {
    for (size_t i = 0; i < indices.size(); ++i) check_rows(indices[i], table, picked.dims[i], picked.wrap, op);
  } else {
    std::vector<at::Tensor> ends;
    for (const at::Tensor& index : indices) {
      ends.push_back(at::cat({index.flatten(), at::tensor({-1}, index.options())}).max());
      ends.push_back(at::cat({index.flatten(), at::tensor({0}, index.options())}).min().neg());
    }
    ends.push_back(at::full({}, varies ? 1 : 0, indices[0].options()));
    at::Tensor worst = at::stack(ends);
    const TrafficScope moving(Traffic::kDataDependent);
    table.mesh()->group().all_reduce(worst, ReduceOp::kMax);
    worst = worst.cpu();
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t high = worst[2 * i].item<int64_t>(), low = -worst[2 * i + 1].item<int64_t>();
      check_ends(low, high, table, picked.dims[i], picked.wrap, op);
    }
    varies = worst[2 * indices.size()].item<int64_t>() > 0;
  }
  if (picked.wrap) {
    for (size_t i = 0; i < indices.size(); ++i)
      indices[i] = at::where(indices[i].lt(0), indices[i] + table.global_shape()[picked.dims[i]], indices[i]);
  }
  return {std::move(indices), varies};
}

RouteFacts facts_of(const PickedRows& rows) {
  RouteFacts facts{.entries = rows.entries, .wrap = rows.wrap, .known = rows.known, .own = rows.own};
  for (const int64_t d : rows.dims) {
    facts.cuts.push_back(rows.table->cut(d));
    facts.extents.push_back(rows.table->global_shape()[d]);
  }
  return facts;
}

RowRoute made_route(const PickedRows& picked, const NamedRows& named, const at::Tensor& asker, int64_t most) {
  const MeshPtr& mesh = picked.table->mesh();
  const NamedRows flat{named.holder.flatten(), named.row.flatten()};
  if (picked.own) return RowRoute::own(mesh, flat);
  return picked.known ? RowRoute::known(mesh, flat, asker.flatten(), most) : RowRoute::ask(mesh, flat, most);
}

}  // namespace

SpecPtr PickedRows::index() const { return known ? replicated(entries->mesh(), entries->global_shape()) : entries; }

std::optional<PickedRows> picked_rows(const SpecPtr& table, const std::vector<int64_t>& dims, const SpecPtr& index,
                                      UncutIndex uncut, const SpecPtr& entries) {
  const DeviceMesh& mesh = *table->mesh();
  const auto shared = mesh_dims_of(*table, dims), beside = mesh_dims_of(*table, others(table->ndim(), dims));
  if (shared.empty() || index->ndim() == 0 || table->has_stored()) return std::nullopt;
  PickedRows picked{.table = table, .dims = dims};
  Layout layout = without_partial(index)->layout();
  layout.stored = 0;
  const auto cut_by = [&] {
    std::vector<int64_t> used;
    for (const Cut& cut : layout.cuts) used.insert(used.end(), cut.mesh_dims.begin(), cut.mesh_dims.end());
    return used;
  };
  const bool whole = cut_by().empty();
  if (whole && entries) layout.cuts = entries->layout().cuts;
  const std::vector<int64_t> used = cut_by();
  if (intersects(used, beside)) return std::nullopt;
  const std::vector<int64_t> more = without(shared, used);
  if (!intersects(used, shared)) {
    if (uncut == UncutIndex::kLeave || (uncut == UncutIndex::kOwn && used.empty())) return std::nullopt;
    picked.own = uncut == UncutIndex::kOwn;
  }
  if (used.empty()) {
    int64_t parts = 1;
    for (const int64_t m : shared) parts *= mesh.size(m);
    const int64_t extent = layout.global_shape[0];
    if (extent < parts || !std::is_sorted(shared.begin(), shared.end())) return std::nullopt;
    layout.cuts[0] = {shared, sizes_like(*table, dims, extent, parts)};
  } else if (!more.empty() && !picked.own && !in_order(used, more)) {
    // Placements name mesh dims in their order. So these ranks read the same entries; added they would count twice.
    if (uncut == UncutIndex::kOwn) return std::nullopt;
  } else if (!more.empty() && !picked.own) {
    const auto cut =
        std::find_if(layout.cuts.begin(), layout.cuts.end(), [](const Cut& c) { return static_cast<bool>(c); });
    const int64_t extent = layout.global_shape[cut - layout.cuts.begin()];
    *cut = divided_further(*cut, more, extent, mesh);
  }
  // Where other mesh dims cut the entries, a rank does not see which ranks of these exchange rows.
  picked.known = whole && without(cut_by(), shared).empty();
  picked.entries = intern(std::move(layout));
  // The entries of a rank are not those of another that has an addend of its rows.
  Layout held = resolve_nonlinear(table)->layout();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (picked.entries->layout().uses(m)) held.partials[m].reset();
  }
  picked.table = intern(std::move(held));
  return picked;
}

RowSums::RowSums(SpecPtr table, const PickedRows& rows, bool in_place) : table_(std::move(table)), in_place_(in_place) {
  Layout sum = table_->layout();
  for (const Cut& cut : rows.entries->layout().cuts) {
    for (const int64_t m : cut.mesh_dims) {
      if (!sum.uses(m)) sum.partials[m] = ReduceOp::kSum;
    }
  }
  addends_ = intern(std::move(sum));
  move_ = std::make_shared<const Redistribution>(addends_, table_);
}

at::Tensor RowSums::begin(const at::Tensor& target) const {
  if (addends_ != table_) return at::zeros(addends_->local_shape(), target.options());
  return in_place_ ? target : target.clone(at::MemoryFormat::Contiguous);
}

at::Tensor RowSums::end(const at::Tensor& target, const at::Tensor& sums) const {
  if (addends_ == table_) return sums;
  const at::Tensor moved = move_->apply(sums);
  return in_place_ ? target.add_(moved) : target.add(moved);
}

PickedRoutePtr route_of(const PickedRows& rows, const std::vector<at::Tensor>& indices, const at::Tensor& given,
                        const char* op) {
  check_index_is_computed(rows, indices, op);
  const auto make = [&] {
    const auto checked = checked_rows(rows, indices, false, op).first;
    const Places places(rows.table, rows.dims);
    at::Tensor asker;
    if (rows.known) asker = askers(rows.entries, rows.entries->global_shape(), checked[0].options());
    return std::make_shared<const PickedRoute>(
        PickedRoute{made_route(rows, places.of(checked), asker, places.most()), false});
  };
  return indices.size() == 1 ? cached_route(given, facts_of(rows), indices[0], op, make) : make();
}

PickedRoutePtr route_by_columns(const PickedRows& rows, const at::Tensor& index, const at::Tensor& given,
                                const char* op) {
  check_index_is_computed(rows, {index}, op);
  RouteFacts facts = facts_of(rows);
  facts.table = without_partial(rows.table);
  return cached_route(given, facts, index, op, [&] {
    const at::Tensor table = index.dim() == 1 ? index.unsqueeze(1) : index.flatten(1);
    const int64_t columns = table.size(1);
    const bool varies = table.numel() > 0 && columns > 1 && !table.eq(table.narrow(1, 0, 1)).all().item<bool>();
    auto [checked, elements] = checked_rows(rows, {table}, varies, op);
    // Where all columns pick the same, one is enough, and whole rows are sent.
    at::Tensor picked =
        elements ? checked[0]
                 : (columns > 0 ? checked[0].select(1, 0) : at::zeros({table.size(0)}, checked[0].options()));
    const Places places(rows.table, rows.dims);
    NamedRows named = places.of({picked});
    if (elements) named.row = named.row * columns + at::arange(columns, named.row.options());
    at::Tensor asker;
    if (rows.known) {
      asker = askers(rows.entries, {table.size(0)}, picked.options());
      if (elements) asker = asker.unsqueeze(1).expand(picked.sizes());
    }
    return std::make_shared<const PickedRoute>(PickedRoute{
        made_route(rows, named, asker, places.most() * (elements ? std::max<int64_t>(1, columns) : 1)), elements});
  });
}

}  // namespace moonhalo
