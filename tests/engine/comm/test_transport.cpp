// SPDX-License-Identifier: Apache-2.0
// Worlds over messages of another's making, here mailboxes between rank threads whose sends end when they are received.
#include "moonhalo/engine/comm/tcp/transport.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/tcp/transport_hub.h"
#include "tests/support/desync.h"
#include "tests/support/mailboxes.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"
#include "tests/support/verbs.h"

namespace moonhalo::test_transport {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::on_ranks;
using testing::verb_cases;
using testing::with_transports;
using testing::with_worlds;

class TransportCommunicator : public ::testing::TestWithParam<size_t> {};

TEST_P(TransportCommunicator, PassesTheCase) {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 9}) {
    with_worlds(ranks, 1, [](auto& worlds) { verb_cases()[GetParam()].check(*worlds[0]); });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TransportCommunicator, ::testing::Range(size_t{0}, verb_cases().size()),
                         [](const auto& info) { return verb_cases()[info.param].name; });

TEST(TransportWorlds, GiveTheSameBitsAsThreads) {
  for (const int64_t elements : {100, 30000}) {
    const auto part = [&](int rank) { return (at::arange(elements, at::kFloat) * 0.37 + rank * 1.1).sin(); };
    at::Tensor with_threads, with_transport;
    on_ranks(3, [&](Communicator& comm) {
      at::Tensor data = part(comm.rank());
      comm.all_reduce(data, ReduceOp::kAvg);
      if (comm.rank() == 1) with_threads = data;
    });
    with_worlds(3, 1, [&](auto& worlds) {
      at::Tensor data = part(worlds[0]->rank());
      worlds[0]->all_reduce(data, ReduceOp::kAvg);
      if (worlds[0]->rank() == 1) with_transport = data;
    });
    EXPECT_TRUE(at::equal(with_transport, with_threads));
  }
}

TEST(TransportWorlds, DoNotTakeEachOthersMessages) {
  with_worlds(3, 2, [](auto& worlds) {
    const int right = (worlds[0]->rank() + 1) % 3, left = (worlds[0]->rank() + 2) % 3;
    const CommunicatorPtr reversed = worlds[0]->split(0, -worlds[0]->rank());
    at::Tensor first = at::zeros({2000}), second = at::zeros({2000}), third = at::zeros({2000});
    WorkPtr a = worlds[0]->exchange_async({{right, at::full({2000}, 1.0)}}, {{left, first}});
    WorkPtr b = worlds[1]->exchange_async({{right, at::full({2000}, 2.0)}}, {{left, second}});
    WorkPtr c = reversed->exchange_async({{2 - right, at::full({2000}, 3.0)}}, {{2 - left, third}});

    c->wait();
    b->wait();
    a->wait();

    EXPECT_EQ(first.sum().template item<double>(), 2000);
    EXPECT_EQ(second.sum().template item<double>(), 4000);
    EXPECT_EQ(third.sum().template item<double>(), 6000);
  });
}

// Overlapping groups made in different orders on different ranks still have tags of their own.
TEST(TransportWorlds, OverlappingGroupsKeepTheirMessagesApart) {
  with_worlds(4, 1, [](auto& worlds) {
    Communicator& world = *worlds[0];
    const CommunicatorPtr pair = world.split(world.rank() / 2, world.rank());
    if (world.rank() < 2) pair->split(0, 0);  // these ranks have used one more tag
    const CommunicatorPtr odd = world.split(world.rank() % 2, world.rank());
    at::Tensor in_pair = at::full({1}, world.rank()), in_odd = at::full({1}, world.rank());
    pair->all_reduce(in_pair);
    odd->all_reduce(in_odd);
    EXPECT_EQ(in_pair.item<int>(), world.rank() < 2 ? 1 : 5);
    EXPECT_EQ(in_odd.item<int>(), world.rank() % 2 == 0 ? 2 : 4);
  });
}

class TransportDesync : public ::testing::TestWithParam<testing::DesyncCase> {};

// Also on ranks that never send each other a message in that call.
TEST_P(TransportDesync, IsAnErrorOnEveryRankThatNamesBothCalls) {
  for (const int ranks : {2, 3, 4, 7}) {
    with_worlds(ranks, 1, [](auto& worlds) {
      const std::string message = message_of([&] { GetParam().program(*worlds[0]); });
      for (const std::string& text : GetParam().texts) EXPECT_THAT(message, HasSubstr(text));
      EXPECT_THAT(message, HasSubstr("\n  have  ")) << message;
      EXPECT_THAT(message, HasSubstr("\n  fix   ")) << message;
    });
  }
}

// Those in which every rank waits for others.
std::vector<testing::DesyncCase> calls_of_all_ranks() {
  const std::set<std::string> names = {
      "all_reduce_of_three_and_four", "small_and_large",        "sum_and_product", "dtypes",
      "reduce_scatter_ops",           "barrier_and_all_reduce", "sum_and_mean",    "one_step_more"};
  std::vector<testing::DesyncCase> cases;
  for (const auto& one : testing::desync_cases()) {
    if (names.count(one.name) > 0) cases.push_back(one);
  }
  TORCH_INTERNAL_ASSERT(cases.size() == names.size());
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, TransportDesync, ::testing::ValuesIn(calls_of_all_ranks()),
                         [](const auto& info) { return info.param.name; });

// All verbs, in each of which most ranks wait for others than the odd one.
TEST(TransportErrors, Y18_ARankThatPartsIsFoundInEveryVerb) {
  using Counts = std::vector<int64_t>;
  const std::pair<const char*, std::function<void(Communicator&)>> verbs[] = {
      {"all_reduce",
       [](Communicator& c) {
         at::Tensor data = at::ones({3});
         c.all_reduce(data);
       }},
      {"all_reduce",
       [](Communicator& c) {
         at::Tensor data = at::ones({30000});
         c.all_reduce(data);
       }},
      {"all_gather",
       [](Communicator& c) {
         at::Tensor out = at::ones({2 * c.size()});
         c.all_gather(at::ones({2}), Counts(c.size(), 2), out);
       }},
      {"reduce_scatter",
       [](Communicator& c) {
         at::Tensor out = at::ones({2});
         c.reduce_scatter(at::ones({2 * c.size()}), Counts(c.size(), 2), out);
       }},
      {"all_to_all",
       [](Communicator& c) {
         at::Tensor out = at::ones({2 * c.size()});
         c.all_to_all(at::ones({2 * c.size()}), Counts(c.size(), 2), out, Counts(c.size(), 2), 2);
       }},
      {"broadcast",
       [](Communicator& c) {
         at::Tensor data = at::ones({2});
         c.broadcast(data, 0);
         c.barrier();
       }},
      {"barrier", [](Communicator& c) { c.barrier(); }},
  };
  for (const auto& [name, verb] : verbs) {
    for (const int ranks : {4, 7, 8}) {
      with_worlds(ranks, 2, [&, &name = name, &verb = verb](auto& worlds) {
        worlds[1]->barrier();
        if (worlds[0]->rank() == 2) {
          backend_of(*worlds[0]).suspend();
        } else {
          EXPECT_THAT(message_of([&] { verb(*worlds[0]); }), HasSubstr("ended without joining")) << name;
          // Ranks that wait for one that has failed end, too.
          backend_of(*worlds[0]).suspend();
        }
        worlds[1]->barrier();
      });
    }
  }
}

TEST(TransportErrors, Y18_SilenceEndsInATimeoutOnEveryRank) {
  for (const int ranks : {4, 7, 8}) {
    with_worlds(ranks, 2, [](auto& worlds) {
      worlds[1]->barrier();
      worlds[0]->set_timeout(200ms);
      if (worlds[0]->rank() == 1) return worlds[1]->barrier();
      at::Tensor data = at::ones({30000});
      EXPECT_THAT(
          message_of([&] { worlds[0]->all_reduce(data); }),
          AllOf(HasSubstr("all_reduce timed out after 0.2 s on rank "), HasSubstr("no message to or from rank ")));
      worlds[1]->barrier();
    });
  }
}

TEST(TransportErrors, CallsThatDifferAreFoundWithBothNamed) {
  with_worlds(3, 1, [](auto& worlds) {
    Communicator& world = *worlds[0];
    at::Tensor data = at::ones({3});
    const std::string text = message_of(
        [&] { world.rank() == 2 ? world.all_reduce(data, ReduceOp::kMax) : world.all_reduce(data, ReduceOp::kSum); });
    EXPECT_THAT(text, AllOf(HasSubstr("of this group make different calls"), HasSubstr("op sum"), HasSubstr("op max")));
    EXPECT_THAT(message_of([&] { world.barrier(); }), HasSubstr("have diverged before"));
  });
}

TEST(TransportErrors, SilenceEndsInATimeoutThatNamesTheRank) {
  with_worlds(2, 1, [](auto& worlds) {
    worlds[0]->set_timeout(200ms);
    if (worlds[0]->rank() == 1) return;
    at::Tensor never = at::zeros({5});
    EXPECT_THAT(
        message_of([&] {
          worlds[0]->exchange({}, {{1, never}});
        }),
        AllOf(HasSubstr("exchange timed out after 0.2 s on rank 0"), HasSubstr("no message to or from rank 1")));
  });
}

// Over several hops of the tree that notes take; the other world goes on.
TEST(TransportErrors, RanksThatWaitForOneThatPartedHearOfItAtOnce) {
  with_worlds(5, 2, [](auto& worlds) {
    at::Tensor data = at::ones({1});
    worlds[0]->all_reduce(data);
    if (worlds[0]->rank() == 3) {
      backend_of(*worlds[0]).suspend();
    } else {
      EXPECT_THAT(message_of([&] { worlds[0]->all_reduce(data); }),
                  HasSubstr("rank 3 ended without joining all_reduce"));
    }
    worlds[1]->all_reduce(data);
    EXPECT_EQ(data.template item<int>(), 25);
  });
}

TEST(TransportErrors, WorkThatNoRankWillEndAnyMoreIsReady) {
  with_worlds(2, 2, [](auto& worlds) {
    if (worlds[0]->rank() == 1) backend_of(*worlds[0]).suspend();
    at::Tensor never = at::zeros({5});
    const WorkPtr work = worlds[0]->rank() == 0 ? worlds[0]->exchange_async({}, {{1, never}}) : nullptr;
    worlds[1]->barrier();  // the note has been sent
    if (work == nullptr) return;
    EXPECT_TRUE(is_ready(*work));
    EXPECT_THAT(message_of([&] { work->wait(); }), HasSubstr("rank 1 ended without joining exchange"));
  });
}

// All fail in the same way, come back, and their world is as it was; notes that arrive late are void.
TEST(TransportErrors, RanksThatPartedComeBack) {
  with_worlds(4, 2, [](auto& worlds) {
    auto& parts = backend_of(*worlds[0]);
    for (int round = 0; round < 20; ++round) {
      at::Tensor data = at::ones({1});
      worlds[0]->all_reduce(data);
      parts.suspend();
      worlds[1]->barrier();
      parts.resume();
      EXPECT_EQ(data.template item<int>(), 4);
    }
  });
}

TEST(TransportErrors, AnAbortedWorldThrows) {
  with_worlds(2, 1, [](auto& worlds) {
    if (worlds[0]->rank() == 0) {
      worlds[0]->abort("enough");
      EXPECT_THAT(message_of([&] { worlds[0]->barrier(); }), HasSubstr("aborted: enough"));
    } else {
      EXPECT_THAT(message_of([&] { worlds[0]->barrier(); }), HasSubstr("rank 0 ended without joining barrier"));
    }
  });
}

/// Another transport whose sends end late: when they are asked about for the second time while nothing is to be
/// received. Looks whether their memory stays as it was until then.
class LateSends final : public Transport {
 public:
  explicit LateSends(TransportPtr inner) : inner_(std::move(inner)) {}

  int late = 0;  ///< long sends that began while another one had not ended

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool any_thread() const override { return false; }
  void* send(const void* data, size_t bytes, int peer, int tag) override {
    const auto* const begin = static_cast<const char*>(data);
    const bool other =
        std::any_of(sends_.begin(), sends_.end(), [](const auto& one) { return one.second.before.size() >= kLong; });
    late += other && bytes >= kLong ? 1 : 0;
    void* const request = inner_->send(data, bytes, peer, tag);
    sends_[request] = {begin, std::string(begin, bytes)};
    return request;
  }
  void* receive(void* data, size_t bytes, int peer, int tag) override {
    void* const request = inner_->receive(data, bytes, peer, tag);
    if (tag != kNoteTag) receives_.insert(request);
    return request;
  }
  bool test(void*& request) override {
    const auto sent = sends_.find(request);
    if (sent != sends_.end() && (!receives_.empty() || sent->second.asked++ == 0)) return false;
    void* const tested = request;
    if (!inner_->test(request)) return false;
    receives_.erase(tested);
    if (sent == sends_.end()) return true;
    const auto& [data, before, asked] = sent->second;
    EXPECT_TRUE(before.compare(0, before.size(), data, before.size()) == 0) << "written while it was sent";
    sends_.erase(sent);
    return true;
  }
  void cancel(void*& request) override {
    receives_.erase(request);
    inner_->cancel(request);
  }

 private:
  static constexpr size_t kLong = 2048;  // no head of a message is
  struct Sent {
    const char* data;
    std::string before;
    int asked = 0;
  };
  TransportPtr inner_;
  std::map<const void*, Sent> sends_;
  std::set<const void*> receives_;
};

// Ranks go on with what has come, and yet nothing is written to what they send.
TEST(TransportWorlds, Y18_RoundsDoNotWaitForSends) {
  for (const int ranks : {2, 3, 4, 5, 7, 8, 9}) {
    with_transports(ranks, [ranks](const TransportPtr& post, Communicator& threads) {
      const auto late = std::make_shared<LateSends>(post);
      const CommunicatorPtr world = make_transport_communicators(late, 1)[0];
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        at::Tensor sum = at::full({40000}, threads.rank() + 1, dtype), part = at::empty({5000}, dtype);
        const at::Tensor whole = at::full({5000 * ranks}, threads.rank() + 1, dtype);
        world->all_reduce(sum);
        world->reduce_scatter(whole, std::vector<int64_t>(ranks, 5000), part);
        EXPECT_TRUE(at::equal(sum, at::full_like(sum, ranks * (ranks + 1) / 2)));
        EXPECT_TRUE(at::equal(part, at::full_like(part, ranks * (ranks + 1) / 2)));
      }
      EXPECT_EQ(late->late > 0, ranks > 2);
      threads.barrier();
    });
  }
}

}  // namespace
}  // namespace moonhalo::test_transport
