// SPDX-License-Identifier: Apache-2.0
// Worlds over sockets, here pairs of one process between rank threads.
#include "moonhalo/engine/comm/tcp/socket_transport.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/oracle.h"
#include "tests/support/process_memory.h"
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

/// A transport of rank 0, and the other end of its socket, which is not a rank's.
struct Strange {
  Strange() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    transport = make_socket_transport(0, {-1, ends[0]});
    other = ends[1];
  }
  ~Strange() { ::close(other); }
  void say(uint64_t bytes, int64_t tag, size_t follow = 0) const {
    const uint64_t head[2] = {bytes, static_cast<uint64_t>(tag)};
    EXPECT_EQ(::send(other, head, sizeof(head), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(head)));
    const std::string text(follow, 'x');
    EXPECT_EQ(::send(other, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(follow));
  }
  TransportPtr transport;
  int other;
};

// Sizes and tags that no rank sends, of messages that are waited for and of others: an error, and no memory.
TEST(SocketTransport, Y21_HeadsThatNoRankSendsEndTheConnection) {
  for (const auto& [bytes, tag] : {std::pair{uint64_t{1} << 60, int64_t{2}},
                                   {uint64_t{8} << 30, int64_t{2}},
                                   {~uint64_t{0}, int64_t{-1}},
                                   {uint64_t{8}, int64_t{-2}},
                                   {uint64_t{8}, int64_t{1} << 40},
                                   {uint64_t{2} << 20, int64_t{-1}}}) {
    const Strange strange;
    int64_t number = 0;
    void* receive = strange.transport->receive(&number, sizeof(number), 1, 1);
    strange.say(bytes, tag);
    EXPECT_THAT(finish(*strange.transport, receive),
                HasSubstr("rank 1 has ended or was lost\n  have  it has sent a message of " + std::to_string(bytes) +
                          " bytes with tag " + std::to_string(tag) + ", which no rank does"));
    strange.transport->cancel(receive);
  }
}

// A message longer than its receive fails it as soon as its head is there, and what follows has no place; the next one
// is right.
TEST(SocketTransport, Y21_ALongMessageFailsItsReceiveAlone) {
  const Strange strange;
  int64_t first = 0, second = 0;
  void* receive = strange.transport->receive(&first, sizeof(first), 1, 1);
  void* next = strange.transport->receive(&second, sizeof(second), 1, 1);
  strange.say(100000, 1, 70000);
  EXPECT_THAT(finish(*strange.transport, receive), HasSubstr("a message of 100000 bytes came where 8 were expected"));
  const std::string rest(30000, 'y');
  EXPECT_EQ(::send(strange.other, rest.data(), rest.size(), MSG_NOSIGNAL), 30000);
  strange.say(8, 1, 8);
  EXPECT_EQ(finish(*strange.transport, next), "");
  EXPECT_EQ(second, 0x7878787878787878);
  EXPECT_EQ(first, 0);
}

// Also one that has come before its receive: nothing is written beyond that.
TEST(SocketTransport, Y21_ALongMessageWritesNothingBeyondItsReceive) {
  const Strange strange;
  strange.say(64, 1, 64);
  int64_t number = 0;
  void* other = strange.transport->receive(&number, sizeof(number), 1, 2);
  EXPECT_FALSE(strange.transport->test(other));  // takes what has come
  int64_t place[8] = {};
  EXPECT_THAT(finish(*strange.transport, strange.transport->receive(place, sizeof(place[0]), 1, 1)),
              HasSubstr("a message of 64 bytes came where 8 were expected"));
  for (size_t i = 1; i < 8; ++i) EXPECT_EQ(place[i], 0) << i;
  strange.transport->cancel(other);
}

// The size is one that a rank may send, but the bytes do not come, and no receive waits for them.
TEST(SocketTransport, Y21_MemoryGrowsWithWhatHasCome) {
  const Strange strange;
  strange.say(Transport::kPieceBytes, 7, 1000);
  const int64_t before = testing::process_memory("VmRSS");
  int64_t number = 0;
  void* receive = strange.transport->receive(&number, sizeof(number), 1, 1);
  EXPECT_FALSE(strange.transport->test(receive));
  EXPECT_LT(testing::process_memory("VmRSS") - before, int64_t{100} << 20);
  strange.transport->cancel(receive);
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
    void* receive = mine->receive(&got, sizeof(got), 2, 1);
    EXPECT_THAT(finish(*mine, receive), HasSubstr("rank 2 has ended or was lost\n  have  its connection has closed"));
    mine->cancel(receive);
    EXPECT_FALSE(mine->test(note));
    mine->cancel(note);
  });
}

// A rank that waits sends notes, also to one that has ended well. It still receives all that this one sent.
TEST(SocketTransport, WhatARankSentBeforeItEndedArrives) {
  Strange strange;
  strange.say(8, 1, 8);
  strange.say(16, -1, 16);
  ::close(std::exchange(strange.other, -1));
  int64_t number = 7;
  void* note = strange.transport->send(&number, sizeof(number), 1, Transport::kNoteTag);
  EXPECT_FALSE(strange.transport->test(note));

  const std::vector<Transport::Gone> gone = strange.transport->gone();
  ASSERT_EQ(gone.size(), 1);
  EXPECT_TRUE(gone[0].words) << "the rank counts as lost";
  EXPECT_EQ(finish(*strange.transport, strange.transport->receive(&number, sizeof(number), 1, 1)), "");
  EXPECT_EQ(number, 0x7878787878787878);
  strange.transport->cancel(note);
}

// The other rank is slow, and its socket full, when this one ends.
TEST(SocketTransport, LastWordsFollowMessagesThatFillTheSocket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  TransportPtr fast = make_socket_transport(0, {-1, ends[0]}), slow = make_socket_transport(1, {ends[1], -1});
  fast->give_last_words({1, 2});
  const std::string text(20000, 'x');
  static void* last;  // is under way when its rank ends
  int messages = 1;
  for (last = fast->send(text.data(), text.size(), 1, 1); fast->test(last); ++messages) {
    last = fast->send(text.data(), text.size(), 1, 1);
  }
  std::thread leaves([&fast] { fast.reset(); });
  std::this_thread::sleep_for(50ms);

  std::string got(text.size(), ' ');
  for (int i = 0; i < messages; ++i) {
    EXPECT_EQ(finish(*slow, slow->receive(got.data(), got.size(), 0, 1)), "") << i << " of " << messages;
    EXPECT_EQ(got, text);
  }
  std::vector<Transport::Gone> gone;
  while (gone.empty()) gone = slow->gone();
  EXPECT_EQ(gone[0].words, (std::vector<uint64_t>{1, 2}));
  slow.reset();
  leaves.join();
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
    at::Tensor data = at::ones({4});
    EXPECT_THAT(message_of([&] { world->all_reduce(data); }), HasSubstr("rank 1"));
    threads.barrier();
  });
}

}  // namespace
}  // namespace moonhalo::test_socket_transport
