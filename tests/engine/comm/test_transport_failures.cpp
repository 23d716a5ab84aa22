// SPDX-License-Identifier: Apache-2.0
// Worlds over a transport whose messages fail.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/tcp/transport.h"
#include "moonhalo/engine/comm/tcp/transport_hub.h"
#include "tests/support/mailboxes.h"
#include "tests/support/oracle.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_transport_failures {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::with_transports;

/// Passes on what another transport does, keeps a list of the requests under way, and fails where a test says so.
class Watched final : public Transport {
 public:
  struct Asked {
    bool sends;
    int peer, tag;
  };
  using Fails = std::function<bool(const Asked&)>;
  Watched(TransportPtr inner, Fails fails_to_begin, Fails fails_in_test, bool failed_are_gone = false)
      : inner_(std::move(inner)),
        fails_to_begin_(std::move(fails_to_begin)),
        fails_in_test_(std::move(fails_in_test)),
        failed_are_gone_(failed_are_gone) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool any_thread() const override { return false; }
  void* send(const void* data, size_t bytes, int peer, int tag) override {
    return noted({true, peer, tag}, [&] { return inner_->send(data, bytes, peer, tag); });
  }
  void* receive(void* data, size_t bytes, int peer, int tag) override {
    return noted({false, peer, tag}, [&] { return inner_->receive(data, bytes, peer, tag); });
  }
  bool test(void*& request) override {
    const Asked asked = known(request);
    if (fails_in_test_ && fails_in_test_(asked)) {
      if (failed_are_gone_) cancel(request);
      throw CommError("a planted failure");
    }
    void* const tested = request;
    const bool done = inner_->test(request);
    if (done) under_way_.erase(tested);
    return done;
  }
  void cancel(void*& request) override {
    known(request);
    under_way_.erase(request);
    inner_->cancel(request);
  }
  /// Receives under way with tags from `first` on.
  int receives(int first) const {
    int count = 0;
    for (const auto& [request, asked] : under_way_) count += !asked.sends && asked.tag >= first ? 1 : 0;
    return count;
  }

 private:
  template <typename Begin>
  void* noted(const Asked& asked, const Begin& begin) {
    if (fails_to_begin_ && fails_to_begin_(asked)) throw CommError("a planted failure");
    void* const request = begin();
    under_way_[request] = asked;
    return request;
  }
  Asked known(const void* request) const {
    const auto found = under_way_.find(request);
    EXPECT_TRUE(found != under_way_.end()) << "a request that is gone";
    return found->second;
  }

  TransportPtr inner_;
  Fails fails_to_begin_, fails_in_test_;
  bool failed_are_gone_;
  std::map<const void*, Asked> under_way_;
};

TEST(TransportFailures, AFailureWhileCallsAreComparedLeavesNoReceive) {
  with_transports(2, [](const TransportPtr& post, Communicator& threads) {
    const bool fails = threads.rank() == 0;
    const auto watched = std::make_shared<Watched>(post, nullptr, [&](const Watched::Asked& asked) {
      return fails && !asked.sends && asked.tag >= TransportHub::kDescriptionTags;
    });
    {
      const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
      world->set_timeout(testing::kHang);
      at::Tensor data = at::ones({3});
      const std::string text = message_of([&] { world->all_reduce(data, fails ? ReduceOp::kMax : ReduceOp::kSum); });
      if (fails) EXPECT_THAT(text, HasSubstr("a planted failure"));
      EXPECT_EQ(watched->receives(TransportHub::kDescriptionTags), 0);
      threads.barrier();
    }
    EXPECT_EQ(watched->receives(0), 0);
    threads.barrier();
  });
}

TEST(TransportFailures, AWorldThatCannotBeMadeLeavesNoReceive) {
  with_transports(3, [](const TransportPtr& post, Communicator& threads) {
    const auto watched = std::make_shared<Watched>(
        post, [](const Watched::Asked& asked) { return asked.peer == 2; }, nullptr);
    if (threads.rank() == 0) {
      EXPECT_THAT(message_of([&] { make_transport_communicators(watched, 1); }), HasSubstr("a planted failure"));
      EXPECT_EQ(watched->receives(0), 0);
    }
    threads.barrier();
  });
}

// A note to one neighbour fails behind another that has ended.
TEST(TransportFailures, NoRequestIsUsedAfterItsEnd) {
  with_transports(3, [](const TransportPtr& post, Communicator& threads) {
    int notes = 0;
    const auto watched = std::make_shared<Watched>(post, nullptr, [&](const Watched::Asked& asked) {
      return threads.rank() == 0 && asked.sends && asked.tag == Transport::kNoteTag && ++notes == 2;
    });
    const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
    threads.barrier();
    if (threads.rank() == 0) {
      backend_of(*world).suspend();
      EXPECT_EQ(notes, 2);
      EXPECT_EQ(message_of([&] { backend_of(*world).suspended_rank(); }), "");
    }
    threads.barrier();
  });
}

// Its request is gone, as where more bytes come than fit.
TEST(TransportFailures, AFailedMessageFailsAgain) {
  with_transports(2, [](const TransportPtr& post, Communicator& threads) {
    const auto watched = std::make_shared<Watched>(
        post, nullptr, [](const Watched::Asked& asked) { return !asked.sends && asked.tag != Transport::kNoteTag; },
        /*failed_are_gone=*/true);
    {
      const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
      at::Tensor never = at::zeros({5});
      if (threads.rank() == 0) {
        const WorkPtr work = world->exchange_async({}, {{1, never}});
        EXPECT_THAT(message_of([&] { is_ready(*work); }), HasSubstr("a planted failure"));
        EXPECT_THAT(message_of([&] { work->wait(); }), HasSubstr("a planted failure"));
      }
      threads.barrier();
    }
    EXPECT_EQ(watched->receives(0), 0);
    threads.barrier();
  });
}

/// Another transport whose sends begin when they are tested.
class SendsInTests final : public Transport {
 public:
  explicit SendsInTests(TransportPtr inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool any_thread() const override { return false; }
  void* send(const void* data, size_t bytes, int peer, int tag) override {
    return new Request{[this, data, bytes, peer, tag] { return inner_->send(data, bytes, peer, tag); }, nullptr};
  }
  void* receive(void* data, size_t bytes, int peer, int tag) override {
    return new Request{nullptr, inner_->receive(data, bytes, peer, tag)};
  }
  bool test(void*& request) override {
    auto* const mine = static_cast<Request*>(request);
    if (mine->begin) mine->request = std::exchange(mine->begin, nullptr)();
    if (!inner_->test(mine->request)) return false;
    delete mine;
    request = nullptr;
    return true;
  }
  void cancel(void*& request) override {
    const std::unique_ptr<Request> mine(static_cast<Request*>(std::exchange(request, nullptr)));
    inner_->cancel(mine->request);
  }

 private:
  struct Request {
    std::function<void*()> begin;  // or null: it has begun
    void* request;
  };
  TransportPtr inner_;
};

// Rank 1 has ended while the last message of rank 2 is on its way to rank 0.
TEST(TransportFailures, X15_ARankThatEndsEarlyFailsNoOther) {
  std::atomic<int> failed{0};
  with_transports(3, [&](const TransportPtr& post, Communicator& threads) {
    const auto watched = std::make_shared<Watched>(post, nullptr, [&](const Watched::Asked& asked) {
      const bool fails = threads.rank() == 0 && asked.peer == 1 && failed >= 0;
      failed += fails ? 1 : 0;
      return fails;
    });
    {
      const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
      world->set_timeout(testing::kHang);
      at::Tensor data = at::zeros({5});
      while (threads.rank() == 2 && failed < 3) std::this_thread::yield();
      if (threads.rank() == 2) world->exchange({{0, at::ones({5})}}, {});
      if (threads.rank() == 0) world->exchange({}, {{2, data}});
      EXPECT_EQ(data.sum().item<int>(), threads.rank() == 0 ? 5 : 0);
      threads.barrier();
      failed = -1000000;
    }
    threads.barrier();
  });
}

// The ranks below a lost rank in the tree of notes learn of the loss by themselves.
TEST(TransportFailures, X15_ALostRankThatPassesNotesOnEndsTheWaitsBelowIt) {
  with_transports(4, [](const TransportPtr& post, Communicator& threads) {
    bool lost = false;
    const auto watched = std::make_shared<Watched>(
        post, nullptr, [&lost](const Watched::Asked& asked) { return lost && asked.peer == 1; });
    {
      const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
      world->set_timeout(testing::kHang);
      threads.barrier();
      lost = threads.rank() != 1;
      at::Tensor never = at::zeros({5});
      const int from[] = {1, 0, 1, 0};
      if (threads.rank() != 1) {
        EXPECT_THAT(message_of([&] {
                      world->exchange({}, {{from[threads.rank()], never}});
                    }),
                    HasSubstr("a planted failure"));
      }
      threads.barrier();
      lost = false;
    }
    threads.barrier();
  });
}

// Rank 0 loses rank 1, which notes of ranks go to first. Rank 2 waits for rank 0 alone.
TEST(TransportFailures, X15_ARankThatWaitsForAnotherLearnsOfALoss) {
  for (const bool in_begin : {true, false}) {
    with_transports(3, [in_begin](const TransportPtr& post, Communicator& threads) {
      bool lost = false;
      const Watched::Fails fails = [&lost](const Watched::Asked& asked) { return lost && asked.peer == 1; };
      const auto watched = std::make_shared<Watched>(std::make_shared<SendsInTests>(post), in_begin ? fails : nullptr,
                                                     in_begin ? nullptr : fails);
      {
        const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
        world->set_timeout(testing::kHang);
        threads.barrier();
        lost = threads.rank() == 0;
        at::Tensor never = at::zeros({5});
        if (threads.rank() != 1) {
          const int from = threads.rank() == 0 ? 1 : 0;
          EXPECT_THAT(message_of([&] { world->exchange({}, {{from, never}}); }), HasSubstr("a planted failure"));
        }
        threads.barrier();
        lost = false;
      }
      threads.barrier();
    });
  }
}

// The same of a rank that fails between two calls.
TEST(TransportFailures, X15_ASuspendedRankReachesTheRanksThatAreLeft) {
  with_transports(3, [](const TransportPtr& post, Communicator& threads) {
    bool lost = false;
    const Watched::Fails fails = [&lost](const Watched::Asked& asked) { return lost && asked.peer == 1; };
    const auto watched = std::make_shared<Watched>(std::make_shared<SendsInTests>(post), fails, fails);
    {
      const CommunicatorPtr world = make_transport_communicators(watched, 1)[0];
      world->set_timeout(testing::kHang);
      threads.barrier();
      lost = threads.rank() == 0;
      at::Tensor never = at::zeros({5});
      if (threads.rank() == 0) backend_of(*world).suspend();
      if (threads.rank() == 2) {
        EXPECT_THAT(message_of([&] { world->exchange({}, {{0, never}}); }), HasSubstr("rank 0 ended without joining"));
      }
      threads.barrier();
      lost = false;
    }
    threads.barrier();
  });
}

}  // namespace
}  // namespace moonhalo::test_transport_failures
