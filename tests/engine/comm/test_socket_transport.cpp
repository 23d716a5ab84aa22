// SPDX-License-Identifier: Apache-2.0
// Worlds over sockets, here pairs of one process between rank threads.
#include "moonhalo/engine/comm/socket_transport.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"
#include "tests/support/socket_ranks.h"
#include "tests/support/verbs.h"

namespace moonhalo::test_socket_transport {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::message_of;
using testing::on_ranks;
using testing::on_socket_ranks;
using testing::on_socket_transports;
using testing::verb_cases;

class SocketCommunicator : public ::testing::TestWithParam<size_t> {};

TEST_P(SocketCommunicator, PassesTheCase) {
  for (const int ranks : {1, 2, 3, 5}) {
    on_socket_ranks(ranks, [](Communicator&, CommunicatorPtr& world) { verb_cases()[GetParam()].check(*world); });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SocketCommunicator, ::testing::Range(size_t{0}, verb_cases().size()),
                         [](const auto& info) { return verb_cases()[info.param].name; });

/// Sends or receives to the end; the error if it fails.
std::string finish(Transport& transport, void* request) {
  return message_of([&] {
    while (!transport.test(request)) std::this_thread::yield();
  });
}

// More than sockets hold: every rank sends before it receives, and in another order than it was sent.
TEST(SocketTransport, MessagesOfAnySizeComeInAnyOrderOfTags) {
  const int64_t large = 3 << 20;
  on_socket_transports(3, [&](Communicator& threads, TransportPtr& mine) {
    const int rank = mine->rank(), size = mine->size();
    std::vector<at::Tensor> sent;
    std::vector<void*> sends;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      for (int tag = 1; tag <= 3; ++tag) {
        sent.push_back(at::full({tag == 2 ? large : tag}, 100 * rank + 10 * peer + tag, at::kFloat));
        sends.push_back(mine->send(sent.back().const_data_ptr(), sent.back().nbytes(), peer, tag));
      }
      sends.push_back(mine->send(nullptr, 0, peer, 9));
    }
    threads.barrier();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ(finish(*mine, mine->receive(nullptr, 0, peer, 9)), "");
      for (int tag = 3; tag >= 1; --tag) {
        at::Tensor got = at::zeros({tag == 2 ? large : tag}, at::kFloat);
        EXPECT_EQ(finish(*mine, mine->receive(got.mutable_data_ptr(), got.nbytes(), peer, tag)), "");
        EXPECT_TRUE(at::equal(got, at::full_like(got, 100 * peer + 10 * rank + tag))) << peer << " " << tag;
      }
    }
    for (void* request : sends) EXPECT_EQ(finish(*mine, request), "");
  });
}

TEST(SocketTransport, AWithdrawnReceiveTakesNothing) {
  const int64_t large = 1 << 20;
  on_socket_transports(2, [&](Communicator& threads, TransportPtr& mine) {
    const at::Tensor data = at::arange(large, at::kInt);
    if (mine->rank() == 0) {
      void* send = mine->send(data.const_data_ptr(), data.nbytes(), 1, 4);
      for (int i = 0; i < 2; ++i) threads.barrier();
      EXPECT_EQ(finish(*mine, send), "");
      threads.barrier();
      return;
    }
    at::Tensor first = at::zeros({large}, at::kInt), second = at::zeros({large}, at::kInt);
    void* early = mine->receive(first.mutable_data_ptr(), first.nbytes(), 0, 4);
    threads.barrier();
    EXPECT_FALSE(mine->test(early));  // the sockets hold less than the message
    EXPECT_EQ(first[1000].item<int>(), 1000);
    mine->cancel(early);
    const at::Tensor before = first.clone();
    threads.barrier();
    EXPECT_EQ(finish(*mine, mine->receive(second.mutable_data_ptr(), second.nbytes(), 0, 4)), "");
    EXPECT_TRUE(at::equal(second, data));
    EXPECT_TRUE(at::equal(first, before));
    threads.barrier();
  });
}

TEST(SocketTransport, MessagesThatAreTooLongAreErrors) {
  on_socket_transports(2, [](Communicator& threads, TransportPtr& mine) {
    int64_t numbers[2] = {1, 2};
    if (mine->rank() == 0) {
      EXPECT_EQ(finish(*mine, mine->send(numbers, sizeof(numbers), 1, 1)), "");
    } else {
      EXPECT_THAT(finish(*mine, mine->receive(numbers, sizeof(int64_t), 0, 1)),
                  HasSubstr("from rank 0: a message of 16 bytes came where 8 were expected"));
    }
    threads.barrier();
  });
}

// The last message of such a rank still arrives.
TEST(SocketTransport, ARankThatIsGoneFailsWhatWaitsForIt) {
  on_socket_transports(3, [](Communicator& threads, TransportPtr& mine) {
    int64_t number = 7;
    if (mine->rank() == 2) {
      for (const int peer : {0, 1}) EXPECT_EQ(finish(*mine, mine->send(&number, sizeof(number), peer, 1)), "");
      mine.reset();
      threads.barrier();
      return;
    }
    threads.barrier();
    void* note = mine->receive(&number, sizeof(number), 2, Transport::kNoteTag);
    int64_t got = 0;
    EXPECT_EQ(finish(*mine, mine->receive(&got, sizeof(got), 2, 1)), "");
    EXPECT_EQ(got, 7);
    const auto start = std::chrono::steady_clock::now();
    void* receive = mine->receive(&got, sizeof(got), 2, 1);
    EXPECT_THAT(finish(*mine, receive), HasSubstr("rank 2 has ended or was lost\n  have  its connection has closed"));
    mine->cancel(receive);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
    EXPECT_FALSE(mine->test(note));
    mine->cancel(note);
  });
}

TEST(SocketWorld, X22_EndsWithARankThatFails) {
  on_socket_ranks(3, [](Communicator& threads, CommunicatorPtr& world) {
    world->set_timeout(10min);
    EXPECT_STREQ(world->backend(), "tcp");
    if (world->rank() == 1) {
      world->abort("out of ideas");
      world.reset();
      threads.barrier();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    at::Tensor data = at::ones({4});
    EXPECT_THAT(message_of([&] { world->all_reduce(data); }), HasSubstr("rank 1"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
    threads.barrier();
  });
}

}  // namespace
}  // namespace moonhalo::test_socket_transport
