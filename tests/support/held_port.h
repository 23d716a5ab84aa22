// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <random>
#include <utility>

namespace moonhalo::testing {

/// A port that no other test of this machine has while this lives, as tests/launch/hold_port.py holds one: by a socket
/// that is bound to the port 10000 above it.
class HeldPort {
 public:
  HeldPort() {
    while (!(bound(port_ + 10000, &holder_) && bound(port_, &probe_))) {
      close();
      if (++port_ == 22700) port_ = 20000;
    }
    ::close(std::exchange(probe_, -1));
  }
  ~HeldPort() { close(); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  operator uint16_t() const { return port_; }

 private:
  static bool bound(int port, int* made) {
    *made = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return ::bind(*made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  void close() {
    for (int* one : {&holder_, &probe_}) {
      if (*one >= 0) ::close(std::exchange(*one, -1));
    }
  }

  int holder_ = -1, probe_ = -1;
  uint16_t port_ = static_cast<uint16_t>(20000 + std::random_device()() % 2700);
};

}  // namespace moonhalo::testing
