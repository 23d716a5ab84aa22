// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/spec.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/sharding/sharding_context.h"
#include "moonhalo/engine/sharding/size_text.h"
#include "moonhalo/engine/sharding/spec_table.h"

namespace moonhalo {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

std::string text_with_sizes(const Placement& placement, const std::string& sizes) {
  return (placement.stored ? "Stored(" : "Shard(") + std::to_string(placement.dim) +
         (placement.sizes.empty() ? "" : ", " + sizes) + ")";
}

// For messages, in which hundreds of sizes say nothing.
std::string short_text(const Placement& placement) {
  return placement.is_shard() ? text_with_sizes(placement, sizes_text(placement.sizes)) : placement.to_string();
}

// Refines the blocks of `cut` by one more mesh dimension.
void cut_further(Cut& cut, int64_t mesh_dim, const DeviceMesh& mesh, const Placement& placement, int64_t dim,
                 at::IntArrayRef global_shape) {
  const int64_t parts = mesh.size(mesh_dim);
  std::vector<int64_t> outer = cut ? cut.sizes : std::vector<int64_t>{global_shape[dim]};
  std::vector<int64_t> sizes = placement.sizes;
  if (sizes.empty()) {
    for (const int64_t block : outer) {
      for (const int64_t part : balanced_sizes(block, parts)) sizes.push_back(part);
    }
  }
  const auto expected = static_cast<int64_t>(outer.size()) * parts;
  TORCH_CHECK_VALUE(static_cast<int64_t>(sizes.size()) == expected, short_text(placement), ": ", sizes.size(),
                    " block sizes for ", expected, " ranks along mesh dimension \"", mesh.names()[mesh_dim], "\"",
                    "\n  have  a tensor of shape ", shape_string(global_shape), " on ", mesh.to_string(),
                    "\n  fix   give one size per rank (", expected, "), or none for balanced blocks");
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, short_text(placement), ": a block size is negative");
  }
  TORCH_CHECK_VALUE(sum(sizes) == global_shape[dim], short_text(placement), ": block sizes add up to ", sum(sizes),
                    ", the tensor has ", global_shape[dim], " along dim ", dim, "\n  have  a tensor of shape ",
                    shape_string(global_shape), " on ", mesh.to_string(), "\n  fix   give sizes that add up to ",
                    global_shape[dim]);
  cut.mesh_dims.push_back(mesh_dim);
  cut.sizes = std::move(sizes);
}

}  // namespace

std::string Placement::to_string() const {
  switch (kind) {
    case Kind::kReplicate:
      return "Replicate()";
    case Kind::kPartial:
      return std::string("Partial(") + name(op) + ")";
    case Kind::kShard:
      break;
  }
  return text_with_sizes(*this, list_string(sizes, '{', '}'));
}

Placement shard(int64_t dim, std::vector<int64_t> sizes) {
  return {.kind = Placement::Kind::kShard, .dim = dim, .sizes = std::move(sizes)};
}
Placement stored(int64_t dim, std::vector<int64_t> sizes) {
  Placement placement = shard(dim, std::move(sizes));
  placement.stored = true;
  return placement;
}
Placement replicate() { return {}; }
Placement partial(ReduceOp op) { return {.kind = Placement::Kind::kPartial, .op = op}; }

std::vector<int64_t> balanced_sizes(int64_t extent, int64_t blocks) {
  std::vector<int64_t> sizes(blocks, extent / blocks);
  for (int64_t i = 0; i < extent % blocks; ++i) ++sizes[i];
  return sizes;
}

Layout::Layout(MeshPtr mesh_, at::IntArrayRef shape)
    : mesh(std::move(mesh_)), global_shape(shape.vec()), cuts(shape.size()), partials(mesh->ndim()) {}

Layout::Layout(MeshPtr mesh_, at::IntArrayRef shape, const std::vector<Placement>& placements)
    : Layout(std::move(mesh_), shape) {
  const auto ndim = static_cast<int64_t>(shape.size());
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh->ndim(), placements.size(), " placements for ",
                    mesh->to_string(), ", which has ", mesh->ndim(), " dimensions",
                    "\n  fix   give one placement per mesh dimension");
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    const Placement& placement = placements[m];
    if (placement.is_partial()) partials[m] = placement.op;
    if (!placement.is_shard()) continue;
    const int64_t dim = placement.dim < 0 ? placement.dim + ndim : placement.dim;
    TORCH_CHECK_VALUE(dim >= 0 && dim < ndim, short_text(placement), ": dim ", placement.dim,
                      " is out of range for a tensor of shape ", shape_string(shape), "\n  fix   dims count from 0 to ",
                      ndim - 1, ", and from the end from -1");
    cut_further(cuts[dim], m, *mesh, placement, dim, shape);
    if (placement.stored) stored |= uint64_t{1} << m;
  }
}

bool Layout::uses(int64_t mesh_dim) const {
  return partials[mesh_dim].has_value() || std::any_of(cuts.begin(), cuts.end(), [&](const Cut& cut) {
           return std::find(cut.mesh_dims.begin(), cut.mesh_dims.end(), mesh_dim) != cut.mesh_dims.end();
         });
}

ShardSpec::ShardSpec(Layout layout, std::vector<int64_t> key)
    : layout_(std::move(layout)), key_(std::move(key)), starts_(layout_.global_shape.size()) {
  const int64_t me = mesh()->rank();
  global_numel_ = c10::multiply_integers(layout_.global_shape);
  for (int64_t d = 0; d < ndim(); ++d) {
    if (is_cut(d)) {
      cut_ = true;
      starts_[d].push_back(0);
      for (const int64_t size : cut(d).sizes) starts_[d].push_back(starts_[d].back() + size);
    }
    const Interval rows = block_range(d, me);
    offsets_.push_back(rows.begin);
    local_shape_.push_back(rows.size());
  }
  partial_ = std::any_of(layout_.partials.begin(), layout_.partials.end(), [](const auto& p) { return p.has_value(); });
}

void ShardSpec::release_resources() { mesh()->specs().forget(this); }

int64_t ShardSpec::block_index(int64_t dim, int64_t rank) const {
  int64_t index = 0;
  for (const int64_t m : cut(dim).mesh_dims) index = index * mesh()->size(m) + mesh()->coordinate(rank, m);
  return index;
}

Interval ShardSpec::block_range(int64_t dim, int64_t rank) const {
  if (!is_cut(dim)) return {0, global_shape()[dim]};
  const int64_t index = block_index(dim, rank);
  return {starts_[dim][index], starts_[dim][index + 1]};
}

std::vector<int64_t> ShardSpec::block_sizes(int64_t dim) const {
  return is_cut(dim) ? cut(dim).sizes : std::vector<int64_t>{global_shape()[dim]};
}

std::vector<Placement> ShardSpec::placements() const {
  std::vector<Placement> result(mesh()->ndim());
  for (int64_t m = 0; m < mesh()->ndim(); ++m) {
    if (partial(m)) result[m] = moonhalo::partial(*partial(m));
  }
  for (int64_t d = 0; d < ndim(); ++d) {
    // Each mesh dim of a nested cut states the blocks at its own level: sums over the levels below it.
    std::vector<int64_t> sizes = cut(d).sizes;
    for (auto m = cut(d).mesh_dims.rbegin(); m != cut(d).mesh_dims.rend(); ++m) {
      result[*m] = shard(d, sizes);
      result[*m].stored = (layout_.stored >> *m & 1) != 0;
      const int64_t parts = mesh()->size(*m);
      std::vector<int64_t> outer(sizes.size() / parts, 0);
      for (size_t i = 0; i < sizes.size(); ++i) outer[i / parts] += sizes[i];
      sizes = std::move(outer);
    }
  }
  return result;
}

std::string ShardSpec::to_string() const {
  std::string text = shape_string(global_shape()) + " on " + mesh()->to_string() + ": ";
  bool first = true;
  for (const auto& placement : placements()) {
    text += (first ? "" : ", ") + short_text(placement);
    first = false;
  }
  return text;
}

size_t SpecTable::Hash::operator()(const std::vector<int64_t>& key) const {
  return fingerprint_of(at::IntArrayRef(key));
}

std::function<void(const ShardSpec&)> watch_specs(std::function<void(const ShardSpec&)> made) {
  return std::exchange(sharding_context->spec_watch, std::move(made));
}

SpecPtr SpecTable::intern(Layout layout) {
  std::vector<int64_t> key;
  key.reserve(2 + layout.global_shape.size() * 4);
  key.push_back(static_cast<int64_t>(layout.global_shape.size()));
  key.insert(key.end(), layout.global_shape.begin(), layout.global_shape.end());
  for (const auto& op : layout.partials) key.push_back(op ? static_cast<int64_t>(*op) : -1);
  uint64_t cutting = 0;
  for (auto& cut : layout.cuts) {
    for (const int64_t m : cut.mesh_dims) cutting |= uint64_t{1} << m;
    key.push_back(static_cast<int64_t>(cut.mesh_dims.size()));
    key.insert(key.end(), cut.mesh_dims.begin(), cut.mesh_dims.end());
    key.insert(key.end(), cut.sizes.begin(), cut.sizes.end());
  }
  layout.stored &= cutting;
  key.push_back(static_cast<int64_t>(layout.stored));
  const std::lock_guard lock(mutex_);
  const auto found = specs_.find(key);
  if (found != specs_.end()) {
    if (SpecPtr alive = found->second.weak.lock()) return alive;
    specs_.erase(found);
  }
  SpecPtr made = SpecPtr::unsafe_steal_from_new(new ShardSpec(std::move(layout), key));
  specs_.emplace(std::move(key), Entry{made.get(), c10::weak_intrusive_ptr<const ShardSpec>(made)});
  if (const auto& watch = sharding_context->spec_watch) watch(*made);
  return made;
}

void SpecTable::forget(const ShardSpec* spec) {
  const std::lock_guard lock(mutex_);
  const auto found = specs_.find(spec->key_);
  // A successor with the same content may already stand there.
  if (found != specs_.end() && found->second.spec == spec) specs_.erase(found);
}

size_t SpecTable::size() const {
  const std::lock_guard lock(mutex_);
  return specs_.size();
}

SpecPtr intern(Layout layout) {
  SpecTable& table = layout.mesh->specs();
  return table.intern(std::move(layout));
}

SpecPtr make_spec(const MeshPtr& mesh, at::IntArrayRef global_shape, const std::vector<Placement>& placements) {
  return intern(Layout(mesh, global_shape, placements));
}

SpecPtr replicated(const MeshPtr& mesh, at::IntArrayRef global_shape) { return intern(Layout(mesh, global_shape)); }

SpecPtr without_partial(const SpecPtr& spec) {
  if (!spec->has_partial()) return spec;
  Layout layout = spec->layout();
  layout.partials.assign(layout.partials.size(), std::nullopt);
  return intern(std::move(layout));
}

SpecPtr with_partials_of(const SpecPtr& spec, const SpecPtr& sums) {
  Layout layout = spec->layout();
  for (int64_t m = 0; m < sums->mesh()->ndim(); ++m) layout.partials[m] = sums->partial(m);
  return intern(std::move(layout));
}

SpecPtr fetched_for(const SpecPtr& spec, const ShardSpec& to) {
  if (!spec->has_stored()) return spec;
  Layout layout = spec->layout();
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    const auto is_stored = [&](int64_t m) { return (layout.stored >> m & 1) != 0; };
    Cut& cut = layout.cuts[d];
    if (cut == to.cut(d) || std::none_of(cut.mesh_dims.begin(), cut.mesh_dims.end(), is_stored)) continue;
    cut = {};
  }
  return intern(std::move(layout));
}

}  // namespace moonhalo
