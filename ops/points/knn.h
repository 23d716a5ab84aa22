// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace moonhalo {

/// The `k` nearest points of every query, by Euclidean distance.
///
///     query      [batch..., M, D], points [batch..., N, D]: float32 or float64, alike; the batch dims are equal
///     distances  [batch..., M, k], in the order of (squared distance, index), so that the result is unique
///     indices    [batch..., M, k] int64, into N
///
/// Differentiable through the distances, any number of times, in query and points; a distance of zero has the gradient
/// zero, as at::cdist's. NaN distances count as the largest. ValueError if 1 <= k <= N does not hold.
///
/// Any ShardTensors; the answer is the whole tensors' and is cut along M as the query is (and over the mesh dims that
/// only the points are cut by). Batch dims that either tensor is cut by stay local. Along the ranks that share the
/// points travels what is less: blocks of points, one after another, the next one under way while one is searched, or
/// the queries, whose candidates are sent back. In backward only rows that are a query's neighbour travel, and their
/// gradients, home to their owners. Collective.
///
/// CPU tensors only, here and below: ShardTensors of another mesh are a NotImplementedError.
/// Plain tensors: a k-d tree of leaves of 16 points (many features or few queries: tiles of all points), never M x N
/// numbers.
/// The operator `moonhalo::knn(query, points, k)`.
/// Source: J. H. Friedman, J. L. Bentley, R. A. Finkel, An algorithm for finding best matches in logarithmic expected
/// time, 1977.
std::tuple<at::Tensor, at::Tensor> knn(const at::Tensor& query, const at::Tensor& points, int64_t k);

/// The points at most `radius` away from every query: the nearest `max_neighbors` of them. As knn, and
///
///     distances  [batch..., M, max_neighbors], 0 where there are fewer points
///     indices    [batch..., M, max_neighbors] int64, -1 where there are fewer
///     counts     [batch..., M] int64: all points within the radius, also those beyond max_neighbors
///
/// The radius belongs to the ball: a point is in it when its distance, as it would be given, is <= radius. Padding as
/// in PyTorch3D's ball_query; the limit keeps the nearest, not the first found (torch_cluster's radius keeps any).
/// ValueError for a negative radius or no max_neighbors. The operator `moonhalo::radius_search(query, points, radius,
/// max_neighbors)`.
std::tuple<at::Tensor, at::Tensor, at::Tensor> radius_search(const at::Tensor& query, const at::Tensor& points,
                                                             double radius, int64_t max_neighbors);

/// points[indices] - query: [batch..., M, K, D] for indices [batch..., M, K] int64 in [0, N), or -1 for none (zeros).
/// Linear in query and points, differentiable any number of times. ShardTensors as in knn: only rows that are asked for
/// travel, once to every rank that asks. IndexError for other indices: on every rank if the points' rows are cut, else
/// on the ranks that hold them, before anything travels. A missing neighbour (-1) has no part in any number, whatever
/// the query or its gradient. Collective.
/// The operator `moonhalo::neighbor_offsets(query, points, indices)`.
at::Tensor neighbor_offsets(const at::Tensor& query, const at::Tensor& points, const at::Tensor& indices);

}  // namespace moonhalo
