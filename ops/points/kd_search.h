// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace moonhalo {

/// The nearest points of a set of queries, among points that are shown block by block. Plain tensors on the CPU, not
/// collective.
///
///     NeighborLists lists(batch, queries, k, std::nullopt, at::kFloat);
///     lists.search(query, block, first);      as often as there are blocks, in any order
///     lists.finish();
///
/// The result does not depend on the blocks or their order: squared distances are summed feature by feature in the
/// tensors' own precision, and candidates are compared by (squared distance, index), NaN last.
class NeighborLists {
 public:
  /// `most` candidates are kept for each of [batch, queries]; with a radius only those at most so far away.
  NeighborLists(int64_t batch, int64_t queries, int64_t most, std::optional<double> radius, at::ScalarType dtype);
  /// query [batch, queries, D], points [batch, n, D], contiguous; the points have the indices first, first + 1, ...
  void search(const at::Tensor& query, const at::Tensor& points, int64_t first);
  /// Before finish(): what another rank's lists for the same queries are made of, to be sent and received in place, and
  /// joined.
  std::vector<at::Tensor> parts() const { return {distances_, indices_, held_, within_}; }
  void join(const NeighborLists& other);
  /// Sorts, and fills what is empty with distance 0 and index -1. Then the results may be read.
  void finish();

  const at::Tensor& distances() const { return distances_; }  ///< [batch, queries, most]
  const at::Tensor& indices() const { return indices_; }      ///< [batch, queries, most] int64
  const at::Tensor& counts() const { return within_; }        ///< [batch, queries] int64, all within the radius

 private:
  std::optional<double> radius_;
  at::Tensor distances_, indices_;  // heaps of squared distances until finish()
  at::Tensor held_, within_;        // candidates in each heap; all points within the radius
};

}  // namespace moonhalo
