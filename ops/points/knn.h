// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace moonhalo {

/// Returns the `k` nearest points of every query, by Euclidean distance, as (distances, indices).
///
///     query      [batch..., M, D], points [batch..., N, D]: both float32 or both float64; equal batch dims
///     distances  [batch..., M, k], ordered by (squared distance, index), so that the result is unique
///     indices    [batch..., M, k] int64, into N
///
/// The distances are differentiable any number of times in query and points; the gradient at distance zero is zero, as
/// in at::cdist. NaN distances count as the largest. Throws ValueError unless 1 <= k <= N.
///
/// Takes ShardTensors of any placements; the result is that of the unsharded tensors. It is sharded along M as the
/// query is, and over mesh dims that shard only the points. Sharded batch dims need no communication. Along the mesh
/// dims that shard the points the smaller data is sent: either blocks of points, passed from rank to rank, the next in
/// flight while one is searched, or the queries, whose candidates are sent back. Backward sends only the rows that are
/// a query's neighbour, and their gradients to the owners. Collective over the mesh.
///
/// The functions of this header run on the CPU only; ShardTensors of another device throw NotImplementedError.
/// Algorithm: a k-d tree with leaves of 16 points, or tiles of all points for many features or few queries. It never
/// allocates M x N numbers.
/// Operator: `moonhalo::knn(query, points, k)`.
/// Source: J. H. Friedman, J. L. Bentley, R. A. Finkel, An algorithm for finding best matches in logarithmic expected
/// time, 1977.
std::tuple<at::Tensor, at::Tensor> knn(const at::Tensor& query, const at::Tensor& points, int64_t k);

/// Returns the points within `radius` of every query, at most the nearest `max_neighbors`, as (distances, indices,
/// counts). Like knn, with
///
///     distances  [batch..., M, max_neighbors], padded with 0
///     indices    [batch..., M, max_neighbors] int64, padded with -1
///     counts     [batch..., M] int64: the number of all points within the radius, also beyond max_neighbors
///
/// A point is within the radius if its distance, as it would be returned, is <= radius. Padding is as in PyTorch3D's
/// ball_query. `max_neighbors` keeps the nearest points, not the first found ones (torch_cluster's radius keeps any).
/// Collective over the mesh. Throws ValueError for a negative radius and for max_neighbors < 1. Operator:
/// `moonhalo::radius_search(query, points, radius, max_neighbors)`.
std::tuple<at::Tensor, at::Tensor, at::Tensor> radius_search(const at::Tensor& query, const at::Tensor& points,
                                                             double radius, int64_t max_neighbors);

/// Returns points[indices] - query: [batch..., M, K, D] for indices [batch..., M, K] int64 in [0, N), or -1 for a
/// missing neighbour (zeros). Linear in query and points, and differentiable any number of times. ShardTensors as in
/// knn: only the requested rows are sent, once per requesting rank. A missing neighbour contributes to no number and no
/// gradient. Collective over the mesh. Throws IndexError for other indices before anything is sent: on every rank if
/// the rows of points are sharded, else on the ranks that hold such indices. Operator:
/// `moonhalo::neighbor_offsets(query, points, indices)`.
at::Tensor neighbor_offsets(const at::Tensor& query, const at::Tensor& points, const at::Tensor& indices);

}  // namespace moonhalo
