// SPDX-License-Identifier: Apache-2.0
#include "tests/support/socket_ranks.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>

#include "tests/support/ranks.h"

namespace moonhalo::testing {

std::vector<std::vector<int>> socket_pairs(int ranks) {
  std::vector<std::vector<int>> sockets(ranks, std::vector<int>(ranks, -1));
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  }
  return sockets;
}

void on_socket_transports(int ranks, const std::function<void(Communicator& threads, TransportPtr& mine)>& body) {
  const auto sockets = socket_pairs(ranks);
  on_ranks(ranks, [&](Communicator& threads) {
    TransportPtr mine = make_socket_transport(threads.rank(), sockets[threads.rank()]);
    body(threads, mine);
  });
}

void on_socket_ranks(int ranks, const std::function<void(Communicator& threads, CommunicatorPtr& world)>& body) {
  on_socket_transports(ranks, [&](Communicator& threads, TransportPtr& mine) {
    CommunicatorPtr world = make_transport_communicators(std::move(mine), 1)[0];
    world->set_timeout(kHang);
    body(threads, world);
  });
}

}  // namespace moonhalo::testing
