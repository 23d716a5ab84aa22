// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/handshake.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace moonhalo {
namespace {

constexpr std::array<char, 8> kMagic = {'m', 'o', 'o', 'n', 'h', 'a', 'l', '1'};
constexpr uint8_t kTaken = 1;
constexpr size_t kMostCallers = 256;  // besides the ranks; each has a descriptor

struct Call {
  std::array<char, 8> magic;
  int64_t rank;
  Digest drawn;
};
struct Answer {
  Digest drawn, proof;
};

/// Makes the proof of the rank that calls, or of the one that answers, as `role` says.
Digest prove(const Member& me, const char* role, int64_t caller, int64_t called, const Digest& drawn_by_caller,
             const Digest& drawn_by_called) {
  std::string text = std::string(role) + "\n" + me.run + "\n" + std::to_string(me.size) + "\n" +
                     std::to_string(caller) + "\n" + std::to_string(called) + "\n";
  text.append(drawn_by_caller.begin(), drawn_by_caller.end());
  text.append(drawn_by_called.begin(), drawn_by_called.end());
  return hmac_sha256(me.key, text);
}

}  // namespace

Socket connect_to_rank(const std::string& ip, uint16_t port, const Member& me, int peer,
                       MeetingClock::time_point deadline) {
  const auto address = numeric_address(ip, port);  // what comes from the store is not looked up
  Socket socket = address ? connect_to(*address, deadline) : Socket();
  if (!socket) return Socket();
  const Call call{kMagic, me.rank, random_digest()};
  Answer answer{};
  if (!send_all(socket.get(), &call, sizeof(call)) || !read_all(socket.get(), &answer, sizeof(answer), deadline))
    return Socket();
  if (!same_digest(answer.proof, prove(me, "called", me.rank, peer, call.drawn, answer.drawn))) return Socket();
  const Digest proof = prove(me, "caller", me.rank, peer, call.drawn, answer.drawn);
  uint8_t taken = 0;
  if (!send_all(socket.get(), &proof, sizeof(proof)) || !read_all(socket.get(), &taken, sizeof(taken), deadline) ||
      taken != kTaken)
    return Socket();
  return socket;
}

/// One that has called, and as much as it has said.
struct Callers::Caller {
  explicit Caller(int descriptor) : socket(descriptor) {}
  /// False when it has gone; what it says may take its time.
  bool read(void* data, size_t bytes) {
    const ssize_t moved = ::recv(socket.get(), static_cast<char*>(data) + got, bytes - got, 0);
    if (moved > 0) got += static_cast<size_t>(moved);
    return moved > 0 || (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  }

  Socket socket;
  size_t got = 0;
  bool answered = false, proved = false;
  Call call{};
  Digest drawn{}, proof{};
};

Callers::Callers(int listening, const Member& me) : listening_(listening), me_(me) {}
Callers::~Callers() = default;

void Callers::accept_all() {
  for (;;) {
    const int descriptor = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0) return;
    callers_.emplace_back(descriptor);
    if (callers_.size() > kMostCallers + static_cast<size_t>(me_.size)) callers_.pop_front();
  }
}

/// Takes what the caller says. False for one that is to be dropped.
bool Callers::go_on(Caller& caller, const std::function<bool(int)>& required) {
  if (!caller.answered) {
    if (!caller.read(&caller.call, sizeof(Call))) return false;
    if (caller.got < sizeof(Call)) return true;
    const int64_t rank = caller.call.rank;
    if (caller.call.magic != kMagic || rank < 0 || rank >= me_.size || !required(static_cast<int>(rank))) return false;
    caller.drawn = random_digest();
    const Answer answer{caller.drawn, prove(me_, "called", rank, me_.rank, caller.call.drawn, caller.drawn)};
    caller.answered = true;
    caller.got = 0;
    return send_all(caller.socket.get(), &answer, sizeof(answer));
  }
  if (!caller.read(&caller.proof, sizeof(Digest))) return false;
  if (caller.got < sizeof(Digest)) return true;
  const int64_t rank = caller.call.rank;
  const Digest right = prove(me_, "caller", rank, me_.rank, caller.call.drawn, caller.drawn);
  if (!same_digest(caller.proof, right) || !required(static_cast<int>(rank))) return false;
  caller.proved = true;
  return send_all(caller.socket.get(), &kTaken, sizeof(kTaken));
}

std::optional<std::pair<int, Socket>> Callers::next(const std::function<bool(int)>& required,
                                                    MeetingClock::time_point deadline) {
  ::fcntl(listening_, F_SETFL, ::fcntl(listening_, F_GETFL) | O_NONBLOCK);
  while (MeetingClock::now() < deadline) {
    std::vector<pollfd> ready{{listening_, POLLIN, 0}};
    for (const Caller& caller : callers_) ready.push_back({caller.socket.get(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), static_cast<int>(left_until(deadline).count())) <= 0) continue;
    size_t at = 1;
    for (auto caller = callers_.begin(); caller != callers_.end();) {
      const bool speaks = ready[at++].revents != 0;
      const bool stays = !speaks || go_on(*caller, required);
      if (stays && caller->proved) {
        std::pair<int, Socket> rank{static_cast<int>(caller->call.rank), std::move(caller->socket)};
        callers_.erase(caller);
        return rank;
      }
      caller = stays ? std::next(caller) : callers_.erase(caller);
    }
    accept_all();
  }
  return std::nullopt;
}

}  // namespace moonhalo
