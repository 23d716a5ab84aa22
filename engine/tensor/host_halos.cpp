// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/host_halos.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/tensor_context.h"

namespace moonhalo {

struct FilledFields {
  struct Field {
    HostHalos ghosts;
    uint64_t origin;
    uint32_t block_version;
    // For each map, whether the ghosts contain all its rows.
    std::vector<std::pair<std::shared_ptr<const IntervalMap::Key>, bool>> decided = {};
  };
  std::vector<Field> all;
};

namespace {

using Filled = FilledFields::Field;

constexpr size_t kMostDecided = 32;

/// The dims of a tensor before those of the field, if it has such dims of one row in front of them and is cut as the
/// field is; else none.
std::optional<int64_t> dims_before(const ShardSpec& tensor, const ShardSpec& field) {
  const int64_t before = tensor.ndim() - field.ndim();
  if (before < 0 || tensor.mesh() != field.mesh()) return std::nullopt;
  for (int64_t rank = 0; rank < field.mesh()->size(); ++rank) {
    const Box box = block_box(tensor, rank), required = block_box(field, rank);
    for (int64_t d = 0; d < tensor.ndim(); ++d) {
      if (!(box[d] == (d < before ? Interval{0, 1} : required[d - before]))) return std::nullopt;
    }
  }
  return before;
}

/// True if every rank has all that it needs of others in its ghosts.
bool covers(const HostHalos& ghosts, const IntervalMap::Key& key) {
  const ShardSpec& field = *shard_impl(ghosts.field)->spec();
  const auto before = dims_before(*key.from, field);
  if (!before) return false;
  const int64_t ndim = key.from->ndim();
  const auto ranks = static_cast<size_t>(field.mesh()->size());
  std::vector<bool> needs_none(ranks, false), contains_rows(ranks, true);
  for (size_t i = 0; i + 3 < key.requests.size(); i += 4) {
    const int64_t rank = key.requests[i] / ndim, dim = key.requests[i] % ndim - *before;
    const int64_t begin = key.requests[i + 1], end = key.requests[i + 2];
    const bool zeros_beyond = key.requests[i + 3] == static_cast<int64_t>(Boundary::kZero);
    if (begin == end) needs_none[rank] = true;
    if (dim < 0 || !zeros_beyond) {
      contains_rows[rank] = false;
      continue;
    }
    const Interval owned = block_box(field, rank)[dim];
    const Interval filled{owned.begin - ghosts.low[rank][dim], owned.end + ghosts.high[rank][dim]};
    const Interval needed = Interval{begin, end}.intersect({0, field.global_shape()[dim]});
    if (!needed.empty() && !filled.contains(needed)) contains_rows[rank] = false;
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!needs_none[rank] && !contains_rows[rank]) return false;
  }
  return true;
}

bool covers(Filled& field, const std::shared_ptr<const IntervalMap::Key>& key) {
  const auto known =
      std::find_if(field.decided.begin(), field.decided.end(), [&](const auto& one) { return one.first == key; });
  if (known != field.decided.end()) return known->second;
  if (field.decided.size() == kMostDecided) field.decided.clear();
  return field.decided.emplace_back(key, covers(field.ghosts, *key)).second;
}

}  // namespace

HostHalos host_halos(const at::Tensor& field, const Block& block) {
  const SpecPtr spec = shard_impl(field)->spec();
  const DeviceMesh& mesh = *spec->mesh();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    TORCH_CHECK_VALUE(!block_box(*spec, rank).empty(), "block: filled ghosts around a block of no rows\n  have  rank ",
                      rank, " of ", spec->to_string(), "\n  fix   leave ghosts_filled out where a rank owns nothing");
  }
  const int64_t ndim = spec->ndim();
  const auto ranks = static_cast<size_t>(mesh.size());
  at::Tensor mine = at::zeros({2 * ndim}, at::kLong);
  std::copy(block.ghost_low.begin(), block.ghost_low.end(), mine.mutable_data_ptr<int64_t>());
  std::copy(block.ghost_high.begin(), block.ghost_high.end(), mine.mutable_data_ptr<int64_t>() + ndim);
  const TrafficScope moving(Traffic::kDistribute);
  const at::Tensor all = mesh.group().facts_of_all(mine);
  HostHalos ghosts{field, block.with_ghosts()};
  const int64_t* next = all.const_data_ptr<int64_t>();
  for (size_t rank = 0; rank < ranks; ++rank, next += 2 * ndim) {
    ghosts.low.emplace_back(next, next + ndim);
    ghosts.high.emplace_back(next + ndim, next + 2 * ndim);
  }
  return ghosts;
}

UseFilledGhosts::UseFilledGhosts(const std::vector<HostHalos>& fields) {
  if (fields.empty()) return;
  auto& filled = tensor_context->filled_fields;
  if (!filled) filled = std::make_shared<FilledFields>();
  for (const HostHalos& ghosts : fields) {
    set_new_origin(ghosts.field, fingerprint_of("filled ghosts"));
    const ShardTensorImpl& impl = *shard_impl(ghosts.field);
    filled->all.push_back({ghosts, impl.origin, version_of(*impl.local().unsafeGetTensorImpl())});
  }
}

UseFilledGhosts::~UseFilledGhosts() { invalidate_host_halos(); }

bool ghosts_are_filled() { return tensor_context->filled_fields != nullptr; }
void invalidate_host_halos() { tensor_context->filled_fields.reset(); }

namespace {

std::optional<std::vector<at::Tensor>> rows_in_ghosts(const IntervalMap& map, const at::Tensor& tensor,
                                                      const std::string& op) {
  const auto filled = tensor_context->filled_fields;
  if (!map.key() || !filled) return std::nullopt;
  const ShardTensorImpl& impl = *shard_impl(tensor);
  const uint64_t origin = CallLog::of_this_thread().origin_of_values(impl.origin);
  auto& fields = filled->all;
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const Filled& one) { return one.origin == origin; });
  if (found == fields.end() || map.key()->from != impl.spec() || !covers(*found, map.key())) return std::nullopt;
  const HostHalos& ghosts = found->ghosts;
  if (tensor.scalar_type() != ghosts.whole.scalar_type()) return std::nullopt;
  const ShardTensorImpl& field = *shard_impl(ghosts.field);
  const uint32_t now = version_of(*field.local().unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(
      now == found->block_version, op,
      ": this rank's block was written behind the ShardTensor's back, while other ranks read old ghosts\n  have  ",
      field.spec()->to_string(), ", rank ", field.spec()->mesh()->rank(), "'s block at version ", now,
      ", its ghosts filled at ", found->block_version,
      "\n  fix   write through the ShardTensor, on every rank (not through to_local() or .data())");
  const int64_t before = tensor.dim() - ghosts.whole.dim();
  const int64_t self = field.spec()->mesh()->rank();
  const Box own = block_box(*field.spec(), self);
  std::vector<at::Tensor> parts;
  for (const IntervalMap::Received& rows : map.received()) {
    const Box owner = block_box(*field.spec(), rows.peer);
    at::Tensor part = ghosts.whole;
    for (int64_t d = 0; d < ghosts.whole.dim(); ++d) {
      const int64_t row = owner[d].begin + rows.source[before + d];
      part = part.narrow(d, row - own[d].begin + ghosts.low[self][d], rows.length[before + d]);
    }
    for (int64_t d = 0; d < before; ++d) part = part.unsqueeze(0);
    parts.push_back(part);
  }
  return parts;
}

}  // namespace

HaloSource ghosts_of(const at::Tensor& tensor, const std::string& op) {
  return [tensor, op](const IntervalMap& map) { return rows_in_ghosts(map, tensor, op); };
}

}  // namespace moonhalo
