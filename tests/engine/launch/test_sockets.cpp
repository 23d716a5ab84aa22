// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "moonhalo/engine/launch/sockets.h"
#include "tests/support/held_port.h"
#include "tests/support/ipv6.h"
#include "tests/support/patience.h"

namespace moonhalo::testing::test_sockets {
namespace {

using ::testing::ElementsAre;

MeetingClock::time_point at_last() { return MeetingClock::now() + kHang; }

/// True if a program that connects there is taken.
bool reached(const std::string& ip, uint16_t port) {
  const auto address = numeric_address(ip, port);
  return address && connect_to(*address, at_last());
}

TEST(Addresses, OfIpv4AndIpv6AndNoNames) {
  EXPECT_EQ(numeric_address("192.0.2.7", 1)->address.ss_family, AF_INET);
  EXPECT_EQ(numeric_address("2001:db8::7", 1)->address.ss_family, AF_INET6);
  for (const char* text : {"localhost", "", "[::1]", "1.2.3.4.5"}) EXPECT_FALSE(numeric_address(text, 1)) << text;
  EXPECT_EQ(host_and_port("n7", 29500), "n7:29500");
  EXPECT_EQ(host_and_port("::1", 29500), "[::1]:29500");
  for (const auto& [text, host] : std::map<std::string, std::string>{
           {"[::1]", "::1"}, {"::1", "::1"}, {"n7", "n7"}, {"", ""}, {"[", "["}, {"[]", ""}}) {
    EXPECT_EQ(without_brackets(text), host);
  }
}

TEST(Listeners, OfRanksAreWhereTheMeetingPlaceIs) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  for (const std::string ip : {"::1", "127.0.0.1"}) {
    const Listener listener = listen_for_ranks(ip, 29500);
    EXPECT_THAT(listener.ips, ElementsAre(ip));
    EXPECT_FALSE(listener.everywhere);
    EXPECT_TRUE(reached(ip, listener.port));
    EXPECT_FALSE(reached(ip == "::1" ? "127.0.0.1" : "::1", listener.port)) << ip;
    EXPECT_EQ(way_to(listener.socket.get()), ip);
  }
}

TEST(Listeners, OnAllInterfacesAreReachedByBothProtocols) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  const HeldPort port;
  const Socket socket = listen_at("192.0.2.7", port);  // an address that no machine has
  ASSERT_TRUE(socket);
  EXPECT_TRUE(reached("127.0.0.1", port));
  EXPECT_TRUE(reached("::1", port));
  EXPECT_TRUE(reached(way_to(socket.get()), port));
}

}  // namespace
}  // namespace moonhalo::testing::test_sockets
