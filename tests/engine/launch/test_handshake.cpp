// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection, each against one that the test plays byte by byte.
#include "moonhalo/engine/launch/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/patience.h"

namespace moonhalo::test_handshake {
namespace {

using testing::kHang;

MeetingClock::time_point at_last() { return MeetingClock::now() + kHang; }

const std::string kKey = "0123456789abcdef0123456789abcdef", kOther = "another key of 32 bytes, guessed.";
const Member kCalled{kKey, "x", 0, 4};

std::string bytes(const Digest& digest) { return {digest.begin(), digest.end()}; }

struct Words {
  std::string role, key = kKey, run = "x";
  int size = 4, caller = 1, called = 0;
};

std::string proof(const Words& words, const std::string& draws) {
  return bytes(hmac_sha256(words.key, words.role + "\n" + words.run + "\n" + std::to_string(words.size) + "\n" +
                                          std::to_string(words.caller) + "\n" + std::to_string(words.called) + "\n" +
                                          draws));
}

/// The first words of a rank.
std::string call_of(int64_t rank, const std::string& draw, const std::string& magic = "moonhal1") {
  std::string number(sizeof(rank), '\0');
  std::memcpy(number.data(), &rank, sizeof(rank));
  return magic + number + draw;
}

bool say(const Socket& socket, const std::string& text) { return send_all(socket.get(), text.data(), text.size()); }

/// "" where the other end has closed.
std::string hear(const Socket& socket, size_t size) {
  std::string text(size, '\0');
  return read_all(socket.get(), text.data(), size, at_last()) ? text : "";
}

/// Rank 0 of four, called at its port. It takes the ranks that are `required`.
class Rank {
 public:
  explicit Rank(std::function<bool(int)> expected = [](int) { return true; }) : wanted_(std::move(expected)) {
    thread_ = std::thread([this] {
      Callers callers(listener_.socket.get(), kCalled);
      while (!ended_) {
        const auto next = MeetingClock::now() + std::chrono::milliseconds(20);
        if (auto caller = callers.next(wanted_, next)) {
          ++taken;
          kept_.push_back(std::move(caller->second));
        }
      }
    });
  }
  ~Rank() {
    ended_ = true;
    thread_.join();
  }
  Rank(const Rank&) = delete;
  Socket visit() const { return connect_to(stream_addresses("127.0.0.1", listener_.port).at(0), at_last()); }
  std::atomic<int> taken = 0;

 private:
  const Listener listener_ = listen_for_ranks("127.0.0.1", 1);
  const std::function<bool(int)> wanted_;
  std::list<Socket> kept_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

const std::string kDraw(32, 'd');

TEST(Handshake, Y21_TakesARankThatProvesItself) {
  const Rank rank;
  const Socket socket = rank.visit();
  ASSERT_TRUE(say(socket, call_of(1, kDraw)));
  const std::string answer = hear(socket, 64);
  ASSERT_EQ(answer.size(), 64u);
  const std::string draws = kDraw + answer.substr(0, 32);
  EXPECT_EQ(answer.substr(32), proof({"called"}, draws));
  ASSERT_TRUE(say(socket, proof({"caller"}, draws)));
  EXPECT_EQ(hear(socket, 1), "\1");
}

// Not even an answer: there is no such rank, or it has come already, or the caller is another program.
TEST(Handshake, Y21_AnswersNoOthers) {
  const Rank rank([](int number) { return number != 2; });
  for (const std::string& call : {call_of(2, kDraw), call_of(4, kDraw), call_of(-1, kDraw),
                                  call_of(int64_t{1} << 32, kDraw), call_of(1, kDraw, "moonhal2")}) {
    const Socket socket = rank.visit();
    ASSERT_TRUE(say(socket, call));
    EXPECT_EQ(hear(socket, 1), "");
  }
}

// A proof is of this connection, this direction, these two ranks, this run and this key.
TEST(Handshake, Y21_TakesNoProofOfAnythingElse) {
  const Rank rank;
  std::string old;
  const auto try_proof = [&](const std::function<std::string(const std::string& draws)>& prove) {
    const Socket socket = rank.visit();
    EXPECT_TRUE(say(socket, call_of(1, kDraw)));
    const std::string answer = hear(socket, 64);
    EXPECT_NE(answer.substr(0, 32), old);  // draws again
    old = answer.substr(0, 32);
    EXPECT_TRUE(say(socket, prove(kDraw + old)));
    return hear(socket, 1);
  };
  for (const Words& wrong : std::vector<Words>{{"called"},
                                               {"caller", kOther},
                                               {"caller", kKey, "y"},
                                               {"caller", kKey, "x", 3},
                                               {"caller", kKey, "x", 4, 2},
                                               {"caller", kKey, "x", 4, 1, 2}}) {
    EXPECT_EQ(try_proof([&](const std::string& draws) { return proof(wrong, draws); }), "");
  }
  std::string right;
  EXPECT_EQ(try_proof([&](const std::string& draws) { return right = proof({"caller"}, draws); }), "\1");
  EXPECT_EQ(try_proof([&](const std::string&) { return right; }), "");  // repeated
  for (size_t place = 0; place < 32; ++place) {
    EXPECT_EQ(try_proof([&](const std::string& draws) {
                std::string one_bit = proof({"caller"}, draws);
                one_bit[place] ^= 1;
                return one_bit;
              }),
              "");
  }
}

// Two that prove themselves to be one rank, side by side: the second has no place.
TEST(Handshake, Y21_TakesARankOnce) {
  std::atomic<bool> come = false;
  const Rank rank([&](int) { return !come; });
  Socket sockets[2];
  std::string proofs[2];
  for (int i = 0; i < 2; ++i) {
    sockets[i] = rank.visit();
    ASSERT_TRUE(say(sockets[i], call_of(1, kDraw)));
    proofs[i] = proof({"caller"}, kDraw + hear(sockets[i], 64).substr(0, 32));
  }
  ASSERT_TRUE(say(sockets[0], proofs[0]));
  EXPECT_EQ(hear(sockets[0], 1), "\1");
  come = true;
  ASSERT_TRUE(say(sockets[1], proofs[1]));
  EXPECT_EQ(hear(sockets[1], 1), "");
}

// The first of very many silent ones have to go, so that descriptors last for ranks.
TEST(Handshake, Y21_KeepsNoMoreSilentCallersThanItHasRoomFor) {
  const Rank rank;
  std::vector<Socket> silent;
  for (int i = 0; i < 261; ++i) {
    silent.push_back(rank.visit());
    ASSERT_TRUE(silent.back());
  }
  EXPECT_EQ(hear(silent.front(), 1), "");
  const Member me{kKey, "x", 1, 4};
  EXPECT_TRUE(say(silent.back(), call_of(1, kDraw)));
  EXPECT_EQ(hear(silent.back(), 64).size(), 64u);
}

/// True if connect_to_rank takes a listener that answers so for rank 0. `last` comes after the caller's proof.
bool connects(const std::function<std::string(const std::string& draws)>& prove, const std::string& last,
              std::string* draw = nullptr, std::string* given = nullptr) {
  const Listener listener = listen_for_ranks("127.0.0.1", 1);
  std::thread other([&] {
    if (!wait_for(listener.socket.get(), POLLIN, at_last())) return;
    const Socket socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string call = hear(socket, 48), mine(32, 'm');
    if (draw != nullptr) *draw = call.substr(16);
    EXPECT_EQ(call.substr(0, 16), call_of(1, ""));
    say(socket, mine + prove(call.substr(16) + mine));
    const std::string got = hear(socket, 32);
    if (given != nullptr) *given = got;
    if (!got.empty()) say(socket, last);
  });
  const Member me{kKey, "x", 1, 4};
  const bool connected = bool(connect_to_rank("127.0.0.1", listener.port, me, 0, at_last()));
  other.join();
  return connected;
}

TEST(Handshake, Y21_IsNotTakenInByAListenerWithoutTheKey) {
  std::string draws[2], given;
  const auto right = [](const std::string& both) { return proof({"called"}, both); };
  EXPECT_TRUE(connects(right, "\1", &draws[0]));
  EXPECT_TRUE(connects(right, "\1", &draws[1]));
  EXPECT_NE(draws[0], draws[1]);
  EXPECT_FALSE(connects(right, std::string(1, '\0')));  // says no
  EXPECT_FALSE(connects(right, ""));
  for (const Words& wrong : std::vector<Words>{{"caller"},
                                               {"called", kOther},
                                               {"called", kKey, "y"},
                                               {"called", kKey, "x", 3},
                                               {"called", kKey, "x", 4, 2},
                                               {"called", kKey, "x", 4, 1, 2}}) {
    EXPECT_FALSE(connects([&](const std::string& both) { return proof(wrong, both); }, "\1", nullptr, &given));
    EXPECT_EQ(given, "");  // and gets no proof for use elsewhere
  }
  const std::string old = proof({"called"}, draws[0] + std::string(32, 'm'));
  EXPECT_FALSE(connects([&](const std::string&) { return old; }, "\1"));
}

}  // namespace
}  // namespace moonhalo::test_handshake
