// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/plan_limits.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "moonhalo/engine/profile/memory_note.h"

namespace moonhalo::scripting {
namespace {

constexpr double kUneven = 1.25;          // the largest rank against the median one
constexpr int64_t kSmallSum = 64 * 1024;  // bytes: latency rules
constexpr int64_t kManySums = 8;          // of a step

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
  return plan.rank_text(rank) + " holds " + bytes_text(most) + when + ", " + times + " times the median of " +
         bytes_text(median);
}

void find_uneven_memory(RanksPlan& plan) {
  const auto largest = std::max_element(plan.kinds.begin(), plan.kinds.end(),
                                        [](const auto& a, const auto& b) { return a.in_step.bytes < b.in_step.bytes; });
  int64_t rank = largest->ranks.back();
  std::string text = uneven_text(plan, rank, largest->in_step.bytes, median_of(plan, peak_in_step), " in the step");
  if (!text.empty())
    plan.memory.push_back(
        {text + uneven_cut(plan, rank),
         "mh.set_output_cut(\"rebalance\") before the model runs, if windows or padding make the uneven blocks; "
         "mh.rebalance(x) if they are inputs; or sizes that the ranks divide"});
  const RanksPlan::Kind& most = plan.largest();
  rank = most.ranks.front();
  text = uneven_text(plan, rank, most.peak, median_of(plan, peak_of_run), " before the step");
  if (!text.empty() && most.peak > most.in_step.bytes + most.in_step.bytes / 100)
    plan.memory.push_back({text,
                           "make or read on each rank its own block (mh.from_local, mh.data) instead of the whole "
                           "on one rank"});
}

// Says which memory is there before the step: that of the optimizer, or else of data.
RanksPlan::Limit held_before(int64_t before, double share, const Tape& tape) {
  const int64_t other = std::max<int64_t>(before - tape.optimizer, 0);
  const std::string text = bytes_text(before) + " are there before the step (" + percent(share) + " of the peak): ";
  if (tape.optimizer >= other) {
    return {text + bytes_text(tape.optimizer) + " are parameters and states of the optimizer",
            tape.gathers_parameters
                ? "more ranks along the mesh dim of fully_shard, or parameters in a shorter dtype"
                : "mh.fully_shard(net, {mesh = mesh}) divides parameters and states over the ranks"};
  }
  return {text + bytes_text(other) + " are neither parameters nor states of the optimizer, such as data",
          "keep on each rank only the blocks and samples that it uses (mh.data reads them when they are due)"};
}

// The part of the peak that holds the most: what was there before the step, or what a phase has made.
void find_memory_parts(RanksPlan& plan) {
  const RanksPlan::Kind& largest = plan.largest();
  if (largest.in_step.held.empty()) return;
  int64_t before = 0;
  std::map<Phase, int64_t> made;
  for (const TapePeak::Held& held : largest.in_step.held) (held.before ? before : made[held.phase]) += held.bytes;
  const auto share = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(largest.in_step.bytes, 1));
  };
  const Tape& tape = plan.found.tapes.kinds[&largest - plan.kinds.data()];
  const auto most =
      std::max_element(made.begin(), made.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
  if (most == made.end() || before >= most->second) {
    plan.memory.push_back(held_before(before, share(before), tape));
    return;
  }
  const auto [phase, bytes] = *most;
  // The largest comes first.
  const auto module = std::find_if(largest.in_step.held.begin(), largest.in_step.held.end(),
                                   [&](const TapePeak::Held& held) { return !held.before && held.phase == phase; });
  plan.memory.push_back({bytes_text(bytes) + " at the peak were made in " + name(phase) + " (" + percent(share(bytes)) +
                             "), the most in " + place_text(tape, module->module, phase) + ": " +
                             bytes_text(module->bytes),
                         // Computing forward again frees nothing of what backward makes.
                         phase == Phase::kForward
                             ? "mh.recompute(module, ...) keeps only what goes into it; or a smaller batch on each rank"
                             : "a smaller batch on each rank, or blocks over more ranks"});
}

// " (module a 4, module b 2 and 3 other modules)"
std::string modules_text(const Tape& tape, const std::map<uint32_t, int64_t>& counts) {
  constexpr size_t kMost = 2;
  std::vector<std::pair<int64_t, uint32_t>> modules;
  for (const auto& [module, count] : counts) {
    if (module != 0) modules.emplace_back(-count, module);
  }
  if (modules.empty()) return "";
  std::sort(modules.begin(), modules.end());
  std::string text;
  for (size_t i = 0; i < std::min(kMost, modules.size()); ++i)
    text += (i > 0 ? ", " : " (module ") + tape.modules.at(modules[i].second) + " " + std::to_string(-modules[i].first);
  if (modules.size() > kMost) text += " and " + std::to_string(modules.size() - kMost) + " other modules";
  return text + ")";
}

void find_small_sums(RanksPlan& plan, const Tape& tape) {
  int64_t small = 0, all = 0;
  std::map<Phase, int64_t> by_phase;
  std::map<uint32_t, int64_t> by_module;
  for (const TapeEvent& event : tape.events) {
    const auto* call = std::get_if<TapeVerb>(&event.what);
    if (call == nullptr || !call->counted || call->verb != Verb::kAllReduce) continue;
    ++all;
    if (call->data >= kSmallSum) continue;
    ++small;
    ++by_phase[event.phase];
    ++by_module[event.module];
  }
  if (small < kManySums) return;
  const bool gradients = 2 * by_phase[Phase::kBackward] > small;
  plan.messages.push_back({std::to_string(small) + " of " + std::to_string(all) + " sums are of less than 64 KiB" +
                               modules_text(tape, by_module) + (gradients ? ", most of them in backward" : "") +
                               ": each waits for all ranks",
                           gradients ? "mh.replicate(net, {mesh = mesh}) adds gradients up together"
                                     : "add up what several calls give, or compute statistics less often"});
}

// The bytes that a rank sends by one verb, by module, and of exchanges those to ranks that are not next to it.
struct SentBytes {
  int64_t all = 0, far = 0;
  std::map<uint32_t, int64_t> by_module;
};

// True if no coordinate of the two ranks differs by more than one step, around the ends of a mesh dim as well.
bool are_neighbours(const RanksPlan& plan, int64_t rank, int64_t other) {
  if (plan.found.meshes.empty()) return false;
  const SeenMesh& mesh = plan.found.meshes[0];
  const std::vector<int64_t> a = mesh.coordinates(rank), b = mesh.coordinates(other);
  for (size_t d = 0; d < a.size(); ++d) {
    const int64_t steps = std::abs(a[d] - b[d]);
    if (std::min(steps, mesh.shape[d] - steps) > 1) return false;
  }
  return true;
}

SentBytes sent_bytes(const RanksPlan& plan, const Tape& tape, Verb verb) {
  SentBytes sent;
  const auto add = [&](const TapeEvent& event, int64_t bytes) {
    sent.all += bytes;
    sent.by_module[event.module] += bytes;
  };
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeVerb>(&event.what); call != nullptr && call->verb == verb && call->counted)
      add(event, call->sent);
    const auto* exchange = std::get_if<TapeExchange>(&event.what);
    if (exchange == nullptr || verb != Verb::kExchange || !exchange->counted) continue;
    for (const TapePart& part : exchange->sends) {
      add(event, part.bytes);
      if (!are_neighbours(plan, tape.rank, tape.rank + part.offset)) sent.far += part.bytes;
    }
  }
  return sent;
}

// The words and the remedy for the verb that sends the most bytes.
std::pair<std::string, std::string> bytes_remedy(Verb verb, const SentBytes& sent, const Tape& tape) {
  const std::string one_cut = "keep one cut from layer to layer, so that less is moved between them";
  switch (verb) {
    case Verb::kExchange:
      if (2 * sent.far > sent.all) return {"blocks that move to other ranks", one_cut};
      return {"edges of blocks", "cut the longer dims, so that blocks have short edges"};
    case Verb::kAllReduce:
      return {"sums", "more samples on each rank between two steps"};
    case Verb::kAllGather:
      if (!tape.gathers_parameters) return {"gathers of blocks", one_cut};
      return {"gathers of parameters", "mh.fully_shard with reshard_after_forward = false gathers once a step"};
    case Verb::kReduceScatter:
      return {"sums that leave blocks", "more samples on each rank between two steps"};
    case Verb::kAllToAll:
      return {"redistributions", one_cut};
    case Verb::kBroadcast:
      return {"broadcasts", "broadcast once, before the steps"};
    case Verb::kBarrier:
      return {"barriers", "leave barriers out of the step"};
  }
  TORCH_INTERNAL_ASSERT(false);
}

void find_most_bytes(RanksPlan& plan) {
  size_t most_rank = 0;
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    if (total(plan.counts[rank]).bytes > total(plan.counts[most_rank]).bytes) most_rank = rank;
  }
  const VerbCounts& counts = plan.counts[most_rank];
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](const VerbCount& a, const VerbCount& b) { return a.bytes < b.bytes; });
  const int64_t all = total(counts).bytes;
  if (all == 0) return;
  const auto verb = static_cast<Verb>(most - counts.begin());
  const Tape& tape = plan.found.tapes.kinds[plan.found.tapes.kind_of[most_rank]];
  const SentBytes sent = sent_bytes(plan, tape, verb);
  const auto [what, fix] = bytes_remedy(verb, sent, tape);
  const auto module = std::max_element(sent.by_module.begin(), sent.by_module.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string place;
  if (module != sent.by_module.end() && module->first != 0) {
    const double part = static_cast<double>(module->second) / static_cast<double>(std::max<int64_t>(sent.all, 1));
    place = ", the most in module " + tape.modules.at(module->first) + " (" + percent(part) + " of it)";
  }
  const double share = static_cast<double>(most->bytes) / static_cast<double>(all);
  plan.messages.push_back({what + ": " + bytes_text(most->bytes) + " of " + bytes_text(all) + " that " +
                               plan.rank_text(static_cast<int64_t>(most_rank)) + " sends (" + percent(share) + ")" +
                               place,
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
