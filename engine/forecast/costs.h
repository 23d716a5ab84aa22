// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/comm/verb_cost.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// The source of a time: measured on this machine at this size, between sizes or numbers of ranks that were measured,
/// or from the rates of the machine alone.
enum class CostSource : uint8_t { kMeasured, kInterpolated, kRates };
/// Returns "measured" | "interpolated" | "rates". Not collective.
const char* name(CostSource source);
/// The share of the time by which it may be wrong: 0.05, 0.15 or 0.3. Not collective.
double uncertainty(CostSource source);

/// A time in seconds. `latency` is the part that stays if all bytes are left out.
struct Cost {
  double seconds = 0, latency = 0;
  CostSource source = CostSource::kRates;
};

/// The backend of `ranks` ranks if nothing else is said: of GPUs "nccl", between ranks of one host "threads", else
/// "mpi". On one host are as many ranks as it has cores, or all where the machine has no level beyond a host. Not
/// collective.
std::string usual_backend(const Machine& machine, int64_t ranks);

/// Prices what is on tapes: on this machine, for `ranks` ranks that use `backend` ("threads", "mpi", "tcp", "nccl" or
/// "staged"). Ranks fill the parts of the machine in order. On CPUs the ranks of a host share its cores evenly.
/// Nothing of this class is collective.
class Costs {
 public:
  Costs(const Machine& machine, std::string backend, int64_t ranks);

  /// The time of an operator, of all the calls that it stands for, on one rank that has its cores, while the other
  /// ranks of its host work, too. An operator whose work is not known has the time of its bytes.
  Cost of_operator(const Tape& tape, const TapeOperator& call) const;
  /// The time from the arrival of the last rank of the group to the end of the slowest one. `members`: ranks of the
  /// world.
  Cost of_verb(const TapeVerb& call, const std::vector<int64_t>& members) const;
  /// The time of the messages of one rank, from when both ends are there. `group`: the number of ranks of the group.
  Cost of_exchange(const Tape& tape, const TapeExchange& call, int64_t group) const;

  /// Ranks of one host, and cores that each of them has.
  int64_t ranks_of_host() const { return ranks_of_host_; }
  double cores_of_rank() const { return cores_of_rank_; }
  /// Ranks that share a core: above 1 only if there are more ranks than cores.
  double ranks_per_core() const { return ranks_per_core_; }
  /// The time of `work` where ranks take turns on cores, after `before` seconds of work since the rank has waited. A
  /// core changes between its ranks after each time slice, and takes over one that waits when its own have ended. So 3
  /// ranks on 2 cores take as long as 4 for a slice of work, and 1.5 times as long as 2 for two slices. Times of
  /// operators have no turns in them; those of collectives have, so that this is not for them. Returns `work` if there
  /// are no more ranks than cores.
  Cost in_turns(const Cost& work, double before) const;
  /// True if data is moved by the rank that waits for it, so that only the latency of an exchange can be hidden.
  bool moves_in_wait() const { return backend_ == "threads"; }

 private:
  struct Collective {
    Verb verb;
    int64_t bytes, item = 1;
  };
  struct Message {
    int64_t peer, bytes, number;
  };
  int64_t on_a_host(int64_t ranks) const;
  bool take_turns(int64_t ranks) const;
  double end_of_last_rank(double work) const;
  Cost of_one_call(const Tape& tape, const TapeOperator& call) const;
  double rate_of(const TapeOperator& call) const;
  Cost cheapest(const Collective& call, const std::vector<int64_t>& members) const;
  Cost of_cost(const VerbCost& cost, const std::vector<int64_t>& members) const;
  Cost of_round(const VerbRound& round, const std::vector<int64_t>& members) const;
  Cost of_ring(const VerbRound& round, const std::vector<int64_t>& members) const;
  Cost of_messages(int64_t rank, const std::vector<Message>& messages) const;
  bool measured_verb(const Collective& call, const std::vector<int64_t>& members, Cost& cost) const;
  std::vector<VerbCost> algorithms(const Collective& call, int64_t ranks) const;
  double sharers(size_t level, int64_t rank, int64_t offset) const;

  const Machine& machine_;
  std::string backend_;
  int64_t ranks_, ranks_of_host_;
  double cores_of_rank_ = 1, ranks_per_core_ = 1, busy_cores_ = 1;
};

/// The costs of the operators of one tape. Calls of one kind after another are priced once. Not collective.
class OperatorCosts {
 public:
  OperatorCosts(const Costs& costs, const Tape& tape) : costs_(costs), tape_(tape) {}
  const Cost& of(const TapeOperator& call);

 private:
  struct Priced {
    TapeOperator call;
    Cost cost;
  };
  const Costs& costs_;
  const Tape& tape_;
  std::unordered_map<uint64_t, Priced> known_;  // the last one by its name and key
};

}  // namespace moonhalo
