// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Where a program listens, or may.
struct SocketAddress {
  sockaddr_storage address = {};
  socklen_t length = 0;
};
/// All that `host` stands for, those of IPv4 first, as rank 0 takes them (listen_at). Empty where it is unknown.
std::vector<SocketAddress> stream_addresses(const std::string& host, uint16_t port);
/// The address that `ip` is, of IPv4 or IPv6; nothing for a name, which is not looked up.
std::optional<SocketAddress> numeric_address(const std::string& ip, uint16_t port);
/// "host:29500", "[::1]:29500".
std::string host_and_port(const std::string& host, uint16_t port);
/// An address of IPv6 without the brackets that it may be written in.
std::string without_brackets(const std::string& host);
/// Empty where no program has accepted the connection by the deadline; errno says why.
Socket connect_to(const SocketAddress& address, MeetingClock::time_point deadline);

bool wait_for(int socket, short events, MeetingClock::time_point deadline);
/// False when the other end has closed it, or at the deadline.
bool read_all(int socket, void* data, size_t bytes, MeetingClock::time_point deadline);
/// Sends few bytes, which fit into a socket's buffer.
bool send_all(int socket, const void* data, size_t bytes);
/// As read_all, for a connection that blocks nothing (connect_to).
bool write_all(int socket, const void* data, size_t bytes, MeetingClock::time_point deadline);

/// True for 127.0.0.1, ::1 and names of them, which other machines do not reach.
bool is_loopback(const std::string& host);

/// A socket that listens where other ranks come, and the addresses at which they find it.
struct Listener {
  Socket socket;
  std::vector<std::string> ips;
  uint16_t port = 0;
  bool everywhere = false;  ///< on all interfaces
};
/// On the interface by which this process reaches `host`, or the one of MOONHALO_ADDRESS; on all where neither is
/// known. CommError.
Listener listen_for_ranks(const std::string& host, uint16_t port);

/// Listens at `port` of the address that `host` stands for here; on all interfaces, of IPv4 and IPv6, where it is none
/// of this machine's (a name for others, or an address that is translated). Empty where the port is taken; errno says
/// why.
Socket listen_at(const std::string& host, uint16_t port);
/// The address by which this process itself reaches what it listens at.
std::string way_to(int listening);

}  // namespace moonhalo
