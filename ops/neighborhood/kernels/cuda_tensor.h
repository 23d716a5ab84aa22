// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/cuda_tile.h"

/// CUDA kernels of neighbourhood attention on tensor cores (warp matrix products of 16 x 16 x 16, summed in
/// float32), for float16 and bfloat16 where head_dim and value_dim are multiples of 16 up to kTiles * 16 and every
/// row of features is aligned to 16 bytes. A warp owns 16 rows; scores of 16 x kColumns are in shared memory while
/// they become weights, sums stay in fragments. Weights are rounded to the element type before the second product.
/// An infinite or NaN value may spoil all queries whose tile reaches its key (0 * infinity), not only those that
/// see it; a NaN key spoils those that see it.
///
/// Shared memory of a block: 37 KB forward and 61 KB backward at 64 features, 53 and 85 KB at 128; of 228 KB of a
/// multiprocessor that is six and three blocks, four and two. Columns are loaded 16 bytes a lane along the features.
/// Left out: copies that run beside the products (cp.async, TMA), Hopper's products of warp groups.
/// They ran on one H100: docs/gpu.md has the figures.
namespace moonhalo::neighborhood::cuda {

namespace wmma = nvcuda::wmma;

constexpr int kSide = 16;  ///< of a matrix that one instruction of a warp takes
constexpr int kTensorRows = kWarps * kSide;
constexpr int kTensorFeatures = 128;  ///< most, of keys and of values
constexpr int kScorePitch = kColumns + 4, kWeightPitch = kColumns + 8;

using Sums = wmma::fragment<wmma::accumulator, kSide, kSide, kSide, float>;

/// Shared memory of a block. Rows of features are 8 elements further apart than they are long, so that those of a
/// matrix begin in different banks; every matrix begins on 32 bytes.
template <typename T, bool kBackward>
struct TensorShared {
  int head_pitch, value_pitch;
  size_t rows, columns;  ///< Staged
  size_t row_first, row_second, column_first, column_second;
  size_t scores, gradients, weights, weight_gradients;  ///< of each warp; gradients: backward only
  size_t bytes;

  constexpr TensorShared(const Problem& p, size_t staged_rows, size_t staged_columns)
      : head_pitch(static_cast<int>(p.head_dim) + 8), value_pitch(static_cast<int>(p.value_dim) + 8) {
    Carver carver;
    rows = carver.take(staged_rows);
    columns = carver.take(staged_columns);
    row_first = carver.take(sizeof(T) * kTensorRows * head_pitch);
    row_second = carver.take(kBackward ? sizeof(T) * kTensorRows * value_pitch : 0);
    column_first = carver.take(sizeof(T) * kColumns * head_pitch);
    column_second = carver.take(sizeof(T) * kColumns * value_pitch);
    const size_t score_bytes = sizeof(float) * kTensorRows * kScorePitch,
                 weight_bytes = sizeof(T) * kTensorRows * kWeightPitch;
    scores = carver.take(score_bytes);
    gradients = carver.take(kBackward ? score_bytes : 0);
    weights = carver.take(weight_bytes);
    weight_gradients = carver.take(kBackward ? weight_bytes : 0);
    bytes = carver.used;
  }
};

/// Inner products of a warp's 16 rows with all columns, into [16][kScorePitch].
template <typename T>
__device__ void multiply_tiles(const T* rows, const T* columns, int pitch, int features, float* to) {
  for (int n = 0; n < kColumns; n += kSide) {
    Sums products;
    wmma::fill_fragment(products, 0.0f);
    for (int f = 0; f < features; f += kSide) {
      wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, T, wmma::row_major> row;
      wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, T, wmma::col_major> column;
      wmma::load_matrix_sync(row, rows + f, pitch);
      wmma::load_matrix_sync(column, columns + n * pitch + f, pitch);
      wmma::mma_sync(products, row, column, products);
    }
    wmma::store_matrix_sync(to + n, products, kScorePitch, wmma::mem_row_major);
  }
}

/// sums[t] += weights [16][kWeightPitch] times features [16 t, 16 t + 16) of the columns.
template <typename T, int kTiles>
__device__ void add_tiles(const T* weights, const T* columns, int pitch, int features, Sums (&sums)[kTiles]) {
  for (int n = 0; n < kColumns; n += kSide) {
    wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, T, wmma::row_major> weight;
    wmma::load_matrix_sync(weight, weights + n, kWeightPitch);
    for (int t = 0; t < kTiles; ++t) {
      if (t * kSide >= features) continue;
      wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, T, wmma::row_major> column;
      wmma::load_matrix_sync(column, columns + n * pitch + t * kSide, pitch);
      wmma::mma_sync(sums[t], weight, column, sums[t]);
    }
  }
}

/// The half row of a warp's [16][16] matrix that a lane works on.
struct HalfRow {
  int row, first;
};
__device__ inline HalfRow half_row() {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  return {lane / 2, lane % 2 * (kSide / 2)};
}

/// Writes sums * factor (the lane's, of row half_row().row) to the rows of a tensor; rows that are absent are left out.
/// `staging` is the warp's own [16][kScorePitch].
template <typename T, int kTiles>
__device__ void store_tiles(const Sums (&sums)[kTiles], float factor, int features, float* staging, void* tensor,
                            int64_t offset) {
  const HalfRow own = half_row();
  for (int t = 0; t < kTiles; ++t) {
    if (t * kSide >= features) continue;
    __syncwarp();
    wmma::store_matrix_sync(staging, sums[t], kScorePitch, wmma::mem_row_major);
    __syncwarp();
    if (offset < 0) continue;
    T* const to = static_cast<T*>(tensor) + offset + t * kSide + own.first;
    for (int i = 0; i < kSide / 2; ++i) to[i] = static_cast<T>(staging[own.row * kScorePitch + own.first + i] * factor);
  }
}

template <typename T>
constexpr TensorShared<T, false> tensor_forward_shared(const Problem& p) {
  return {p, sizeof(Staged<float, kTensorRows, 3>), sizeof(Staged<float, kColumns, 2>)};
}

/// Output and logsumexp of a tile of queries, by a running softmax. Launch of launch_of<false>(problem, kTensorRows).
template <typename T, int kTiles>
__device__ void forward_tensor(const Launch& launch, unsigned char* memory) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const Problem& p = launch.problem;
  const Assignment<false> mine(launch);
  const Tile& tile = mine.tile;
  if (tile.rows.count() == 0) return;
  const auto shared = tensor_forward_shared<T>(p);
  auto& rows = *reinterpret_cast<Staged<float, kTensorRows, 3>*>(memory + shared.rows);
  auto& columns = *reinterpret_cast<Staged<float, kColumns, 2>*>(memory + shared.columns);
  T* const queries = reinterpret_cast<T*>(memory + shared.row_first);
  T* const keys = reinterpret_cast<T*>(memory + shared.column_first);
  T* const values = reinterpret_cast<T*>(memory + shared.column_second);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float* const scores = reinterpret_cast<float*>(memory + shared.scores) + warp * kSide * kScorePitch;
  T* const weights = reinterpret_cast<T*>(memory + shared.weights) + warp * kSide * kWeightPitch;
  const int head_dim = static_cast<int>(p.head_dim), value_dim = static_cast<int>(p.value_dim);
  const float scale = static_cast<float>(p.scale);
  const HalfRow own = half_row();
  const int row = warp * kSide + own.row;

  const Strided* const of_rows[] = {&p.query, &p.output, &p.logsumexp};
  const Strided* const of_columns[] = {&p.key, &p.value};
  stage<true, false>(launch, mine.unit, tile.rows, 0, of_rows, rows);
  __syncthreads();
  load_vectors(p.query.data, rows.offsets[0], kTensorRows, head_dim, queries, shared.head_pitch);

  Sums sums[kTiles];
  for (Sums& each : sums) wmma::fill_fragment(each, 0.0f);
  float best = kNothing, total = 0;
  for (int start = 0; start < tile.columns.count(); start += kColumns) {
    __syncthreads();
    stage<false, false>(launch, mine.unit, tile.columns, start, of_columns, columns);
    __syncthreads();
    load_vectors(p.key.data, columns.offsets[0], kColumns, head_dim, keys, shared.head_pitch);
    load_vectors(p.value.data, columns.offsets[1], kColumns, value_dim, values, shared.value_pitch);
    __syncthreads();

    multiply_tiles(queries + warp * kSide * shared.head_pitch, keys, shared.head_pitch, head_dim, scores);
    __syncwarp();
    const Box query = box_at(rows, row);
    float score[kColumns / 2], next = best;
    for (int j = 0; j < kColumns / 2; ++j) {
      const int c = 2 * j + lane % 2;
      score[j] = sees(query, box_at(columns, c)) ? scores[own.row * kScorePitch + c] * scale : kNothing;
      next = std::fmax(next, score[j]);
    }
    next = std::fmax(next, __shfl_xor_sync(kAllLanes, next, 1));
    float sum = 0;
    for (int j = 0; j < kColumns / 2; ++j) {
      const float weight = weight_of(score[j], next);
      sum += weight;
      weights[own.row * kWeightPitch + 2 * j + lane % 2] = static_cast<T>(weight);
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    const float keep = weight_of(best, next);
    const bool rescale = best != kNothing && keep != 1;
    best = next;
    total = total * keep + sum;
    __syncwarp();
    // The scores have been read: their place serves to reach the rows of the fragments, whose layout is the
    // processor's.
    if (__ballot_sync(kAllLanes, rescale) != 0) {
      for (int t = 0; t < kTiles; ++t) {
        if (t * kSide >= value_dim) continue;
        wmma::store_matrix_sync(scores, sums[t], kScorePitch, wmma::mem_row_major);
        __syncwarp();
        for (int i = 0; i < kSide / 2; ++i) scores[own.row * kScorePitch + own.first + i] *= keep;
        __syncwarp();
        wmma::load_matrix_sync(sums[t], scores, kScorePitch, wmma::mem_row_major);
        __syncwarp();
      }
    }
    add_tiles(weights, values, shared.value_pitch, value_dim, sums);
  }

  store_tiles<T>(sums, 1 / total, value_dim, scores, p.output.data, rows.offsets[1][row]);
  if (rows.offsets[2][row] >= 0 && own.first == 0)
    static_cast<float*>(p.logsumexp.data)[rows.offsets[2][row]] = best + std::log(total);
}

template <typename T, bool kKeyRows>
constexpr TensorShared<T, true> tensor_backward_shared(const Problem& p) {
  return {p, sizeof(Staged < float, kTensorRows, kKeyRows ? 4 : 3 >), sizeof(Staged<float, kColumns, 2>)};
}

/// Like backward_plain. Launch of launch_of<kKeyRows>(problem, kTensorRows).
template <typename T, int kTiles, bool kKeyRows>
__device__ void backward_tensor(const Launch& launch, unsigned char* memory) {
  const Problem& p = launch.problem;
  const Assignment<kKeyRows> mine(launch);
  const Tile& tile = mine.tile;
  if (tile.rows.count() == 0) return;
  const auto shared = tensor_backward_shared<T, kKeyRows>(p);
  auto& rows = *reinterpret_cast<Staged<float, kTensorRows, kKeyRows ? 4 : 3>*>(memory + shared.rows);
  auto& columns = *reinterpret_cast<Staged<float, kColumns, 2>*>(memory + shared.columns);
  T* const row_first = reinterpret_cast<T*>(memory + shared.row_first);
  T* const row_second = reinterpret_cast<T*>(memory + shared.row_second);
  T* const column_first = reinterpret_cast<T*>(memory + shared.column_first);
  T* const column_second = reinterpret_cast<T*>(memory + shared.column_second);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float* const scores = reinterpret_cast<float*>(memory + shared.scores) + warp * kSide * kScorePitch;
  float* const gradients = reinterpret_cast<float*>(memory + shared.gradients) + warp * kSide * kScorePitch;
  T* const weights = reinterpret_cast<T*>(memory + shared.weights) + warp * kSide * kWeightPitch;
  T* const weight_gradients = reinterpret_cast<T*>(memory + shared.weight_gradients) + warp * kSide * kWeightPitch;
  const int head_dim = static_cast<int>(p.head_dim), value_dim = static_cast<int>(p.value_dim);
  const float scale = static_cast<float>(p.scale);
  const HalfRow own = half_row();
  const int row = warp * kSide + own.row;
  const Sides<kKeyRows> sides(p);

  sides.stage_rows(launch, mine, rows);
  __syncthreads();
  load_vectors(sides.row_head.data, rows.offsets[0], kTensorRows, head_dim, row_first, shared.head_pitch);
  load_vectors(sides.row_value.data, rows.offsets[1], kTensorRows, value_dim, row_second, shared.value_pitch);

  Sums by_score[kTiles], by_weight[kKeyRows ? kTiles : 1];
  for (Sums& each : by_score) wmma::fill_fragment(each, 0.0f);
  for (Sums& each : by_weight) wmma::fill_fragment(each, 0.0f);
  for (int start = 0; start < tile.columns.count(); start += kColumns) {
    __syncthreads();
    sides.stage_columns(launch, mine, start, columns);
    __syncthreads();
    load_vectors(sides.column_head.data, columns.offsets[0], kColumns, head_dim, column_first, shared.head_pitch);
    load_vectors(sides.column_value.data, columns.offsets[1], kColumns, value_dim, column_second, shared.value_pitch);
    __syncthreads();

    multiply_tiles(row_first + warp * kSide * shared.head_pitch, column_first, shared.head_pitch, head_dim, scores);
    multiply_tiles(row_second + warp * kSide * shared.value_pitch, column_second, shared.value_pitch, value_dim,
                   gradients);
    __syncwarp();
    const Box box = box_at(rows, row);
    for (int j = 0; j < kColumns / 2; ++j) {
      const int c = 2 * j + lane % 2;
      const Box column = box_at(columns, c);
      const bool seen = kKeyRows ? sees(column, box) : sees(box, column);
      const float logsumexp = kKeyRows ? columns.logsumexp[c] : rows.logsumexp[row];
      const float delta = kKeyRows ? columns.delta[c] : rows.delta[row];
      const int at = own.row * kScorePitch + c;
      const float weight = seen ? std::exp(scores[at] * scale - logsumexp) : 0.0f;
      weights[own.row * kWeightPitch + c] = static_cast<T>(weight);
      weight_gradients[own.row * kWeightPitch + c] = static_cast<T>(seen ? weight * (gradients[at] - delta) : 0.0f);
    }
    __syncwarp();
    add_tiles(weight_gradients, column_first, shared.head_pitch, head_dim, by_score);
    if constexpr (kKeyRows) add_tiles(weights, column_second, shared.value_pitch, value_dim, by_weight);
  }

  store_tiles<T>(by_score, scale, head_dim, scores, kKeyRows ? p.grad_key.data : p.grad_query.data,
                 rows.offsets[2][row]);
  if constexpr (kKeyRows) store_tiles<T>(by_weight, 1.0f, value_dim, scores, p.grad_value.data, rows.offsets[3][row]);
}

}  // namespace moonhalo::neighborhood::cuda
