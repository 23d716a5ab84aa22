// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo {

using MeetingClock = std::chrono::steady_clock;

/// The rest of the time until `deadline`, 1 ms at least.
std::chrono::milliseconds left_until(MeetingClock::time_point deadline);

/// Owns a descriptor.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

bool wait_for(int socket, short events, MeetingClock::time_point deadline);
/// False when the other end has closed it, or at the deadline.
bool read_all(int socket, void* data, size_t bytes, MeetingClock::time_point deadline);
/// Sends few bytes, for which a socket has room.
bool send_all(int socket, const void* data, size_t bytes);

/// True for 127.0.0.1, ::1 and names of them, which other machines do not reach.
bool is_loopback(const std::string& host);

/// A socket that listens where other ranks come, and the addresses at which they find it.
struct Listener {
  Socket socket;
  std::vector<std::string> ips;
  uint16_t port = 0;
  bool everywhere = false;  ///< on all interfaces
};
/// On the interface by which this process reaches `host`, or the one of MOONHALO_ADDRESS; on all where neither can be
/// told. CommError.
Listener listen_for_ranks(const std::string& host, uint16_t port);

/// Listens at `port` of the address that `host` stands for here; on all interfaces where it is none of this machine's
/// (a name for others, or an address that is translated). Empty where the port is taken; errno says why.
Socket listen_at(const std::string& host, uint16_t port);

}  // namespace moonhalo
