// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/message_memory.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "moonhalo/engine/comm/collective_rounds.h"
#include "moonhalo/engine/comm/message_counts.h"
#include "moonhalo/engine/comm/reduction_kernels.h"

namespace moonhalo {
namespace {

// As gather_rounds: parts from the last on to the first are two runs, which a round puts together.
int64_t memory_of_gather(const PartList& parts, int part, int64_t item) {
  const int size = parts.size();
  if (std::has_single_bit(static_cast<unsigned>(size))) return 0;
  const auto put_together = [&](PartRange range) {
    if (range.end <= size) return int64_t{0};
    const int64_t first = parts.count({range.begin % size, size}), on = parts.count({0, range.end - size});
    return range.begin < size && on > 0 ? first + on : int64_t{0};
  };
  int64_t most = 0;
  for (int step = 1; step < size; step *= 2) {
    const int count = std::min(step, size - step), from = (part + step) % size;
    most = std::max(most, put_together(gathered(part, count, size)) + put_together(gathered(from, count, size)));
  }
  return most * item;
}

// As ReduceRounds. `places`: where the parts are; empty: one behind the other, where sums may be written.
int64_t memory_of_reduce(const SumPlan& plan, int rank, const PartList& parts, const std::vector<int64_t>& places,
                         at::ScalarType dtype) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype)),
             partial = static_cast<int64_t>(c10::elementSize(partial_dtype(dtype)));
  const bool in_place = places.empty() && partial_dtype(dtype) == dtype;
  const auto is_one_run = [&](PartRange range) {
    for (int i = range.begin; !places.empty() && i < range.end; ++i) {
      if (places[i] - places[range.begin] != parts.begins[i] - parts.begins[range.begin]) return false;
    }
    return true;
  };
  int64_t theirs = 0, mine = -1, packed = 0, others = 0;
  bool own = true;  // nothing has been received yet
  for (const SumStep& step : plan.steps(rank)) {
    if (step.final) {
      if (step.send_to >= 0) others = std::max(others, parts.count(step.sent) * item);
      continue;
    }
    if (step.send_to >= 0 && own && !is_one_run(step.sent)) packed += parts.count(step.sent) * item;
    if (mine < 0) mine = in_place ? 0 : parts.count(step.kept) * partial;
    if (step.receive_from < 0) continue;
    theirs = std::max(theirs, parts.count(step.kept) * (step.raw ? item : partial));
    own = false;
  }
  return theirs + std::max<int64_t>(mine, 0) + std::max(packed, others);
}

}  // namespace

int64_t memory_of_all_reduce(const SumPlan& plan, int rank, const at::Tensor& data) {
  const int size = plan.ranks();
  const auto bytes = static_cast<int64_t>(data.nbytes()), item = static_cast<int64_t>(data.itemsize());
  if (data.nbytes() * size <= kGatherBytes)
    return bytes * size + memory_of_gather(PartList(std::vector<int64_t>(size, bytes)), rank, 1);
  const std::vector<int64_t> shares = even_shares(data.numel(), size);
  if (plan.direct()) return std::max(shares[rank] * item * size, memory_of_gather(PartList(shares), rank, item));
  const PartList parts(plan.order(), shares);
  return std::max(memory_of_reduce(plan, rank, parts, {}, data.scalar_type()),
                  memory_of_gather(parts, plan.part_of()[rank], item));
}

int64_t memory_of_reduce_scatter(const SumPlan& plan, int rank, at::IntArrayRef counts, at::ScalarType dtype) {
  if (plan.direct()) return counts[rank] * static_cast<int64_t>(c10::elementSize(dtype)) * plan.ranks();
  const PartList by_rank(counts);
  std::vector<int64_t> places, sizes;
  for (const int owner : plan.order()) {
    places.push_back(by_rank.begins[owner]);
    sizes.push_back(counts[owner]);
  }
  return memory_of_reduce(plan, rank, PartList(plan.order(), sizes), places, dtype);
}

int64_t memory_of_all_gather(int rank, at::IntArrayRef counts, size_t item) {
  return memory_of_gather(PartList(counts), rank, static_cast<int64_t>(item));
}

int64_t memory_of_all_to_all(int ranks, int64_t largest, size_t item) {
  return goes_in_rounds(ranks, largest, item) ? 3 * ranks * largest * static_cast<int64_t>(item) : 0;
}

}  // namespace moonhalo
