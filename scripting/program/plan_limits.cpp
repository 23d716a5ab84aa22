// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/plan_limits.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/forecast/message_cause.h"
#include "moonhalo/engine/profile/memory_note.h"

namespace moonhalo::scripting {
namespace {

constexpr double kUneven = 1.25;          // the largest rank against the median one
constexpr int64_t kSmallSum = 64 * 1024;  // bytes: latency rules
constexpr int64_t kManySums = 8;          // of a step
constexpr double kSmallTensor = 0.01;     // of the largest one that is cut

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

// A cut in which a rank has the largest block.
struct UnevenCut {
  std::vector<int64_t> sizes;
  std::string mesh_dims, last_mesh_dim;
  bool several = false;  // mesh dims
  int64_t mine = 0, rows = 0;
  double ratio = 1;  // to the mean block

  // The number of ranks without rows.
  int64_t empty() const { return std::count(sizes.begin(), sizes.end(), 0); }
  // True if some ranks have no rows where all could, of a dim that several mesh dims cut: rows that one mesh dim has
  // divided are too few for the next one, as where flatten merges two dims.
  bool is_merged() const { return several && empty() > 0 && rows >= static_cast<int64_t>(sizes.size()); }
  // True if no other sizes of blocks are more even.
  bool is_as_even_as_can_be() const {
    const auto blocks = static_cast<int64_t>(sizes.size());
    return mine <= (rows + blocks - 1) / blocks;
  }
};

// The most uneven cut in which the rank has the largest block, of those whose block is `least` times the mean. Merged
// dims come first: others have empty blocks because they have fewer rows than there are ranks.
std::optional<UnevenCut> uneven_cut(const RanksPlan& plan, int64_t rank, double least) {
  std::optional<UnevenCut> worst;
  for (const SeenMesh& mesh : plan.found.meshes) {
    for (const auto& [cut, tensor] : mesh.cuts) {
      const int64_t mine = cut.sizes[mesh.block_of(cut, rank)], rows = c10::sum_integers(cut.sizes);
      if (rows == 0 || mine < *std::max_element(cut.sizes.begin(), cut.sizes.end())) continue;
      const double ratio =
          static_cast<double>(mine) * static_cast<double>(cut.sizes.size()) / static_cast<double>(rows);
      if (ratio <= least) continue;
      std::string dims;
      for (const int64_t d : cut.mesh_dims) dims += (dims.empty() ? "" : ", ") + mesh.names[d];
      UnevenCut one{cut.sizes, dims, mesh.names[cut.mesh_dims.back()], cut.mesh_dims.size() > 1, mine, rows, ratio};
      const auto order = [](const UnevenCut& a) { return std::pair(a.is_merged(), a.ratio); };
      if (!worst || order(one) > order(*worst)) worst = std::move(one);
    }
  }
  return worst;
}

// "; a dim of 64 rows is cut into blocks of 0 to 52 along rows, and this rank has 52", or "; 48 of 64 ranks have none
// of 256 rows, which rows and columns cut, and this rank has 16"
std::string uneven_cut_text(const std::optional<UnevenCut>& cut) {
  if (!cut) return "";
  if (cut->is_merged())
    return "; " + std::to_string(cut->empty()) + " of " + std::to_string(cut->sizes.size()) +
           (cut->empty() == 1 ? " ranks has none of " : " ranks have none of ") + plural(cut->rows, "row") +
           ", which are cut along " + cut->mesh_dims + ", and this rank has " + std::to_string(cut->mine);
  const auto [least, most] = std::minmax_element(cut->sizes.begin(), cut->sizes.end());
  return "; a dim of " + plural(cut->rows, "row") + " is cut into blocks of " + std::to_string(*least) + " to " +
         std::to_string(*most) + " along " + cut->mesh_dims + ", and this rank has " + std::to_string(cut->mine);
}

// The remedy that makes the blocks of a cut even; `other`: the one where they are.
std::string even_remedy(const std::optional<UnevenCut>& cut, const std::string& other) {
  if (!cut) return other;
  if (cut->is_merged())
    return "give each rank rows before dims are merged (flatten, view): x:redistribute(mesh, placements) with "
           "mh.Replicate() for " +
           cut->last_mesh_dim + "; or fewer ranks along " + cut->last_mesh_dim;
  if (!cut->is_as_even_as_can_be())
    return "mh.set_output_cut(\"rebalance\") before the model runs, if windows or padding make the uneven blocks; "
           "mh.rebalance(x) if they are inputs; or sizes that the ranks divide";
  const auto blocks = static_cast<int64_t>(cut->sizes.size());
  const int64_t above = (cut->rows + blocks - 1) / blocks * blocks, below = above - blocks;
  return "blocks of " + plural(cut->rows, "row") + " along " + cut->mesh_dims + " cannot be more even: use " +
         (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(above) +
         " rows, which the ranks divide, or fewer ranks along " + cut->mesh_dims;
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
  if (!text.empty()) {
    const auto cut = uneven_cut(plan, rank, 1.1);
    plan.memory.push_back({text + uneven_cut_text(cut),
                           even_remedy(cut,
                                       "divide over the ranks, or free, what this rank alone holds: its blocks "
                                       "are not larger than those of others")});
  }
  const RanksPlan::Kind& most = plan.largest();
  rank = most.ranks.front();
  text = uneven_text(plan, rank, most.peak, median_of(plan, peak_of_run), " before the step");
  if (!text.empty() && most.peak > most.in_step.bytes + most.in_step.bytes / 100)
    plan.memory.push_back({text,
                           "make or read on each rank its own block (mh.from_local, mh.data) instead of the whole "
                           "on one rank"});
}

// Says which memory is there before the step: that of the optimizer, or else of data. `of_peak`: "5 MB (62 %)".
RanksPlan::Limit held_before(int64_t before, const std::function<std::string(int64_t)>& of_peak, const Tape& tape) {
  const int64_t other = std::max<int64_t>(before - tape.optimizer, 0);
  const std::string text = of_peak(before) + " are there before the step: ";
  if (tape.optimizer >= other) {
    return {text + of_peak(tape.optimizer) + " are parameters and states of the optimizer",
            tape.gathers_parameters
                ? "more ranks along the mesh dim of fully_shard, or parameters in a shorter dtype"
                : "mh.fully_shard(net, {mesh = mesh}) divides parameters and states over the ranks"};
  }
  return {text + of_peak(other) + " are neither parameters nor states of the optimizer, such as data",
          "keep on each rank only the blocks and samples that it uses (mh.data reads them when they are due)"};
}

// Computing forward again frees nothing of what backward makes. `is_outside`: most of it was made outside of modules.
std::string memory_remedy(Phase phase, bool is_outside) {
  if (phase != Phase::kForward) return "a smaller batch on each rank, or blocks over more ranks";
  return std::string(is_outside ? "mh.checkpoint(fn, ...), with what the script computes there as fn, keeps only the "
                                  "arguments and computes fn twice"
                                : "mh.checkpoint_modules(net, pattern) keeps only what goes into such modules, and "
                                  "computes forward twice") +
         "; or a smaller batch on each rank";
}

// The part of the peak that holds the most: what was there before the step, or what a phase has made.
void find_memory_parts(RanksPlan& plan) {
  const RanksPlan::Kind& largest = plan.largest();
  if (largest.in_step.held.empty()) return;
  int64_t before = 0;
  std::map<Phase, int64_t> made, outside;  // of all modules
  for (const TapePeak::Held& held : largest.in_step.held) {
    (held.before ? before : made[held.phase]) += held.bytes;
    if (!held.before && held.module == 0) outside[held.phase] += held.bytes;
  }
  const std::function of_peak = [&](int64_t bytes) {
    const double share = static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(largest.in_step.bytes, 1));
    return bytes_text(bytes) + " (" + percent(share) + ")";
  };
  const std::string peak = "of " + bytes_text(largest.in_step.bytes) + " at the peak of the step, ";
  const Tape& tape = plan.found.tapes.kinds[&largest - plan.kinds.data()];
  const auto most =
      std::max_element(made.begin(), made.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
  if (most == made.end() || before >= most->second) {
    plan.memory.push_back(held_before(before, of_peak, tape));
    plan.memory.back().what = peak + plan.memory.back().what;
    return;
  }
  const auto [phase, bytes] = *most;
  // The largest comes first.
  const auto module = std::find_if(largest.in_step.held.begin(), largest.in_step.held.end(),
                                   [&](const TapePeak::Held& held) { return !held.before && held.phase == phase; });
  const std::string place =
      module->module == 0 ? "of it outside of modules" : "in " + place_text(tape, module->module, phase);
  plan.memory.push_back(
      {peak + of_peak(bytes) + " were made in " + name(phase) + ", the most " + place + ": " + of_peak(module->bytes),
       memory_remedy(phase, 2 * outside[phase] > bytes)});
}

// " (module a 4, module b 2 and 3 other modules)"
std::string modules_text(const Tape& tape, const std::map<uint32_t, int64_t>& counts) {
  constexpr int64_t kMost = 2;
  std::vector<std::pair<int64_t, uint32_t>> modules;
  for (const auto& [module, count] : counts) {
    if (module != 0) modules.emplace_back(-count, module);
  }
  if (modules.empty()) return "";
  std::sort(modules.begin(), modules.end());
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(kMost, modules.size()); ++i)
    text += (i > 0 ? ", " : " (module ") + tape.modules.at(modules[i].second) + " " + std::to_string(-modules[i].first);
  if (std::ssize(modules) > kMost) text += " and " + plural(std::ssize(modules) - kMost, "other module");
  return text + ")";
}

void find_small_sums(RanksPlan& plan, const Tape& tape) {
  int64_t small = 0, all = 0, of_gradients = 0;
  std::map<uint32_t, int64_t> by_module;
  for (const TapeEvent& event : tape.events) {
    const auto* call = std::get_if<TapeVerb>(&event.what);
    if (call == nullptr || !call->counted || call->verb != Verb::kAllReduce) continue;
    ++all;
    if (call->data >= kSmallSum) continue;
    ++small;
    of_gradients += call->traffic == Traffic::kGradients ? 1 : 0;
    ++by_module[event.module];
  }
  if (small < kManySums) return;
  const bool gradients = 2 * of_gradients > small;
  plan.messages.push_back(
      {std::to_string(small) + " of " + std::to_string(all) + " sums are of less than 64 KiB" +
           modules_text(tape, by_module) + (gradients ? ", most of them of gradients" : "") +
           ": each waits for all ranks",
       gradients ? "mh.replicate(net, {mesh = mesh}) adds gradients up together" : fewer_sums_remedy(tape)});
}

// The bytes that a rank sends for one cause, by module.
struct SentBytes {
  int64_t all = 0;
  std::map<uint32_t, int64_t> by_module;
};

std::map<MessageCause, SentBytes> sent_bytes(const Tape& tape) {
  std::map<MessageCause, SentBytes> causes;
  const auto add = [&](const TapeEvent& event, const auto& call, int64_t bytes) {
    if (!call.counted) return;
    SentBytes& sent = causes[cause_of(call)];
    sent.all += bytes;
    sent.by_module[event.module] += bytes;
  };
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeVerb>(&event.what)) add(event, *call, call->sent);
    const auto* exchange = std::get_if<TapeExchange>(&event.what);
    if (exchange == nullptr) continue;
    for (const TapePart& part : exchange->sends) add(event, *exchange, part.bytes);
  }
  return causes;
}

void find_most_bytes(RanksPlan& plan) {
  const RankTapes& tapes = plan.found.tapes;
  // The bytes of a tape are those of its own rank.
  const Tape* most_tape = &tapes.kinds.front();
  for (const Tape& tape : tapes.kinds) {
    if (total(recorded_counts(tape)).bytes > total(recorded_counts(*most_tape)).bytes) most_tape = &tape;
  }
  const Tape& tape = *most_tape;
  const std::map<MessageCause, SentBytes> causes = sent_bytes(tape);
  const auto most = std::max_element(causes.begin(), causes.end(),
                                     [](const auto& a, const auto& b) { return a.second.all < b.second.all; });
  if (most == causes.end() || most->second.all == 0) return;
  const SentBytes& sent = most->second;
  const int64_t all = total(recorded_counts(tape)).bytes;
  const CauseText text = text_of(most->first, tape, tapes);
  const auto module = std::max_element(sent.by_module.begin(), sent.by_module.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto of_all = [&](int64_t bytes) {
    return bytes_text(bytes) + " (" + percent(static_cast<double>(bytes) / static_cast<double>(all)) + ")";
  };
  std::string place;
  if (module->first != 0)
    place = ", the most in module " + tape.modules.at(module->first) + ": " + of_all(module->second);
  plan.messages.push_back({text.what + ": of " + bytes_text(all) + " that " + plan.rank_text(tape.rank) + " sends, " +
                               of_all(sent.all) + place,
                           text.bytes});
}

// The cut with the largest tensor, of those of tensors that are not small, which leaves most ranks without rows.
void find_empty_blocks(RanksPlan& plan) {
  int64_t most = 0;
  for (const SeenMesh& mesh : plan.found.meshes) {
    for (const auto& [cut, tensor] : mesh.cuts) most = std::max(most, tensor.elements());
  }
  int64_t largest = 0;
  for (const SeenMesh& mesh : plan.found.meshes) {
    for (const auto& [cut, tensor] : mesh.cuts) {
      const int64_t blocks = std::ssize(cut.sizes), empty = std::count(cut.sizes.begin(), cut.sizes.end(), 0);
      const bool is_small = static_cast<double>(tensor.elements()) < kSmallTensor * static_cast<double>(most);
      if (2 * empty <= blocks || is_small || tensor.elements() <= largest) continue;
      largest = tensor.elements();
      const int64_t rows = tensor.shape[tensor.dim];
      std::string dims;
      for (const int64_t d : cut.mesh_dims) dims += (dims.empty() ? "" : ", ") + mesh.names[d];
      plan.empty = {
          {std::to_string(empty) + " of " + std::to_string(blocks) + " blocks along " + dims + " are empty: dim " +
               std::to_string(tensor.dim) + " of " + shape_string(tensor.shape) + " has " + plural(rows, "row"),
           rows < blocks
               ? "at most " + plural(rows, "rank") + " along " + dims + ", or cut a dim with more rows over them"
               : "mh.rebalance(x), or mh.set_output_cut(\"rebalance\") before the model runs"}};
    }
  }
}

}  // namespace

void advise_by_cuts(RanksPlan& plan) {
  if (!plan.time) return;
  for (Hindrance& one : plan.time->hindrances) {
    if (one.rank < 0) continue;
    const auto cut = uneven_cut(plan, one.rank, 1.02);
    const bool is_merged = cut && cut->is_merged();
    if (one.more_started && !is_merged) continue;
    if (is_merged) one.what += uneven_cut_text(cut);
    one.fix = even_remedy(cut,
                          "its blocks are not larger than those of others: give it smaller ones (mh.balance finds them "
                          "by the speed of ranks), or divide what it alone computes");
  }
}

void find_limits(RanksPlan& plan) {
  find_uneven_memory(plan);
  find_memory_parts(plan);
  if (plan.ranks == 1) return;
  find_empty_blocks(plan);
  const Tape& most =
      *std::max_element(plan.found.tapes.kinds.begin(), plan.found.tapes.kinds.end(), [](const Tape& a, const Tape& b) {
        return total(counts_of(a, a.rank)).calls < total(counts_of(b, b.rank)).calls;
      });
  find_small_sums(plan, most);
  find_most_bytes(plan);
}

}  // namespace moonhalo::scripting
