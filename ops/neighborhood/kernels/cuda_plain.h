// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/cuda_tile.h"

/// CUDA kernels of neighbourhood attention for any element type and any number of features, on ordinary multiply-adds.
/// A warp owns kWarpRows rows; a lane is a column while scores are made, and every 32nd feature while columns are
/// summed. Features of results are worked on kSlots * 32 at a time, in registers; for more, the scores are made again.
///
/// Shared memory of a block: in float32 28 KB forward and 36 KB backward at 64 features, 100 and 132 KB at 256; in
/// float64 twice as much, so that more than some 200 features do not fit a block's 227 KB backward. The launch asks for
/// what is beyond 48 KB. Figures measured on one H100 are in docs/gpu.md.
namespace moonhalo::neighborhood::cuda {

constexpr int kWarpRows = 8;
constexpr int kPlainRows = kWarps * kWarpRows;

constexpr int padded_features(int64_t features) { return static_cast<int>((features + 3) / 4 * 4); }

/// Shared memory of a block: rows are read four features at once by the same for all lanes, columns one by one with
/// an odd pitch, so that lanes use different banks.
template <typename Sum, bool kBackward>
struct PlainShared {
  int head, value;               ///< padded features
  int head_pitch, value_pitch;   ///< of columns
  size_t rows, columns;          ///< Staged
  size_t row_first, row_second;  ///< second: backward only
  size_t column_first, column_second;
  size_t bytes;

  constexpr PlainShared(const Problem& p, size_t staged_rows, size_t staged_columns)
      : head(padded_features(p.head_dim)),
        value(padded_features(p.value_dim)),
        head_pitch(head + 1),
        value_pitch(value + 1) {
    Carver carver;
    rows = carver.take(staged_rows);
    columns = carver.take(staged_columns);
    row_first = carver.take(sizeof(Sum) * kPlainRows * head);
    row_second = carver.take(kBackward ? sizeof(Sum) * kPlainRows * value : 0);
    column_first = carver.take(sizeof(Sum) * kColumns * head_pitch);
    column_second = carver.take(sizeof(Sum) * kColumns * value_pitch);
    bytes = carver.used;
  }
};

template <typename Sum>
struct alignas(4 * sizeof(Sum)) [[gnu::may_alias]] Four {
  Sum at[4];
};

/// Inner products of a warp's rows (padded features each) with the lane's column.
template <typename Sum>
__device__ void multiply(const Sum* rows, int padded, const Sum* column, Sum (&products)[kWarpRows]) {
  for (Sum& product : products) product = 0;
  for (int f = 0; f < padded; f += 4) {
    const Sum c[4] = {column[f], column[f + 1], column[f + 2], column[f + 3]};
    for (int i = 0; i < kWarpRows; ++i) {
      const auto row = *reinterpret_cast<const Four<Sum>*>(rows + i * padded + f);
      for (int j = 0; j < 4; ++j) products[i] += row.at[j] * c[j];
    }
  }
}

/// sums[i][s] += weights[i] of lane j times feature 32 s + lane of column j, over the columns j that row i sees: a
/// column that it does not see has no influence, whatever it holds.
template <typename Sum, int kSlots>
__device__ void add_columns(const Sum (&weights)[kWarpRows], const unsigned (&seen)[kWarpRows], const Sum* columns,
                            int pitch, int features, Sum (&sums)[kWarpRows][kSlots]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  unsigned any = 0;
  for (const unsigned each : seen) any |= each;
  for (; any != 0; any &= any - 1) {
    const int j = __ffs(static_cast<int>(any)) - 1;
    Sum column[kSlots];
    for (int s = 0; s < kSlots; ++s) {
      const int f = s * kWarpLanes + lane;
      column[s] = f < features ? columns[j * pitch + f] : Sum(0);
    }
    for (int i = 0; i < kWarpRows; ++i) {
      const Sum weight = __shfl_sync(kAllLanes, weights[i], j);
      if ((seen[i] >> j & 1) == 0) continue;
      for (int s = 0; s < kSlots; ++s) sums[i][s] += weight * column[s];
    }
  }
}

template <typename Sum>
using PlainForward = PlainShared<Sum, false>;
template <typename Sum>
using ForwardRows = Staged<Sum, kPlainRows, 3>;  // query, output, logsumexp
template <typename Sum>
using ForwardColumns = Staged<Sum, kColumns, 2>;  // key, value

template <typename Sum>
constexpr PlainForward<Sum> plain_forward_shared(const Problem& p) {
  return {p, sizeof(ForwardRows<Sum>), sizeof(ForwardColumns<Sum>)};
}

/// Output and logsumexp of a tile of queries, by a running softmax. Launch of launch_of<false>(problem, kPlainRows).
template <typename T, typename Sum, int kSlots>
__device__ void forward_plain(const Launch& launch, unsigned char* memory) {
  constexpr Sum kNothing = -std::numeric_limits<Sum>::infinity();
  const Problem& p = launch.problem;
  const Assignment<false> mine(launch);
  const Tile& tile = mine.tile;
  if (tile.rows.count() == 0) return;
  const auto shared = plain_forward_shared<Sum>(p);
  auto& rows = *reinterpret_cast<ForwardRows<Sum>*>(memory + shared.rows);
  auto& columns = *reinterpret_cast<ForwardColumns<Sum>*>(memory + shared.columns);
  Sum* const queries = reinterpret_cast<Sum*>(memory + shared.row_first);
  Sum* const keys = reinterpret_cast<Sum*>(memory + shared.column_first);
  Sum* const values = reinterpret_cast<Sum*>(memory + shared.column_second);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes,
            first_row = static_cast<int>(threadIdx.x) / kWarpLanes * kWarpRows;
  const int head_dim = static_cast<int>(p.head_dim), value_dim = static_cast<int>(p.value_dim);
  const Sum scale = static_cast<Sum>(p.scale);

  const Strided* const of_rows[] = {&p.query, &p.output, &p.logsumexp};
  const Strided* const of_columns[] = {&p.key, &p.value};
  stage<true, false>(launch, mine.unit, tile.rows, 0, of_rows, rows);
  __syncthreads();
  load_rows<T>(p.query.data, rows.offsets[0], kPlainRows, head_dim, shared.head, queries, shared.head);

  for (int slice = 0; slice == 0 || slice < value_dim; slice += kSlots * kWarpLanes) {
    Sum best[kWarpRows], total[kWarpRows] = {}, sums[kWarpRows][kSlots] = {};
    for (Sum& each : best) each = kNothing;
    for (int start = 0; start < tile.columns.count(); start += kColumns) {
      __syncthreads();
      stage<false, false>(launch, mine.unit, tile.columns, start, of_columns, columns);
      __syncthreads();
      load_rows<T>(p.key.data, columns.offsets[0], kColumns, head_dim, shared.head, keys, shared.head_pitch);
      load_rows<T>(p.value.data, columns.offsets[1], kColumns, value_dim, shared.value, values, shared.value_pitch);
      __syncthreads();

      const Box key = box_at(columns, lane);
      unsigned seen[kWarpRows], any = 0;
      for (int i = 0; i < kWarpRows; ++i) {
        seen[i] = __ballot_sync(kAllLanes, sees(box_at(rows, first_row + i), key));
        any |= seen[i];
      }
      if (any == 0) continue;
      Sum weights[kWarpRows];
      multiply(queries + first_row * shared.head, shared.head, keys + lane * shared.head_pitch, weights);
      for (int i = 0; i < kWarpRows; ++i) {
        if (seen[i] == 0) continue;
        const Sum score = (seen[i] >> lane & 1) != 0 ? weights[i] * scale : kNothing;
        const Sum next = std::fmax(best[i], warp_max(score)), keep = weight_of(best[i], next);
        weights[i] = weight_of(score, next);
        total[i] = total[i] * keep + warp_sum(weights[i]);
        best[i] = next;
        for (Sum& sum : sums[i]) sum *= keep;
      }
      add_columns(weights, seen, values + slice, shared.value_pitch, value_dim - slice, sums);
    }

    for (int i = 0; i < kWarpRows; ++i) {
      const int row = first_row + i;
      if (rows.offsets[0][row] < 0) continue;
      T* const output = static_cast<T*>(p.output.data) + rows.offsets[1][row] + slice;
      for (int s = 0; s < kSlots; ++s) {
        const int f = s * kWarpLanes + lane;
        if (slice + f < value_dim) output[f] = static_cast<T>(sums[i][s] / total[i]);
      }
      if (slice == 0 && lane == 0)
        static_cast<Sum*>(p.logsumexp.data)[rows.offsets[2][row]] = best[i] + std::log(total[i]);
    }
  }
}

/// delta of every query, a warp each: the sum of grad_output * output, less the gradient of logsumexp. Blocks:
/// delta_blocks.
constexpr int64_t queries_of(const Problem& p) {
  return p.batch * p.heads * p.axes[0].queries * p.axes[1].queries * p.axes[2].queries;
}
constexpr int64_t delta_blocks(const Problem& p) { return (queries_of(p) + kWarps - 1) / kWarps; }

template <typename T, typename Sum>
__device__ void delta_plain(const Launch& launch) {
  const Problem& p = launch.problem;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  if (index >= queries_of(p)) return;
  Unit unit;
  unit.head = index % p.heads;
  index /= p.heads;
  int64_t rows[3];
  for (int d = 2; d >= 0; --d) {
    rows[d] = index % p.axes[d].queries;
    index /= p.axes[d].queries;
  }
  unit.batch = index;
  const T* const grad = static_cast<const T*>(p.grad_output.data) + offset_of(p.grad_output, unit, rows);
  const T* const output = static_cast<const T*>(p.output.data) + offset_of(p.output, unit, rows);
  Sum sum = 0;
  for (int f = lane; f < p.value_dim; f += kWarpLanes) sum += static_cast<Sum>(grad[f]) * static_cast<Sum>(output[f]);
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (p.grad_logsumexp.data != nullptr)
    sum -= static_cast<const Sum*>(p.grad_logsumexp.data)[offset_of(p.grad_logsumexp, unit, rows)];
  static_cast<Sum*>(launch.delta.data)[offset_of(launch.delta, unit, rows)] = sum;
}

template <typename Sum>
using PlainBackward = PlainShared<Sum, true>;
template <typename Sum, bool kKeyRows>
using BackwardRows = Staged<Sum, kPlainRows, kKeyRows ? 4 : 3>;  // both of the side, and their gradients
template <typename Sum>
using BackwardColumns = Staged<Sum, kColumns, 2>;

template <typename Sum, bool kKeyRows>
constexpr PlainBackward<Sum> plain_backward_shared(const Problem& p) {
  return {p, sizeof(BackwardRows<Sum, kKeyRows>), sizeof(BackwardColumns<Sum>)};
}

/// The gradient of a tile of queries (kKeyRows false), or of keys and of values by the queries that see them. Both
/// sides have a tensor of head_dim features (query, key) and one of value_dim (grad_output, value); a weight and its
/// gradient come from the products of each, and both gradients of a row are weighted sums of columns. Launch of
/// launch_of<kKeyRows>(problem, kPlainRows).
template <typename T, typename Sum, int kSlots, bool kKeyRows>
__device__ void backward_plain(const Launch& launch, unsigned char* memory) {
  const Problem& p = launch.problem;
  const Assignment<kKeyRows> mine(launch);
  const Tile& tile = mine.tile;
  if (tile.rows.count() == 0) return;
  const auto shared = plain_backward_shared<Sum, kKeyRows>(p);
  auto& rows = *reinterpret_cast<BackwardRows<Sum, kKeyRows>*>(memory + shared.rows);
  auto& columns = *reinterpret_cast<BackwardColumns<Sum>*>(memory + shared.columns);
  Sum* const row_first = reinterpret_cast<Sum*>(memory + shared.row_first);
  Sum* const row_second = reinterpret_cast<Sum*>(memory + shared.row_second);
  Sum* const column_first = reinterpret_cast<Sum*>(memory + shared.column_first);
  Sum* const column_second = reinterpret_cast<Sum*>(memory + shared.column_second);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes,
            first_row = static_cast<int>(threadIdx.x) / kWarpLanes * kWarpRows;
  const int head_dim = static_cast<int>(p.head_dim), value_dim = static_cast<int>(p.value_dim);
  const int features = kKeyRows && value_dim > head_dim ? value_dim : head_dim;
  const Sum scale = static_cast<Sum>(p.scale);
  const Sides<kKeyRows> sides(p);

  sides.stage_rows(launch, mine, rows);
  __syncthreads();
  load_rows<T>(sides.row_head.data, rows.offsets[0], kPlainRows, head_dim, shared.head, row_first, shared.head);
  load_rows<T>(sides.row_value.data, rows.offsets[1], kPlainRows, value_dim, shared.value, row_second, shared.value);

  for (int slice = 0; slice < features; slice += kSlots * kWarpLanes) {
    Sum by_score[kWarpRows][kSlots] = {}, by_weight[kKeyRows ? kWarpRows : 1][kSlots] = {};
    for (int start = 0; start < tile.columns.count(); start += kColumns) {
      __syncthreads();
      sides.stage_columns(launch, mine, start, columns);
      __syncthreads();
      load_rows<T>(sides.column_head.data, columns.offsets[0], kColumns, head_dim, shared.head, column_first,
                   shared.head_pitch);
      load_rows<T>(sides.column_value.data, columns.offsets[1], kColumns, value_dim, shared.value, column_second,
                   shared.value_pitch);
      __syncthreads();

      const Box column = box_at(columns, lane);
      unsigned seen[kWarpRows], any = 0;
      for (int i = 0; i < kWarpRows; ++i) {
        const Box row = box_at(rows, first_row + i);
        seen[i] = __ballot_sync(kAllLanes, kKeyRows ? sees(column, row) : sees(row, column));
        any |= seen[i];
      }
      if (any == 0) continue;
      Sum weights[kWarpRows], gradients[kWarpRows];
      multiply(row_first + first_row * shared.head, shared.head, column_first + lane * shared.head_pitch, weights);
      multiply(row_second + first_row * shared.value, shared.value, column_second + lane * shared.value_pitch,
               gradients);
      for (int i = 0; i < kWarpRows; ++i) {
        const Sum logsumexp = kKeyRows ? columns.logsumexp[lane] : rows.logsumexp[first_row + i];
        const Sum delta = kKeyRows ? columns.delta[lane] : rows.delta[first_row + i];
        const bool is_seen = (seen[i] >> lane & 1) != 0;
        weights[i] = is_seen ? std::exp(weights[i] * scale - logsumexp) : Sum(0);
        gradients[i] = is_seen ? weights[i] * (gradients[i] - delta) : Sum(0);
      }
      add_columns(gradients, seen, column_first + slice, shared.head_pitch, head_dim - slice, by_score);
      if constexpr (kKeyRows)
        add_columns(weights, seen, column_second + slice, shared.value_pitch, value_dim - slice, by_weight);
    }

    for (int i = 0; i < kWarpRows; ++i) {
      const int row = first_row + i;
      if (rows.offsets[0][row] < 0) continue;
      T* const grad_head =
          static_cast<T*>(kKeyRows ? p.grad_key.data : p.grad_query.data) + rows.offsets[2][row] + slice;
      for (int s = 0; s < kSlots; ++s) {
        const int f = s * kWarpLanes + lane;
        if (slice + f < head_dim) grad_head[f] = static_cast<T>(by_score[i][s] * scale);
      }
      if constexpr (kKeyRows) {
        T* const grad_value = static_cast<T*>(p.grad_value.data) + rows.offsets[3][row] + slice;
        for (int s = 0; s < kSlots; ++s) {
          const int f = s * kWarpLanes + lane;
          if (slice + f < value_dim) grad_value[f] = static_cast<T>(by_weight[i][s]);
        }
      }
    }
  }
}

}  // namespace moonhalo::neighborhood::cuda
