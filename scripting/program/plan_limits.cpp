// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/plan_limits.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "moonhalo/engine/profile/memory_note.h"

namespace moonhalo::scripting {
namespace {

constexpr double kUneven = 1.25;          // the largest rank against the median one
constexpr int64_t kSmallSum = 64 * 1024;  // bytes: latency rules
constexpr int64_t kManySums = 8;          // of a step

std::string size_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

int64_t median_of(const RanksPlan& plan, int64_t (*peak)(const RanksPlan::Kind&)) {
  std::vector<int64_t> peaks;
  for (const int32_t kind : plan.found.tapes.kind_of) peaks.push_back(peak(plan.kinds[kind]));
  std::nth_element(peaks.begin(), peaks.begin() + static_cast<std::ptrdiff_t>(peaks.size() / 2), peaks.end());
  return std::max<int64_t>(peaks[peaks.size() / 2], 1);
}

// "; a dim of 64 rows is cut into blocks of 0 to 52 along rows, and this rank has 52": the most uneven cut in which
// the rank has the largest block.
std::string uneven_cut(const RanksPlan& plan, int64_t rank) {
  double worst = 1.1;
  std::string text;
  for (const SeenMesh& mesh : plan.found.meshes) {
    for (const SeenCut& cut : mesh.cuts) {
      const auto [least, most] = std::minmax_element(cut.sizes.begin(), cut.sizes.end());
      const int64_t mine = cut.sizes[mesh.block_of(cut, rank)], rows = c10::sum_integers(cut.sizes);
      if (rows == 0 || mine < *most) continue;
      const double ratio =
          static_cast<double>(mine) * static_cast<double>(cut.sizes.size()) / static_cast<double>(rows);
      if (ratio <= worst) continue;
      worst = ratio;
      std::string dims;
      for (const int64_t d : cut.mesh_dims) dims += (dims.empty() ? "" : ", ") + mesh.names[d];
      text = "; a dim of " + std::to_string(rows) + " rows is cut into blocks of " + std::to_string(*least) + " to " +
             std::to_string(*most) + " along " + dims + ", and this rank has " + std::to_string(mine);
    }
  }
  return text;
}

int64_t peak_of_run(const RanksPlan::Kind& kind) { return kind.peak; }
int64_t peak_in_step(const RanksPlan::Kind& kind) { return kind.in_step.bytes; }

// "rank 63 holds 208.5 MB, 20.0 times the median of 10.5 MB", or "" where no rank holds much more.
std::string uneven_text(const RanksPlan& plan, int64_t rank, int64_t most, int64_t median, const char* when) {
  const double ratio = static_cast<double>(most) / static_cast<double>(median);
  if (ratio < kUneven) return "";
  char times[32];
  std::snprintf(times, sizeof times, "%.1f", ratio);
  return plan.rank_text(rank) + " holds " + size_text(most) + when + ", " + times + " times the median of " +
         size_text(median);
}

void find_uneven_memory(RanksPlan& plan) {
  const auto largest = std::max_element(plan.kinds.begin(), plan.kinds.end(),
                                        [](const auto& a, const auto& b) { return a.in_step.bytes < b.in_step.bytes; });
  int64_t rank = largest->ranks.back();
  std::string text = uneven_text(plan, rank, largest->in_step.bytes, median_of(plan, peak_in_step), " in the step");
  if (!text.empty())
    plan.memory.push_back(
        {text + uneven_cut(plan, rank),
         "mh.set_output_cut(\"rebalance\") before the model runs, x:rebalance() behind what makes the "
         "uneven blocks, or sizes that the blocks divide"});
  const RanksPlan::Kind& most = plan.largest();
  rank = most.ranks.front();
  text = uneven_text(plan, rank, most.peak, median_of(plan, peak_of_run), " before the step");
  if (!text.empty() && most.peak > most.in_step.bytes + most.in_step.bytes / 100)
    plan.memory.push_back({text,
                           "make or read on each rank its own block (mh.from_local, mh.data) instead of the whole "
                           "on one rank"});
}

void find_memory_parts(RanksPlan& plan) {
  const RanksPlan::Kind& largest = plan.largest();
  if (largest.in_step.held.empty()) return;
  int64_t before = 0;
  const TapePeak::Held* most = nullptr;
  for (const TapePeak::Held& held : largest.in_step.held) {
    if (held.before) {
      before = held.bytes;
    } else if (most == nullptr) {
      most = &held;
    }
  }
  const auto share = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(largest.in_step.bytes, 1));
  };
  if (share(before) >= 0.5 || most == nullptr) {
    plan.memory.push_back({size_text(before) + " are there before the step (" + percent(share(before)) +
                               " of the peak): parameters, states of the optimizer, data",
                           "mh.fully_shard(net) divides parameters and states over the ranks"});
    return;
  }
  const Tape& tape = plan.found.tapes.kinds[&largest - plan.kinds.data()];
  plan.memory.push_back({size_text(most->bytes) + " at the peak were made in " +
                             place_text(tape, most->module, most->phase) + " (" + percent(share(most->bytes)) + ")",
                         "mh.recompute(module, ...) keeps only what goes into it; or a smaller batch on each rank"});
}

void find_small_sums(RanksPlan& plan, const Tape& tape) {
  int64_t small = 0, all = 0;
  std::map<Phase, int64_t> by_phase;
  for (const TapeEvent& event : tape.events) {
    const auto* call = std::get_if<TapeVerb>(&event.what);
    if (call == nullptr || !call->counted || call->verb != Verb::kAllReduce) continue;
    ++all;
    if (call->data >= kSmallSum) continue;
    ++small;
    ++by_phase[event.phase];
  }
  if (small < kManySums) return;
  const bool gradients = 2 * by_phase[Phase::kBackward] > small;
  plan.messages.push_back(
      {std::to_string(small) + " of " + std::to_string(all) + " sums are of less than 64 KiB" +
           (gradients ? ", most of them in backward: each waits for all ranks" : ": each waits for all ranks"),
       gradients ? "mh.replicate(net, {mesh = mesh}) adds gradients up together"
                 : "add up what several calls give, or compute statistics less often"});
}

void find_most_bytes(RanksPlan& plan) {
  static const std::map<Verb, std::pair<const char*, const char*>> kRemedies = {
      {Verb::kExchange, {"edges of blocks and moved blocks", "cut the longer dims, so that blocks have short edges"}},
      {Verb::kAllReduce, {"sums", "more samples on each rank between two steps, or mh.fully_shard(net)"}},
      {Verb::kAllGather,
       {"gathers of blocks", "mh.fully_shard with reshard_after_forward = false gathers once a step"}},
      {Verb::kReduceScatter, {"sums that leave blocks", "more samples on each rank between two steps"}},
      {Verb::kAllToAll, {"redistributions", "one cut for layers that follow each other"}},
      {Verb::kBroadcast, {"broadcasts", "broadcast once, before the steps"}},
      {Verb::kBarrier, {"barriers", "leave barriers out of the step"}}};
  size_t most_rank = 0;
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    if (total(plan.counts[rank]).bytes > total(plan.counts[most_rank]).bytes) most_rank = rank;
  }
  const VerbCounts& counts = plan.counts[most_rank];
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](const VerbCount& a, const VerbCount& b) { return a.bytes < b.bytes; });
  const int64_t all = total(counts).bytes;
  if (all == 0) return;
  const auto& [what, fix] = kRemedies.at(static_cast<Verb>(most - counts.begin()));
  const double share = static_cast<double>(most->bytes) / static_cast<double>(all);
  plan.messages.push_back({std::string(what) + ": " + size_text(most->bytes) + " of " + size_text(all) + " that " +
                               plan.rank_text(static_cast<int64_t>(most_rank)) + " sends (" + percent(share) + ")",
                           fix});
}

}  // namespace

void find_limits(RanksPlan& plan) {
  find_uneven_memory(plan);
  find_memory_parts(plan);
  if (plan.ranks == 1) return;
  const Tape& most =
      *std::max_element(plan.found.tapes.kinds.begin(), plan.found.tapes.kinds.end(), [](const Tape& a, const Tape& b) {
        return total(counts_of(a, a.rank)).calls < total(counts_of(b, b.rank)).calls;
      });
  find_small_sums(plan, most);
  find_most_bytes(plan);
}

}  // namespace moonhalo::scripting
