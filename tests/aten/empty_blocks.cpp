// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/empty_blocks.h"

namespace moonhalo::testing {
namespace {

// Rank `empty` has no rows of `extent`, the others have about as many each.
std::vector<int64_t> all_but(int64_t empty, int64_t ranks, int64_t extent) {
  std::vector<int64_t> sizes = balanced_sizes(extent, ranks - 1);
  sizes.insert(sizes.begin() + empty, 0);
  return sizes;
}

Trial trial_of(const Sample& sample, size_t tensor, int64_t dim, int64_t empty, int64_t ranks) {
  Trial trial{sample, {{ranks}, {}}, sample.derivatives};
  const Placement cut = shard(dim, all_but(empty, ranks, sample.tensors[tensor].size(dim)));
  for (const at::Tensor& full : sample.tensors)
    trial.way.inputs.push_back(
        {.full = full, .placements = {full.sizes() == sample.tensors[tensor].sizes() ? cut : replicate()}});
  return trial;
}

}  // namespace

std::vector<Trial> trials_with_empty_blocks(const Sample& sample, int64_t turn, int64_t turns) {
  std::vector<Trial> trials;
  for (size_t i = 0; i < sample.tensors.size(); ++i) {
    for (int64_t dim = 0; dim < sample.tensors[i].dim(); ++dim, ++turn) {
      for (int64_t t = turn; t < turn + turns; ++t) {
        trials.push_back(trial_of(sample, i, dim, t % 3, 3));
        if (t < turn + 2) trials.push_back(trial_of(sample, i, dim, t % 2, 2));
      }
    }
  }
  return trials;
}

}  // namespace moonhalo::testing
