// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "moonhalo/engine/comm/tcp/socket_transport.h"

namespace moonhalo::testing {

/// sockets[a][b] is the end of rank a of the connection between a and b.
std::vector<std::vector<int>> socket_pairs(int ranks);

/// on_ranks (support/ranks.h) with sockets between the ranks, which `body` may let go. `threads` is another world of
/// the same ranks.
void on_socket_transports(int ranks, const std::function<void(Communicator& threads, TransportPtr& mine)>& body);
void on_socket_ranks(int ranks, const std::function<void(Communicator& threads, CommunicatorPtr& world)>& body);

}  // namespace moonhalo::testing
