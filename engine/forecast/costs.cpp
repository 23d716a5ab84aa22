// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/costs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "moonhalo/engine/comm/device/device_costs.h"
#include "moonhalo/engine/comm/message_costs.h"
#include "moonhalo/engine/comm/mpi/mpi_costs.h"
#include "moonhalo/engine/comm/threads/thread_costs.h"

namespace moonhalo {
namespace {

// LibTorch gives a thread at least as many elements.
constexpr double kGrain = 32768;

const char* dtype_of(uint8_t item) {
  if (item == 8) return "float64";
  return item == 2 ? "bfloat16" : "float32";
}

CommStats::Kind kind_of(Verb verb) { return static_cast<CommStats::Kind>(verb); }

Cost sum(const Cost& a, const Cost& b) { return {a.seconds + b.seconds, a.latency + b.latency, a.source}; }
Cost longer(const Cost& a, const Cost& b) { return a.seconds >= b.seconds ? a : b; }

}  // namespace

const char* name(CostSource source) {
  static const char* const kNames[] = {"measured", "interpolated", "rates"};
  return kNames[static_cast<int>(source)];
}

double uncertainty(CostSource source) {
  static const double kShares[] = {0.05, 0.15, 0.3};
  return kShares[static_cast<int>(source)];
}

std::string usual_backend(const Machine& machine, int64_t ranks) {
  if (machine.device.kind == "cuda") return "nccl";
  const bool is_one_host = machine.levels.size() == 1;
  return is_one_host || ranks <= machine.host.cores ? "threads" : "mpi";
}

Costs::Costs(const Machine& machine, std::string backend, int64_t ranks)
    : machine_(machine), backend_(std::move(backend)), ranks_(ranks) {
  ranks_of_host_ = on_a_host(ranks);
  if (machine.device.kind != "cpu") return;
  const auto cores = static_cast<double>(machine.host.cores), of_host = static_cast<double>(ranks_of_host_);
  cores_of_rank_ = std::max(1.0, std::floor(cores / of_host));
  ranks_per_core_ = std::max(1.0, of_host / cores);
  busy_cores_ = std::min(cores, of_host * cores_of_rank_);
}

Cost Costs::of_operator(const Tape& tape, const TapeOperator& call) const {
  Cost cost = of_one_call(tape, call);
  cost.seconds *= static_cast<double>(call.times);
  cost.latency *= static_cast<double>(call.times);
  return cost;
}

const Cost& OperatorCosts::of(const TapeOperator& call) {
  const auto [found, is_new] = known_.try_emplace(uint64_t{call.name} << 32 | call.key);
  Priced& priced = found->second;
  if (is_new || priced.call != call) priced = {call, costs_.of_operator(tape_, call)};
  return priced.cost;
}

Cost Costs::of_one_call(const Tape& tape, const TapeOperator& call) const {
  const auto known = machine_.operators.find(tape.names.at(call.name) + " " + tape.names.at(call.key));
  if (known != machine_.operators.end() && !known->second.empty()) {
    SizeTable by_cores;
    for (const auto& [cores, seconds] : known->second) by_cores.emplace_back(cores, seconds);
    const double seconds = at_size(by_cores, std::min(busy_cores_, by_cores.back().first));
    const double dispatch = machine_.device.dispatch;
    return {seconds + dispatch, dispatch, CostSource::kMeasured};
  }
  const auto bytes = static_cast<double>(call.bytes), set = static_cast<double>(call.working_set);
  const double elements = std::max(set, bytes) / std::max<double>(call.item, 1);
  const double cores = std::clamp(std::floor(elements / kGrain), 1.0, cores_of_rank_);
  // Work in the smallest cache does not share the memory.
  const bool cached = !machine_.device.bandwidth.empty() && set <= machine_.device.bandwidth.front().first;
  const double busy = std::min(static_cast<double>(machine_.host.cores), cores * static_cast<double>(ranks_of_host_));
  const double stream = cores / (cached ? 1 : machine_.slowdown("stream", busy));
  const double bandwidth = machine_.bandwidth(std::max(set, 1.0));
  double work = bandwidth > 0 ? bytes / (bandwidth * stream) : 0;
  if (const double rate = rate_of(call); rate > 0) work = std::max(work, 2.0 * static_cast<double>(call.macs) / rate);
  return {work + machine_.device.launch, machine_.device.launch, CostSource::kRates};
}

int64_t Costs::on_a_host(int64_t ranks) const {
  return backend_ == "threads" || machine_.levels.size() == 1 ? ranks : machine_.ranks_of_part(0, ranks);
}

bool Costs::take_turns(int64_t ranks) const {
  return machine_.device.kind == "cpu" && on_a_host(ranks) > machine_.host.cores;
}

Cost Costs::in_turns(const Cost& work, double before) const {
  if (ranks_per_core_ <= 1 || work.seconds <= 0) return work;
  const double times = (end_of_last_rank(before + work.seconds) - end_of_last_rank(before)) / work.seconds;
  return {work.seconds * times, work.latency * times, work.source};
}

// Returns when the last of the ranks, which take turns on the cores, has worked for `work` seconds.
// Some cores have a rank more than the others. When these have ended, their cores take over what is left, the most of
// the rank that began last.
double Costs::end_of_last_rank(double work) const {
  const double least = std::floor(ranks_per_core_), others_end = least * work;
  if (least == ranks_per_core_) return others_end;
  const double slice = machine_.host.slice, round = (least + 1) * slice;
  double done = others_end / (least + 1);
  if (slice > 0) {
    const double rounds = std::floor(others_end / round);
    done = rounds * slice + std::max(0.0, others_end - rounds * round - least * slice);
  }
  return std::max(ranks_per_core_ * work, others_end + work - done);
}

// Operations a second of a rank, for operators that do arithmetic; else, or if the machine does not say, 0.
double Costs::rate_of(const TapeOperator& call) const {
  if (call.work == WorkKind::kOther || call.macs == 0) return 0;
  const std::string kind = name(call.work);
  double rate = machine_.flops(kind, dtype_of(call.item));
  if (rate == 0) rate = machine_.flops("product", dtype_of(call.item));
  return rate * cores_of_rank_ / machine_.slowdown(kind, busy_cores_);
}

std::vector<VerbCost> Costs::algorithms(const Collective& call, int64_t ranks) const {
  const int size = static_cast<int>(ranks);
  const auto& [verb, bytes, item] = call;
  const CommStats::Kind kind = kind_of(verb);
  if (backend_ == "threads") return {thread_cost(kind, bytes, size)};
  if (backend_ == "nccl") return nccl_costs(kind, bytes, size);
  if (backend_ == "mpi") return {mpi_cost(kind, bytes, size, item)};
  const VerbCost messages = message_cost(kind, bytes, size, slowest_place(kind, bytes, size, item), item);
  if (backend_ == "staged") return {staged_cost(messages, bytes)};
  return {messages};
}

// From the table of this number of ranks; between two, by the logarithm of ranks; above the largest, or where other
// ranks of the host take the cores, too, in proportion to what the algorithm costs. Times of ranks that took turns on
// cores have these turns in them: they are those of ranks that take turns, and of no others.
bool Costs::measured_verb(const Collective& call, const std::vector<int64_t>& members, Cost& cost) const {
  const auto tables = machine_.verbs.find(backend_);
  if (tables == machine_.verbs.end()) return false;
  const auto ranks = static_cast<int64_t>(members.size());
  std::vector<std::pair<int64_t, const SizeTable*>> known;
  for (const auto& [size, verbs] : tables->second) {
    const auto found = verbs.find(name(call.verb));
    if (found != verbs.end() && !found->second.empty()) known.emplace_back(size, &found->second);
  }
  if (known.empty()) return false;
  const bool turns = take_turns(ranks_), has_all_cores = !turns || on_a_host(ranks) == ranks_of_host_;
  const auto is_alike = [&](const auto& entry) { return take_turns(entry.first) == turns; };
  if (std::any_of(known.begin(), known.end(), is_alike)) std::erase_if(known, std::not_fn(is_alike));
  const auto read = [&](const SizeTable& table) {
    return Cost{at_size(table, static_cast<double>(call.bytes)), table.front().second, CostSource::kInterpolated};
  };
  const auto above = std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first >= ranks; });
  if (has_all_cores && above != known.end() && above->first == ranks) {
    cost = read(*above->second);
    cost.source = CostSource::kMeasured;
    return true;
  }
  if (machine_.level_of(members.front(), members.back()) != 0) return false;
  if (!has_all_cores || above == known.end() || above == known.begin()) {
    const auto& [size, table] = above == known.end() ? known.back() : *above;
    std::vector<int64_t> fewer(size);
    std::iota(fewer.begin(), fewer.end(), 0);
    const Cost mine = cheapest(call, members), theirs = Costs(machine_, backend_, size).cheapest(call, fewer);
    if (theirs.seconds <= 0) return false;
    cost = read(*table);
    cost.seconds *= mine.seconds / theirs.seconds;
    if (theirs.latency > 0) cost.latency *= mine.latency / theirs.latency;
    cost.latency = std::min(cost.latency, cost.seconds);
    return true;
  }
  const auto below = above - 1;
  const Cost low = read(*below->second), high = read(*above->second);
  const double share = std::log2(static_cast<double>(ranks) / static_cast<double>(below->first)) /
                       std::log2(static_cast<double>(above->first) / static_cast<double>(below->first));
  cost = {low.seconds + share * (high.seconds - low.seconds), low.latency + share * (high.latency - low.latency),
          CostSource::kInterpolated};
  return true;
}

Cost Costs::of_verb(const TapeVerb& call, const std::vector<int64_t>& members) const {
  if (members.size() < 2) return {};
  Cost best;
  if (measured_verb({call.verb, call.data, call.item}, members, best)) return best;
  return cheapest({call.verb, call.data, call.item}, members);
}

Cost Costs::cheapest(const Collective& call, const std::vector<int64_t>& members) const {
  Cost best;
  best.seconds = std::numeric_limits<double>::max();
  for (const VerbCost& way : algorithms(call, static_cast<int64_t>(members.size()))) {
    const Cost cost = of_cost(way, members);
    if (cost.seconds < best.seconds) best = cost;
  }
  return best;
}

Cost Costs::of_cost(const VerbCost& cost, const std::vector<int64_t>& members) const {
  Cost rounds, beside;
  for (const VerbRound& round : cost.rounds) rounds = sum(rounds, of_round(round, members));
  for (const VerbRound& round : cost.beside) beside = sum(beside, of_round(round, members));
  Cost all = longer(rounds, beside);
  const Machine::Level& host = machine_.levels.front();
  const double latency = static_cast<double>(cost.barriers) * host.latency;
  // Both what is read and what is written passes: a copy moves its bytes twice.
  const double sharing = host.shared ? static_cast<double>(ranks_of_host_) : ranks_per_core_;
  all = sum(all, {latency + static_cast<double>(cost.copied) / 2 * sharing / host.bandwidth, latency});
  if (cost.staged > 0) {
    const double link = machine_.device.host_link > 0 ? machine_.device.host_link : host.bandwidth;
    const double wait = 2 * machine_.device.launch;
    all = sum(all, {wait + static_cast<double>(cost.staged) / link, wait});
  }
  return all;
}

// The number of ranks of a part of the level before that send by this level, if all do as `rank` and send as far.
double Costs::sharers(size_t level, int64_t rank, int64_t offset) const {
  if (level == 0 && !machine_.levels[0].shared) return ranks_per_core_;  // which move the bytes
  if (level == 0) return static_cast<double>(machine_.ranks_of_part(0, ranks_));
  if (!machine_.levels[level].shared) return 1;
  const int64_t part = machine_.levels[level - 1].ranks, first = rank / part * part;
  int64_t count = 0;
  for (int64_t one = first; one < std::min(first + part, ranks_); ++one) {
    const int64_t peer = (one + offset % ranks_ + ranks_) % ranks_;
    if (machine_.level_of(one, peer) >= level) ++count;
  }
  return static_cast<double>(std::max<int64_t>(count, 1));
}

// Messages of one rank that leave together: one latency, the widest one; and by each level the time of its bytes.
Cost Costs::of_messages(int64_t rank, const std::vector<Message>& messages) const {
  std::vector<double> bytes(machine_.levels.size(), 0), shared(machine_.levels.size(), 1);
  double latency = 0, gaps = 0, slowest = 0;
  int64_t number = 0;
  for (const Message& message : messages) {
    const size_t level = machine_.level_of(rank, message.peer);
    const Machine::Level& here = machine_.levels[level];
    latency = std::max(latency, here.latency);
    gaps += here.gap * static_cast<double>(message.number);
    slowest = std::max(slowest, here.gap);
    number += message.number;
    bytes[level] += static_cast<double>(message.bytes);
    shared[level] = std::max(shared[level], sharers(level, rank, message.peer - rank));
  }
  if (number == 0) return {};
  Cost cost{0, latency + gaps - slowest, CostSource::kRates};
  for (size_t level = 0; level < bytes.size(); ++level)
    cost.seconds = std::max(cost.seconds, bytes[level] * shared[level] / machine_.levels[level].bandwidth);
  cost.seconds += cost.latency;
  return cost;
}

Cost Costs::of_round(const VerbRound& round, const std::vector<int64_t>& members) const {
  const auto size = static_cast<int64_t>(members.size());
  if (round.partners == VerbRound::kRing) return of_ring(round, members);
  if (round.partners == VerbRound::kAll) {
    std::vector<Message> messages;
    const int64_t other_count = std::max<int64_t>(size - 1, 1);
    for (int64_t i = 1; i < size; ++i) messages.push_back({members[i], round.bytes / other_count, 1});
    return of_messages(members[0], messages);
  }
  // The slowest pair; those of an even grid are found among the first ranks of each level's parts.
  Cost slowest;
  std::vector<bool> seen(machine_.levels.size(), false);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t partner = round.partners == VerbRound::kPairs ? i ^ round.reach : (i + round.reach) % size;
    if (partner >= size) continue;
    const size_t level = machine_.level_of(members[i], members[partner]);
    if (seen[level]) continue;
    seen[level] = true;
    slowest = longer(slowest, of_messages(members[i], {{members[partner], round.bytes, round.messages}}));
  }
  return slowest;
}

// A ring passes each part of a level once. Where every rank has a link of its own, there is a ring through each.
Cost Costs::of_ring(const VerbRound& round, const std::vector<int64_t>& members) const {
  // Parts of a level are within those of the next, so that the first and the last rank decide.
  const auto [first, last] = std::minmax_element(members.begin(), members.end());
  const size_t widest = machine_.level_of(*first, *last);
  Cost cost{0, machine_.levels[widest].latency, CostSource::kRates};
  for (size_t level = 0; level <= widest; ++level) {
    const Machine::Level& here = machine_.levels[level];
    double links = 1;
    if (level > 0 && !here.shared) {
      const int64_t part = machine_.levels[level - 1].ranks, begin = members.front() / part * part;
      links = static_cast<double>(std::count_if(members.begin(), members.end(),
                                                [&](int64_t rank) { return rank >= begin && rank < begin + part; }));
    }
    cost.seconds = std::max(cost.seconds, static_cast<double>(round.bytes) / (here.bandwidth * links));
  }
  cost.seconds += cost.latency;
  return cost;
}

Cost Costs::of_exchange(const Tape& tape, const TapeExchange& call, int64_t group) const {
  int64_t sent = 0, received = 0;
  for (const TapePart& part : call.sends) sent += part.bytes;
  for (const TapePart& part : call.receives) received += part.bytes;
  if (call.sends.empty() && call.receives.empty()) return {};
  std::vector<int64_t> host(std::min(group, ranks_of_host_));
  for (size_t i = 0; i < host.size(); ++i)
    host[i] = tape.rank / ranks_of_host_ * ranks_of_host_ + static_cast<int64_t>(i);
  const auto on_host = [&](const TapePart& part) { return machine_.level_of(tape.rank, tape.rank + part.offset) == 0; };
  const bool inside = std::all_of(call.sends.begin(), call.sends.end(), on_host) &&
                      std::all_of(call.receives.begin(), call.receives.end(), on_host);
  Cost cost;
  if (inside && host.size() > 1 && measured_verb({Verb::kExchange, std::max(sent, received)}, host, cost)) return cost;
  if (backend_ == "threads") return of_cost(thread_cost(CommStats::kExchange, received, static_cast<int>(group)), host);
  for (const auto* list : {&call.sends, &call.receives}) {
    std::vector<Message> messages;
    for (const TapePart& part : *list) messages.push_back({tape.rank + part.offset, part.bytes, 1});
    cost = longer(cost, of_messages(tape.rank, messages));
  }
  if (backend_ == "mpi") {
    // All ranks of the group compare their calls meanwhile.
    std::vector<int64_t> members(group);
    for (int64_t i = 0; i < group; ++i) members[i] = std::min(tape.rank / group * group + i, ranks_ - 1);
    cost =
        longer(cost, of_cost({.beside = mpi_cost(CommStats::kExchange, 0, static_cast<int>(group)).beside}, members));
  }
  if (backend_ == "staged") cost = sum(cost, of_cost(staged_cost({}, std::max(sent, received)), host));
  return cost;
}

}  // namespace moonhalo
