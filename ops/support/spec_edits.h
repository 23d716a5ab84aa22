// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <vector>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// The spec of a tensor of shape `shape` whose dim d keeps the cut of dim `source[d]` of `spec` (-1: uncut). The cut is
/// kept as it is, so the extents must be equal. Partials are kept.
SpecPtr with_cuts_of(const SpecPtr& spec, at::IntArrayRef shape, const std::vector<int64_t>& source);

/// `spec` with the named dims uncut, that is replicated over the mesh dims that cut them.
SpecPtr without_cuts(const SpecPtr& spec, at::IntArrayRef dims);

/// `spec` with another cut of `dim`, of the same extent or another.
SpecPtr with_cut(const SpecPtr& spec, int64_t dim, Cut cut, int64_t extent);

/// Only Partial(sum) and Partial(avg) are linear: other Partials resolved.
SpecPtr resolve_nonlinear(const SpecPtr& spec);

/// A plan for an operator of one tensor, which is required as `required`. A view operator whose input has to be cut
/// again copies; resolving a Partial does not count, since the input itself is then the resolved tensor.
Plan unary_plan(const OpCall& call, const SpecPtr& required, std::vector<SpecPtr> outputs);

/// Every block of `cut` (of the whole dim of `extent` rows, if there is none) divided evenly over more mesh dims.
Cut divided_further(Cut cut, const std::vector<int64_t>& more, int64_t extent, const DeviceMesh& mesh);

/// True if `layout` uses none of the mesh dims of a cut, so that one of its dims may take the cut.
bool is_free(const Cut& cut, const Layout& layout);

/// True if two lists, of mesh dims for example, have an item in common.
bool intersects(const std::vector<int64_t>& a, const std::vector<int64_t>& b);

/// The identity on dims: 0 1 2 ...
std::vector<int64_t> all_dims(int64_t ndim);

/// A list of integers as an argument.
c10::IValue int_list(const std::vector<int64_t>& values);

/// Blocks of a dim of `extent` rows whose boundaries are at the same place of the domain as those of `sizes`,
/// rounded.
std::vector<int64_t> proportional_sizes(const std::vector<int64_t>& sizes, int64_t extent);

/// Block sizes whose boundaries are as near as may be to those of balanced blocks, while boundary i (before block i +
/// 1) stays within [low[i], high[i]]; both are increasing and one shorter than the number of blocks.
std::vector<int64_t> nearly_balanced(int64_t extent, const std::vector<int64_t>& low, const std::vector<int64_t>& high);

/// Block sizes of a dim of blocks `sizes` with `before` rows more in front (fewer, if negative), `extent` in all. The
/// outer blocks grow or shrink, so nothing moves; but balanced blocks, where set_output_cut says "rebalance", or where
/// an outer one would have more than 1.25 times the rows of a balanced one because of what it grows by.
std::vector<int64_t> padded_sizes(const std::vector<int64_t>& sizes, int64_t before, int64_t extent);

/// A cut of `extent` rows that leaves the rows start, start + step, ... where `picked`, a cut of these rows alone, has
/// them. Of the cuts that do, the one nearest to balanced blocks.
Cut cut_around(Cut picked, int64_t extent, int64_t start, int64_t step);

}  // namespace moonhalo
