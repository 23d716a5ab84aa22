// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/tcp/transport.h"

namespace moonhalo::testing {

/// Counts what a rank has sent.
struct Sent {
  int64_t messages = 0, bytes = 0;
  bool operator==(const Sent&) const = default;
};

/// Runs `body` on rank threads, each with `worlds` worlds over one transport: mailboxes between the threads, whose
/// sends end when they are received.
void with_worlds(int ranks, int worlds, const std::function<void(std::vector<CommunicatorPtr>&)>& body);

/// The transports alone. Those of a rank are in use until the other ranks have called the barrier of `threads`.
void with_transports(int ranks, const std::function<void(const TransportPtr&, Communicator& threads)>& body);

/// The same as with_worlds with one world. Gives what each rank has sent in it: messages of verbs and their data, which
/// has at most 1,024 bytes in a message, or at least 2,048. What makes the world is not counted.
std::vector<Sent> sent_in_world(int ranks, const std::function<void(Communicator&)>& body);

}  // namespace moonhalo::testing
