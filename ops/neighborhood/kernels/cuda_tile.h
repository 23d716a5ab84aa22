// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "moonhalo/ops/neighborhood/kernels/kernels.h"

/// The CUDA kernels of neighbourhood attention share this: how the work is cut into thread blocks, and how the tensors
/// of a block come into shared memory. Ordinary CUDA C++ apart from `__global__`, so that tests run the same lines on a
/// CPU: include it after the CUDA headers <mma.h>, <cuda_fp16.h>, <cuda_bf16.h>, or after tests/support/simt.h, which
/// stands in for them.
///
///     rows      of the tile that a thread block owns: queries (forward, gradient of queries) or keys (gradients of
///               keys, values)
///     columns   what those rows see, or are seen by: a box of the other side, walked in chunks of kColumns
///
/// A gradient is gathered by its owner: nothing is added atomically, and the same call gives the same bits.
namespace moonhalo::neighborhood::cuda {

constexpr int kWarpLanes = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kColumns = 32;  ///< of a chunk: one per lane
constexpr unsigned kAllLanes = 0xffffffffu;

/// One launch: 1-D grid of units() * tiles of a unit, kThreads threads each. Extents of the dims are below 2^31.
struct Launch {
  Problem problem;
  Strided delta;             ///< backward: sum of grad_output * output minus grad_logsumexp, per query
  int tile[3] = {1, 1, 1};   ///< rows of a block along the dims of its group
  int tiles[3] = {1, 1, 1};  ///< of the group with the most rows
  constexpr int64_t tiles_of_unit() const { return int64_t{tiles[0]} * tiles[1] * tiles[2]; }
  constexpr int64_t blocks() const { return problem.units() * tiles_of_unit(); }
};

/// Rows of a group of each dim, by number in the group. Element e counts along the last dim first.
struct Area {
  int begin[3] = {0, 0, 0}, size[3] = {0, 0, 0};
  constexpr int count() const { return size[0] * size[1] * size[2]; }
};

struct Unit {
  int64_t batch = 0, head = 0;
  int64_t group[3] = {0, 0, 0};
};

constexpr Unit unit_of(const Problem& p, int64_t index) {
  Unit unit;
  for (int d = 2; d >= 0; --d) {
    unit.group[d] = index % p.axes[d].dilation;
    index /= p.axes[d].dilation;
  }
  unit.head = index % p.heads;
  unit.batch = index / p.heads;
  return unit;
}

/// Queries, by number in the group, among which are all that see a key of `keys`; of the whole dim.
constexpr Interval seers_of(const Axis& axis, int64_t length, Interval keys) {
  Interval seers;
  if (axis.causal) {
    seers = {keys.begin, keys.end - 1 + axis.window};
  } else {
    // The leader is less than a stride away; near the ends of the dim windows are shifted, so that all queries there
    // may see.
    seers = {keys.begin - axis.window + 1 + axis.window / 2 - (axis.stride - 1),
             keys.end + axis.window / 2 + (axis.stride - 1)};
    if (keys.begin < axis.window) seers.begin = 0;
    if (keys.end > length - axis.window) seers.end = length;
  }
  if (seers.begin < 0) seers.begin = 0;
  if (seers.end > length) seers.end = length;
  return seers;
}

/// The rows that a block holds of one group.
constexpr Interval held(const Axis& axis, int64_t group, bool queries) {
  const int64_t begin = queries ? axis.query_begin : axis.key_begin, rows = queries ? axis.queries : axis.keys;
  return {rows_before(axis, group, begin), rows_before(axis, group, begin + rows)};
}

/// The rows of tile number `index` of a unit (none for a group that has fewer tiles), and the columns they need.
struct Tile {
  Area rows, columns;
};

template <bool kKeyRows>
constexpr Tile tile_of(const Launch& launch, const Unit& unit, int64_t index) {
  Tile tile;
  for (int d = 2; d >= 0; --d) {
    const Axis& axis = launch.problem.axes[d];
    const int64_t group = unit.group[d], length = rows_before(axis, group, axis.extent);
    const Interval own = held(axis, group, !kKeyRows), other = held(axis, group, kKeyRows);
    const int64_t begin = own.begin + index % launch.tiles[d] * launch.tile[d];
    const int64_t end = begin + launch.tile[d] < own.end ? begin + launch.tile[d] : own.end;
    index /= launch.tiles[d];
    if (end <= begin) return {};
    Interval reach;
    if constexpr (kKeyRows) {
      reach = seers_of(axis, length, {begin, end});
    } else {
      reach = {window_of(axis, length, begin).begin, window_of(axis, length, end - 1).end};
    }
    if (reach.begin < other.begin) reach.begin = other.begin;
    if (reach.end > other.end) reach.end = other.end;
    tile.rows.begin[d] = static_cast<int>(begin);
    tile.rows.size[d] = static_cast<int>(end - begin);
    tile.columns.begin[d] = static_cast<int>(reach.begin);
    tile.columns.size[d] = static_cast<int>(reach.end > reach.begin ? reach.end - reach.begin : 0);
  }
  return tile;
}

/// Cuts a unit's rows into tiles of at most `rows`: the shape that has to look at the fewest chunks of columns in all.
template <bool kKeyRows>
Launch launch_of(const Problem& problem, int rows) {
  Launch best{problem};
  int64_t counts[3], reach[3];
  for (int d = 0; d < 3; ++d) {
    const Axis& axis = problem.axes[d];
    counts[d] = group_rows(axis, kKeyRows ? axis.keys : axis.queries);
    reach[d] = axis.window + axis.stride - 2;
  }
  double least = std::numeric_limits<double>::infinity();
  for (int first = 1; first <= rows; first *= 2) {
    for (int second = 1; first * second <= rows; second *= 2) {
      const int shape[3] = {first, second, rows / first / second};
      double tiles = 1, columns = 1;
      for (int d = 0; d < 3; ++d) {
        tiles *= static_cast<double>((counts[d] + shape[d] - 1) / shape[d]);
        columns *= static_cast<double>(shape[d] + reach[d]);
      }
      const double cost = tiles * std::ceil(columns / kColumns);
      if (cost >= least) continue;
      least = cost;
      for (int d = 0; d < 3; ++d) {
        best.tile[d] = shape[d];
        best.tiles[d] = static_cast<int>((counts[d] + shape[d] - 1) / shape[d]);
      }
    }
  }
  return best;
}

/// Offsets into a block's shared memory, each aligned for any load.
struct Carver {
  size_t used = 0;
  constexpr size_t take(size_t bytes) {
    const size_t at = used;
    used += (bytes + 127) / 128 * 128;
    return at;
  }
};

/// Rows or columns while a block works on them. Of a query, begin and end are its window along the dims, and backward
/// its logsumexp and delta; of a key, its own place. Offsets, in elements, are those of its features in kTensors
/// tensors.
template <typename Sum, int kCount, int kTensors>
struct Staged {
  int begin[3][kCount], end[3][kCount];
  int64_t offsets[kTensors][kCount];
  Sum logsumexp[kCount], delta[kCount];
};

__device__ inline int64_t offset_of(const Strided& tensor, const Unit& unit, const int64_t (&rows)[3]) {
  return unit.batch * tensor.batch + unit.head * tensor.head + rows[0] * tensor.dims[0] + rows[1] * tensor.dims[1] +
         rows[2] * tensor.dims[2];
}

/// Describes the elements [start, start + kCount) of an area, by all threads of a block. Elements that are not there
/// see nothing, are seen by nothing and have offsets of -1.
template <bool kQueries, bool kBackward, typename Sum, int kCount, int kTensors>
__device__ void stage(const Launch& launch, const Unit& unit, const Area& area, int start,
                      const Strided* const (&tensors)[kTensors], Staged<Sum, kCount, kTensors>& to) {
  const Problem& p = launch.problem;
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kThreads) {
    int rest = start + i;
    const bool present = rest < area.count();
    int64_t rows[3] = {0, 0, 0};
    for (int d = 2; d >= 0; --d) {
      to.begin[d][i] = kQueries ? 0 : -1;
      to.end[d][i] = 0;
      if (!present) continue;
      const Axis& axis = p.axes[d];
      const int number = area.begin[d] + rest % area.size[d];
      rest /= area.size[d];
      rows[d] = number * axis.dilation + unit.group[d] - (kQueries ? axis.query_begin : axis.key_begin);
      if constexpr (kQueries) {
        const Interval window = window_of(axis, rows_before(axis, unit.group[d], axis.extent), number);
        to.begin[d][i] = static_cast<int>(window.begin);
        to.end[d][i] = static_cast<int>(window.end);
      } else {
        to.begin[d][i] = number;
        to.end[d][i] = number + 1;
      }
    }
    for (int t = 0; t < kTensors; ++t) to.offsets[t][i] = present ? offset_of(*tensors[t], unit, rows) : -1;
    if constexpr (kQueries && kBackward) {
      const auto number_in = [&](const Strided& tensor) {
        return present ? static_cast<const Sum*>(tensor.data)[offset_of(tensor, unit, rows)] : Sum(0);
      };
      to.logsumexp[i] = number_in(p.logsumexp);
      to.delta[i] = number_in(launch.delta);
    }
  }
}

/// The tile that this block of threads works on.
template <bool kKeyRows>
struct Assignment {
  Unit unit;
  Tile tile;

  __device__ explicit Assignment(const Launch& launch)
      : unit(unit_of(launch.problem, int64_t{blockIdx.x} / launch.tiles_of_unit())),
        tile(tile_of<kKeyRows>(launch, unit, int64_t{blockIdx.x} % launch.tiles_of_unit())) {}
};

/// Both sides of a gradient: its rows are keys (kKeyRows) or queries, its columns the others. Each side has a tensor of
/// head_dim features (key, query) and one of value_dim (value, grad_output).
template <bool kKeyRows>
struct Sides {
  const Strided &row_head, &row_value, &column_head, &column_value;

  __device__ explicit Sides(const Problem& p)
      : row_head(kKeyRows ? p.key : p.query),
        row_value(kKeyRows ? p.value : p.grad_output),
        column_head(kKeyRows ? p.query : p.key),
        column_value(kKeyRows ? p.grad_output : p.value) {}

  /// Tensors: both of the side, then their gradients.
  template <typename Rows>
  __device__ void stage_rows(const Launch& launch, const Assignment<kKeyRows>& mine, Rows& rows) const {
    const Problem& p = launch.problem;
    if constexpr (kKeyRows) {
      const Strided* const tensors[] = {&row_head, &row_value, &p.grad_key, &p.grad_value};
      stage<false, true>(launch, mine.unit, mine.tile.rows, 0, tensors, rows);
    } else {
      const Strided* const tensors[] = {&row_head, &row_value, &p.grad_query};
      stage<true, true>(launch, mine.unit, mine.tile.rows, 0, tensors, rows);
    }
  }
  template <typename Columns>
  __device__ void stage_columns(const Launch& launch, const Assignment<kKeyRows>& mine, int start,
                                Columns& columns) const {
    const Strided* const tensors[] = {&column_head, &column_value};
    stage<kKeyRows, true>(launch, mine.unit, mine.tile.columns, start, tensors, columns);
  }
};

/// Begin and end of one element of Staged.
struct Box {
  int begin[3], end[3];
};

template <typename Sum, int kCount, int kTensors>
__device__ Box box_at(const Staged<Sum, kCount, kTensors>& staged, int i) {
  Box box;
  for (int d = 0; d < 3; ++d) {
    box.begin[d] = staged.begin[d][i];
    box.end[d] = staged.end[d][i];
  }
  return box;
}

/// Does a query of this window see the key at this place.
constexpr bool sees(const Box& query, const Box& key) {
  bool inside = true;
  for (int d = 0; d < 3; ++d) inside = inside && query.begin[d] <= key.begin[d] && key.end[d] <= query.end[d];
  return inside;
}

/// Features of rows into shared memory as `Sum`, by all threads: a warp per row, its lanes along the features. Zeros
/// where a row is absent (offset -1) and from `features` up to `padded`.
template <typename T, typename Sum>
__device__ void load_rows(const void* from, const int64_t* offsets, int count, int features, int padded, Sum* to,
                          int pitch) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int row = warp; row < count; row += kWarps) {
    const T* source = static_cast<const T*>(from) + offsets[row];
    for (int f = lane; f < padded; f += kWarpLanes) {
      to[row * pitch + f] = offsets[row] >= 0 && f < features ? static_cast<Sum>(source[f]) : Sum(0);
    }
  }
}

struct alignas(16) [[gnu::may_alias]] Bytes16 {
  uint32_t words[4];
};

/// The same without conversion, 16 bytes at a time: features are a multiple of 8, rows and `to` aligned to 16 bytes.
template <typename T>
__device__ void load_vectors(const void* from, const int64_t* offsets, int count, int features, T* to, int pitch) {
  constexpr int kEach = sizeof(Bytes16) / sizeof(T);
  const int per_row = features / kEach;
  for (int i = static_cast<int>(threadIdx.x); i < count * per_row; i += kThreads) {
    const int row = i / per_row, f = i % per_row * kEach;
    const auto* source = reinterpret_cast<const Bytes16*>(static_cast<const T*>(from) + offsets[row] + f);
    *reinterpret_cast<Bytes16*>(to + row * pitch + f) = offsets[row] >= 0 ? *source : Bytes16{};
  }
}

template <typename Sum>
__device__ Sum warp_sum(Sum value) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// NaN only where all are: what a NaN among the scores does is left to the sum of weights.
template <typename Sum>
__device__ Sum warp_max(Sum value) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2)
    value = std::fmax(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// exp(value - largest), and 0 for a score of minus infinity however small the largest is.
template <typename Sum>
__device__ Sum weight_of(Sum value, Sum largest) {
  return value == -std::numeric_limits<Sum>::infinity() ? Sum(0) : std::exp(value - largest);
}

}  // namespace moonhalo::neighborhood::cuda
