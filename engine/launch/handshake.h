// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "moonhalo/engine/launch/sha256.h"
#include "moonhalo/engine/launch/sockets.h"

namespace moonhalo {

/// Holds what two ranks must have in common to connect, and the number of this one.
struct Member {
  std::string key;  ///< the job's, or one that rank 0 has drawn
  std::string run;
  int rank = 0, size = 1;
};

// Both ends of a connection draw 32 random bytes, and each proves that it has the key by HMAC-SHA256 of both draws,
// the ranks and the run. The key is never sent, and the end that is called gives its proof first. Without the key a
// process gets no rank's place and is not taken for a rank. What is sent later is neither signed nor encrypted.
//
//     caller: rank, its bytes  ->   <- bytes of the other, proof   proof ->   <- taken

/// Connects to `peer` at this address. Empty when no such rank answers there until the deadline.
Socket connect_to_rank(const std::string& ip, uint16_t port, const Member& me, int peer,
                       MeetingClock::time_point deadline);

/// Callers at a listening socket, who are served side by side, so that silent ones cost the others nothing.
class Callers {
 public:
  Callers(int listening, const Member& me);
  ~Callers();
  Callers(const Callers&) = delete;
  /// The next rank that has proved itself, of those that are `required`; nothing at the deadline.
  std::optional<std::pair<int, Socket>> next(const std::function<bool(int)>& required,
                                             MeetingClock::time_point deadline);

 private:
  struct Caller;
  void accept_all();
  bool go_on(Caller& caller, const std::function<bool(int)>& required);

  int listening_;
  const Member& me_;
  std::list<Caller> callers_;  // those that have not proved themselves yet, the oldest first
};

}  // namespace moonhalo
