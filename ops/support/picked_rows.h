// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/row_route.h"

namespace moonhalo {

/// Says how the rows of a cut table are picked by an index: which rank has which entries of it. Facts of a plan.
struct PickedRows {
  SpecPtr table;              ///< as it must be held: cut along some of `dims`
  std::vector<int64_t> dims;  ///< the dims that are indexed
  SpecPtr entries;            ///< a spec of the index's shape: the entries of each rank
  bool wrap = false;          ///< negative rows count from the end
  bool known = false;         ///< every rank has the whole index
  bool own = false;           ///< the ranks that share the table have the same entries: each takes those of its rows

  /// The index as the plan needs it.
  SpecPtr index() const;
};

/// Says what becomes of an index that is not cut over the mesh dims that cut the table.
enum class UncutIndex : uint8_t {
  kShare,  ///< the ranks that share the table share the entries: each reads some
  kOwn,    ///< each adds the entries of its rows, if other mesh dims cut the index
  kLeave,  ///< no rows are picked
};

/// Says how the rows of `dims` of `table` are picked by an index of spec `index`, or of its shape and cut as `entries`
/// says (the source of what is added). Nothing where the table is not cut along these dims, is cut for storage alone,
/// or where a mesh dim would be used twice; nor where a whole index has fewer entries than there are blocks.
std::optional<PickedRows> picked_rows(const SpecPtr& table, const std::vector<int64_t>& dims, const SpecPtr& index,
                                      UncutIndex uncut, const SpecPtr& entries = {});

/// A route, and what it takes: rows, or single elements by their number in the flattened [rows, others...].
struct PickedRoute {
  RowRoute route;
  bool elements = false;
};
using PickedRoutePtr = std::shared_ptr<const PickedRoute>;

/// The route for this rank's indices, one tensor per indexed dim, of one shape; the whole index where it is known. It
/// is kept with `given`, the tensor of the caller, as long as that is not written, unless `given` is undefined.
/// IndexError on every rank for a row that does not exist. Collective; a route that was kept sends nothing.
///
/// Kept routes are used by facts that all ranks share: the same ShardTensor, or the same view of it, in the same
/// version. A rank that finds its block written otherwise (through to_local) throws ValueError. For an index that every
/// rank has whole, each rank may decide for itself.
PickedRoutePtr route_of(const PickedRows& rows, const std::vector<at::Tensor>& indices, const at::Tensor& given,
                        const char* op);
/// The same for an index [entries, others...] of which each column picks among the elements of its own column.
PickedRoutePtr route_by_columns(const PickedRows& rows, const at::Tensor& index, const at::Tensor& given,
                                const char* op);

/// Adds entries to rows of a table: each rank adds to the rows that it holds. If mesh dims that do not cut the table
/// cut the entries, ranks then have addends of the same rows, which are summed at the end. Facts of a plan.
class RowSums {
 public:
  /// `table`: the spec of the table and of the result.
  RowSums(SpecPtr table, const PickedRows& rows, bool in_place);

  /// Where this rank adds: its block `target` itself, a copy of it, or zeros for its addends.
  at::Tensor begin(const at::Tensor& target) const;
  /// The result, from what begin() gave. Collective if there are addends.
  at::Tensor end(const at::Tensor& target, const at::Tensor& sums) const;

 private:
  SpecPtr table_, addends_;
  bool in_place_;
  std::shared_ptr<const Redistribution> move_;
};

/// A kept route depends on these.
struct RouteFacts {
  std::vector<Cut> cuts;
  std::vector<int64_t> extents;
  SpecPtr entries, table;  ///< table: where columns are picked apart
  bool wrap, known, own;
  bool operator==(const RouteFacts&) const = default;
};
/// Finds or makes the route of `given`, whose entries this rank has as `values` (cached_routes.cpp).
PickedRoutePtr cached_route(const at::Tensor& given, const RouteFacts& facts, const at::Tensor& values, const char* op,
                            const std::function<PickedRoutePtr()>& make);

}  // namespace moonhalo
