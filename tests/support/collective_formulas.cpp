// SPDX-License-Identifier: Apache-2.0
#include "tests/support/collective_formulas.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace moonhalo::testing {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

// A rank's share of what takes several messages, and a short part.
constexpr int64_t kLong = 1024, kShort = 8;

bool even(int ranks) { return 1 << rounds_of(ranks) == ranks; }

Tensor floats(int64_t n) { return at::ones({n}); }
int64_t long_bytes(int ranks) { return ranks * kLong * 4; }
int64_t short_bytes(int) { return kShort * 4; }
int64_t all_short_bytes(int ranks) { return ranks * kShort * 4; }
// More than 64 KiB on all ranks together.
int64_t sum_elements(int ranks) { return ranks * kLong * (ranks < 8 ? 16 : 1); }
double others(int ranks) { return (ranks - 1.0) / ranks; }

void all_reduce(Communicator& comm, int64_t n, at::ScalarType dtype = at::kFloat) {
  Tensor data = at::ones({n}, dtype);
  comm.all_reduce(data);
}
void turn(Communicator& comm, int64_t n, int64_t largest) {
  Tensor out = floats(n * comm.size());
  comm.all_to_all(floats(n * comm.size()), Counts(comm.size(), n), out, Counts(comm.size(), n), largest);
}
bool direct(int ranks) { return ranks == 3 || ranks == 5 || ranks == 6; }
int sum_messages(int ranks) { return direct(ranks) ? ranks - 1 : rounds_of(ranks); }
// A rank without a place among a power of two gives away all that it has.
double sum_bytes(int ranks) { return even(ranks) || direct(ranks) ? others(ranks) : 1; }

const std::vector<CountedVerb> kVerbs = {
    {"all_reduce, 64 KiB on all ranks together", [](Communicator& c) { all_reduce(c, kShort); }, short_bytes, rounds_of,
     [](int ranks) { return ranks - 1.0; }},
    {"all_reduce above", [](Communicator& c) { all_reduce(c, sum_elements(c.size())); },
     [](int ranks) { return 4 * sum_elements(ranks); },
     [](int ranks) { return sum_messages(ranks) + rounds_of(ranks); },
     [](int ranks) { return sum_bytes(ranks) + others(ranks); }},
    {"reduce_scatter",
     [](Communicator& c) {
       Tensor out = floats(kLong);
       c.reduce_scatter(floats(c.size() * kLong), Counts(c.size(), kLong), out);
     },
     long_bytes, sum_messages, sum_bytes},
    {"all_gather",
     [](Communicator& c) {
       Tensor out = floats(c.size() * kLong);
       c.all_gather(floats(kLong), Counts(c.size(), kLong), out);
     },
     long_bytes, rounds_of, others},
    {"all_to_all", [](Communicator& c) { turn(c, kLong, kLong); }, long_bytes, [](int ranks) { return ranks - 1; },
     others},
    {"all_to_all, parts of 1 KiB at most", [](Communicator& c) { turn(c, kShort, kShort); }, all_short_bytes,
     [](int ranks) { return std::min(ranks - 1, rounds_of(ranks)); },
     [](int ranks) {
       double parts = 0;
       for (int part = 1; part < ranks; ++part) parts += __builtin_popcount(part);
       return ranks < 4 ? others(ranks) : parts / ranks;
     }},
    {"broadcast",
     [](Communicator& c) {
       Tensor data = floats(kLong);
       c.broadcast(data, 0);
     },
     [](int) { return kLong * 4; }, rounds_of, [](int ranks) { return 1.0 * rounds_of(ranks); }},
    {"barrier", [](Communicator& c) { c.barrier(); }, [](int) { return int64_t{1}; }, rounds_of,
     [](int) { return 0.0; }},
};

}  // namespace

int rounds_of(int ranks) {
  int rounds = 0;
  while (1 << rounds < ranks) ++rounds;
  return rounds;
}

const std::vector<CountedVerb>& counted_verbs() { return kVerbs; }

}  // namespace moonhalo::testing
