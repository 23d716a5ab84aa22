// SPDX-License-Identifier: Apache-2.0
// The memory of collectives that are made of messages: of ranks that do not exist as of real ones.
#include "moonhalo/engine/comm/message_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/profile/memory.h"
#include "tests/support/mailboxes.h"

namespace moonhalo::test_message_memory {
namespace {

using testing::with_worlds;

/// The memory that a call takes at its peak, with its tensors.
int64_t memory_of(const std::function<void(Communicator&)>& call, Communicator& world) {
  const MemoryCount counted;
  call(world);
  return memory_use().peak;
}

// The tensors of an exchange are there until it ends, whatever the program makes meanwhile.
void exchange_beside_other_memory(Communicator& world) {
  const int next = (world.rank() + 1) % world.size(), last = (world.rank() + world.size() - 1) % world.size();
  std::vector<Message> receives{{last, at::empty({30011})}};
  const WorkPtr work = world.exchange_async({{next, at::ones({30011})}}, std::move(receives));
  at::ones({20000});
  work->wait();
  at::ones({70000});
}

// Sums of floats, in halves and directly, and of half types, which are added in float; parts of other sizes, and runs
// of parts from the last to the first.
TEST(FakeProcesses, X14_TakeTheMemoryOfRealOnes) {
  const auto uneven = [](int ranks) {
    std::vector<int64_t> counts;
    for (int r = 0; r < ranks; ++r) counts.push_back(20000 + 1000 * (r % 3));
    return counts;
  };
  const std::map<std::string, std::function<void(Communicator&)>> calls{
      {"short sum",
       [](Communicator& world) {
         at::Tensor data = at::ones({100});
         world.all_reduce(data);
       }},
      {"sum",
       [](Communicator& world) {
         at::Tensor data = at::ones({30011});
         world.all_reduce(data);
       }},
      {"sum of half",
       [](Communicator& world) {
         at::Tensor data = at::ones({60011}, at::kBFloat16);
         world.all_reduce(data);
       }},
      {"reduce_scatter",
       [&](Communicator& world) {
         const std::vector<int64_t> counts = uneven(world.size());
         at::Tensor out = at::ones({counts[world.rank()]});
         world.reduce_scatter(at::ones({c10::sum_integers(counts)}), counts, out);
       }},
      {"all_gather",
       [&](Communicator& world) {
         const std::vector<int64_t> counts = uneven(world.size());
         at::Tensor out = at::empty({c10::sum_integers(counts)});
         world.all_gather(at::ones({counts[world.rank()]}), counts, out);
       }},
      {"exchange", exchange_beside_other_memory},
      {"all_to_all", [](Communicator& world) {
         if (world.size() < 4) return;  // parts go directly
         const std::vector<int64_t> counts(world.size(), 50);
         at::Tensor out = at::empty({50 * world.size()});
         world.all_to_all(at::ones({50 * world.size()}), counts, out, counts, 50);
       }}};
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 12}) {
    with_worlds(ranks, 1, [&](auto& worlds) {
      const int rank = worlds[0]->rank();
      for (const auto& [name, call] : calls) {
        const int64_t real = memory_of(call, *worlds[0]);
        const FakeResults fakes;
        const int64_t fake = memory_of(call, *make_fake_communicator(rank, ranks));
        EXPECT_EQ(fake, real) << name << ", rank " << rank << " of " << ranks;
      }
    });
  }
}

}  // namespace
}  // namespace moonhalo::test_message_memory
