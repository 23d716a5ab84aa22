// SPDX-License-Identifier: Apache-2.0
// Other programs that listen where ranks look for the store, or for each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <thread>

#include "moonhalo/engine/launch/handshake.h"
#include "moonhalo/engine/launch/rendezvous.h"
#include "tests/support/oracle.h"
#include "tests/support/patience.h"

namespace moonhalo::test_foreign_port {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

/// A program that listens on loopback. `answer` gets each connection with what has come on it, whenever more comes;
/// false ends the connection.
class Program {
 public:
  using Answer = std::function<bool(int socket, std::string& come)>;
  explicit Program(Answer answer) : listener_(listen_for_ranks("127.0.0.1", 1)), answer_(std::move(answer)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Program() {
    ended_ = true;
    thread_.join();
  }
  Program(const Program&) = delete;
  uint16_t port() const { return listener_.port; }

 private:
  struct Connection {
    Socket socket;
    std::string come = {};
    bool open = true;
  };
  void serve() {
    std::list<Connection> connections;
    while (!ended_) {
      std::vector<pollfd> ready{{listener_.socket.get(), POLLIN, 0}};
      for (const Connection& one : connections) ready.push_back({one.socket.get(), POLLIN, 0});
      ::poll(ready.data(), ready.size(), 10);
      size_t at = 1;
      for (Connection& one : connections) {
        if (ready[at++].revents != 0) one.open = read(one) && answer_(one.socket.get(), one.come);
      }
      connections.remove_if([](const Connection& one) { return !one.open; });
      if (ready[0].revents == 0) continue;
      connections.push_back({Socket(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC))});
      if (!answer_(connections.back().socket.get(), connections.back().come)) connections.pop_back();
    }
  }
  static bool read(Connection& one) {
    char bytes[4096];
    const ssize_t got = ::recv(one.socket.get(), bytes, sizeof(bytes), 0);
    if (got > 0) one.come.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }

  const Listener listener_;
  const Answer answer_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

bool say(int socket, const std::string& text) { return send_all(socket, text.data(), text.size()); }

bool silent(int, std::string&) { return true; }
bool closes(int, std::string&) { return false; }
bool rubbish(int socket, std::string& come) { return come.empty() || say(socket, "HTTP/1.0 400 Bad Request\r\n\r\n"); }
bool greets(int socket, std::string& come) { return !come.empty() || say(socket, "SSH-2.0-OpenSSH_9.2\r\n"); }
bool echoes(int socket, std::string& come) { return come.empty() || say(socket, std::exchange(come, "")); }
/// One byte of an answer, and no more.
bool slow(int socket, std::string& come) { return !come.empty() || say(socket, "x"); }

/// As a store to begin with: one byte and 4 of its mark, one byte that asks for a sign of life and 4 to be sent back.
/// Then it says `rest`.
Program::Answer like_a_store(const std::string& rest) {
  return [rest](int socket, std::string& come) {
    if (come.size() <= 10) return come.size() < 10 || say(socket, come.substr(6, 4));
    return rest.empty() || say(socket, rest);
  };
}

/// The error of this rank of two, where the port is the program's.
std::string error_of(int rank, const Program& program, std::chrono::milliseconds limit) {
  Launch launch;
  launch.kind = Launch::kTorchrun;
  launch.rank = rank;
  launch.size = 2;
  launch.why = "a test";
  const MeetingPlace place{"127.0.0.1", program.port(), rank == 0, "x"};
  return message_of([&] { join_ranks(launch, place, limit); });
}

const struct {
  const char* name;
  Program::Answer answer;
  const char* said;
  bool at_once;
} kPrograms[] = {
    {"silent", silent, "it takes connections and says nothing", false},
    {"closes", closes, "it ends the connection", false},
    {"slow", slow, "it takes connections and says nothing", false},
    {"rubbish", rubbish, "what answers there is no store", true},
    {"greets", greets, "what answers there is no store", true},
    {"echoes", echoes, "what answers there is no store", true},
    {"silent later", like_a_store(""), "it takes connections and says nothing", false},
    {"long", like_a_store(std::string(8, '\x7f')), "what answers there is no store", true},
};

// In the place of the store. Rank 0, which is to serve it, finds the port taken.
TEST(ForeignPort, Y21_EndsEveryRankWithAClearError) {
  for (const auto& one : kPrograms) {
    const Program program(one.answer);
    const std::string at = " the store at 127.0.0.1:" + std::to_string(program.port()) + "\n  have  ";
    const auto limit = one.at_once ? testing::kHang : std::chrono::seconds(1);
    EXPECT_THAT(error_of(1, program, limit),
                AllOf(HasSubstr("launch: cannot reach" + at), HasSubstr(one.said), HasSubstr("MASTER_PORT")))
        << one.name;
    EXPECT_THAT(
        error_of(0, program, limit),
        AllOf(HasSubstr("launch: rank 0 cannot serve" + at + "Address already in use"), HasSubstr("MASTER_PORT")))
        << one.name;
  }
}

// In the place of a rank.
TEST(ForeignPort, Y21_IsNoRank) {
  const Member me{"0123456789abcdef0123456789abcdef", "x", 1, 2};
  for (const auto& one : kPrograms) {
    const Program program(one.answer);
    EXPECT_FALSE(connect_to_rank("127.0.0.1", program.port(), me, 0, MeetingClock::now() + 500ms)) << one.name;
  }
}

}  // namespace
}  // namespace moonhalo::test_foreign_port
