// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moonhalo/engine/base/box.h"

/// Neighbourhood attention below LibTorch: plain memory in, plain memory out. Compiled once per instruction set, so
/// nothing here may leave code behind that the linker could share between them. What is constexpr runs on a GPU too
/// (cuda_plain.h).
namespace moonhalo::neighborhood {

/// One spatial dim: its window, and which rows of the global dim the blocks at hand hold. The keys hold every row that
/// the windows of the queries contain.
struct Axis {
  int64_t extent = 1;  ///< of the global dim
  int64_t window = 1, stride = 1, dilation = 1;
  bool causal = false;
  int64_t query_begin = 0, queries = 1;
  int64_t key_begin = 0, keys = 1;
};

/// Rows that are `dilation` apart form a group and see nothing of other groups: row i is number i / dilation of group
/// i % dilation. This many rows of a group come before row `end`.
[[gnu::always_inline]] constexpr int64_t rows_before(const Axis& axis, int64_t group, int64_t end) {
  return (end - group + axis.dilation - 1) / axis.dilation;
}

/// The keys, by number in the group, that query number `index` of a group of `length` rows sees. Queries share the
/// window of their leader, one of each `stride` neighbours: the middle one (for an even stride the later of the two),
/// where causal the last. The leader's window, window / 2 rows before it and the rest after, is shifted into the
/// domain. A causal window ends with the query and may be short at the domain's start.
/// Source: A. Hassani et al., Generalized Neighborhood Attention, arXiv:2504.16922, and NATTEN 0.21.
[[gnu::always_inline]] constexpr Interval window_of(const Axis& axis, int64_t length, int64_t index) {
  const int64_t leader_place = axis.causal ? axis.stride - 1 : axis.stride / 2;
  int64_t leader = index / axis.stride * axis.stride + leader_place;
  leader = leader < length ? leader : length - 1;
  int64_t begin = leader - (axis.causal ? axis.window - 1 : axis.window / 2);
  if (!axis.causal && begin > length - axis.window) begin = length - axis.window;
  if (begin < 0) begin = 0;
  return {begin, axis.causal ? index + 1 : begin + axis.window};
}

/// A tensor [batch, dim 0, dim 1, dim 2, heads, features]; strides in elements, features are adjacent.
struct Strided {
  void* data = nullptr;
  int64_t batch = 0, dims[3] = {0, 0, 0}, head = 0;
};

/// One call. Fewer spatial dims: the first axes have extent 1.
struct Problem {
  int64_t batch = 0, heads = 0, head_dim = 0, value_dim = 0;
  Axis axes[3];
  double scale = 1;
  Strided query, key, value;
  Strided output,
      logsumexp;  ///< written forward, read backward; logsumexp has no features and the accumulators' type
  /// Backward; grad_logsumexp may be null.
  Strided grad_output, grad_logsumexp, grad_query, grad_key, grad_value;

  /// Queries along `slab_axis` are worked on in slabs of `slab_queries` (by number in their group).
  int64_t slab_axis = 2, slab_queries = 1, slabs = 1;
  /// Backward: sums of the gradients of keys and values, unit_keys(problem) rows of padded features per unit, zero at
  /// first.
  void* key_sums = nullptr;
  void* value_sums = nullptr;

  /// A unit is a batch entry, a head and a group of each dim; its keys are its own.
  [[gnu::always_inline]] constexpr int64_t groups() const {
    return axes[0].dilation * axes[1].dilation * axes[2].dilation;
  }
  [[gnu::always_inline]] constexpr int64_t units() const { return batch * heads * groups(); }
};

/// Most rows of one group that a block of `rows` holds.
[[gnu::always_inline]] constexpr int64_t group_rows(const Axis& axis, int64_t rows) {
  return (rows + axis.dilation - 1) / axis.dilation;
}

[[gnu::always_inline]] constexpr int64_t unit_keys(const Problem& p) {
  return group_rows(p.axes[0], p.axes[0].keys) * group_rows(p.axes[1], p.axes[1].keys) *
         group_rows(p.axes[2], p.axes[2].keys);
}

/// The work of one element type. A slab of a unit is independent of every other in the forward; in the backward it adds
/// to the sums of its keys, so slabs of one unit that share keys must not run at the same time.
struct Kernels {
  int64_t accumulator_bytes;                 ///< of an element of the sums
  int64_t (*padded)(int64_t features);       ///< features of a row of the sums
  int64_t (*scratch_bytes)(const Problem&);  ///< that a call of forward or backward needs, aligned to 64
  void (*forward)(const Problem&, int64_t unit, int64_t slab, void* scratch);
  void (*backward)(const Problem&, int64_t unit, int64_t slab, void* scratch);
  void (*store_sums)(const Problem&, int64_t unit);  ///< writes grad_key and grad_value of a unit
  /// The forward of small windows of several rows, by strips of neighbours along the last axis: how many a slab has
  /// (0: windows for which slabs are quicker), and strip `part` % strips of slab `part` / strips.
  int64_t (*strips)(const Problem&);
  int64_t (*strip_scratch_bytes)(const Problem&);
  void (*forward_strip)(const Problem&, int64_t unit, int64_t part, void* scratch);
};

struct KernelSet {
  const char* name;  ///< instruction set
  Kernels float32, float64, bfloat16;
  /// For measuring a processor's peak: a number of rounds of 12 multiply-adds on vectors of float32 in registers.
  /// Returns the number of floating point operations.
  double (*multiply_adds)(int64_t rounds);
};

/// For any processor; and for the instruction set of this one, which may be the same.
const KernelSet& kernels_generic();
const KernelSet& kernels_native();

}  // namespace moonhalo::neighborhood
