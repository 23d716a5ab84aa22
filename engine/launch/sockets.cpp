// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {
namespace {

using std::chrono::milliseconds;
using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// Returns the addresses of `host` for streams; null where it has none.
Addresses addresses_of(const std::string& host, int family, uint16_t port = 0) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

bool begins_with_127(uint32_t network_order) { return ntohl(network_order) >> 24 == 127; }

/// 127.0.1.1 does not count: Debian gives it to a machine's own name, which has another address elsewhere.
bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return address->sa_family == AF_INET &&
         ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) == INADDR_LOOPBACK;
}

/// "192.0.2.1", "2001:db8::1"; "" for what is neither.
std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  return text;
}

const sockaddr* generic(const SocketAddress& address) { return reinterpret_cast<const sockaddr*>(&address.address); }

/// False for those that mean another machine, or none, elsewhere: 127.x, ::1, and addresses of one link (fe80::).
bool others_may_reach(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return !begins_with_127(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return !IN6_IS_ADDR_LOOPBACK(&ip) && !IN6_IS_ADDR_LINKLOCAL(&ip);
}

/// The addresses of this machine that others may reach, those of IPv4 first.
std::vector<std::string> own_ips() {
  std::vector<std::string> ips;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return ips;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
      if (others_may_reach(one->ifa_addr)) ips.push_back(text_of(one->ifa_addr));
    }
  }
  freeifaddrs(all);
  return ips;
}

/// Where a socket is bound to. Of length 0 where that is unknown.
SocketAddress address_of(int socket) {
  SocketAddress own{.length = sizeof(own.address)};
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own.address), &own.length) != 0) own.length = 0;
  return own;
}

/// This machine's address on the way to `host`; "" where that is unknown. A datagram socket asks the routes and
/// sends nothing.
std::string address_towards(const std::string& host, uint16_t port) {
  for (const SocketAddress& address : stream_addresses(host, port)) {
    const Socket socket(::socket(address.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), generic(address), address.length) != 0) continue;
    const SocketAddress own = address_of(socket.get());
    return own.length != 0 && others_may_reach(generic(own)) ? text_of(generic(own)) : "";
  }
  return "";
}

/// Empty when it cannot be; errno says why.
Socket listening_socket(const sockaddr* address, socklen_t length) {
  Socket socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  const bool both = address->sa_family == AF_INET6 &&
                    IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      (both && setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0) ||
      ::bind(socket.get(), address, length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0)
    return Socket();
  return socket;
}

Socket listening_socket(const std::string& ip, uint16_t port) {
  const auto address = numeric_address(ip, port);
  return address ? listening_socket(generic(*address), address->length) : Socket();
}

/// On all interfaces, of IPv4 and IPv6 where the system has both.
Socket listening_everywhere(uint16_t port) {
  Socket socket = listening_socket("::", port);
  return socket || errno == EADDRINUSE || errno == EACCES ? std::move(socket) : listening_socket("0.0.0.0", port);
}

/// The addresses at which ranks on this machine reach each other for `host`, which is loopback.
std::vector<std::string> loopback_ips(const std::string& host) {
  std::vector<std::string> ips;
  for (const SocketAddress& address : stream_addresses(host, 0)) ips.push_back(text_of(generic(address)));
  return ips;
}

}  // namespace

milliseconds left_until(MeetingClock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - MeetingClock::now()), milliseconds(1));
}

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::vector<SocketAddress> stream_addresses(const std::string& host, uint16_t port) {
  std::vector<SocketAddress> all;
  for (const int family : {AF_INET, AF_INET6}) {
    const Addresses found = addresses_of(host, family, port);
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      all.push_back({.length = one->ai_addrlen});
      std::memcpy(&all.back().address, one->ai_addr, one->ai_addrlen);
    }
  }
  return all;
}

std::optional<SocketAddress> numeric_address(const std::string& ip, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(ip.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return std::nullopt;
  const Addresses owned{found, freeaddrinfo};
  SocketAddress address{.length = found->ai_addrlen};
  std::memcpy(&address.address, found->ai_addr, found->ai_addrlen);
  return address;
}

std::string host_and_port(const std::string& host, uint16_t port) {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string without_brackets(const std::string& host) {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

Socket connect_to(const SocketAddress& address, MeetingClock::time_point deadline) {
  Socket socket(::socket(address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* place = reinterpret_cast<const sockaddr*>(&address.address);
  if (!socket || (::connect(socket.get(), place, address.length) != 0 && errno != EINPROGRESS)) return Socket();
  int error = ETIMEDOUT;
  socklen_t length = sizeof(error);
  if (wait_for(socket.get(), POLLOUT, deadline)) getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return socket;
  socket = Socket();
  errno = error;
  return socket;
}

bool wait_for(int socket, short events, MeetingClock::time_point deadline) {
  pollfd one{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&one, 1, static_cast<int>(left_until(deadline).count()));
    if (ready > 0) return true;
    if (ready == 0 ? MeetingClock::now() >= deadline : errno != EINTR) return false;
  }
}

bool read_all(int socket, void* data, size_t bytes, MeetingClock::time_point deadline) {
  auto* place = static_cast<char*>(data);
  while (bytes > 0) {
    if (MeetingClock::now() > deadline || !wait_for(socket, POLLIN, deadline)) return false;
    const ssize_t got = ::recv(socket, place, bytes, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    place += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int socket, const void* data, size_t bytes, MeetingClock::time_point deadline) {
  const auto* place = static_cast<const char*>(data);
  while (bytes > 0) {
    if (MeetingClock::now() > deadline || !wait_for(socket, POLLOUT, deadline)) return false;
    const ssize_t sent = ::send(socket, place, bytes, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    place += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool send_all(int socket, const void* data, size_t bytes) {
  return ::send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool is_loopback(const std::string& host) {
  const Addresses found = addresses_of(host, AF_UNSPEC);
  if (!found) return false;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (!is_loopback(one->ai_addr)) return false;
  }
  return true;
}

Listener listen_for_ranks(const std::string& host, uint16_t port) {
  Listener listener;
  const char* const given = std::getenv("MOONHALO_ADDRESS");
  const bool is_given = given != nullptr && *given != '\0';
  const std::vector<std::string> ips = is_given            ? std::vector{without_brackets(given)}
                                       : is_loopback(host) ? loopback_ips(host)
                                                           : std::vector{address_towards(host, port)};
  for (const std::string& ip : ips) {
    if (ip.empty()) continue;
    listener.ips = {ip};
    listener.socket = listening_socket(ip, 0);
    if (listener.socket) break;
  }
  if (!listener.socket) {
    listener.socket = listening_everywhere(0);
    listener.everywhere = true;
    if (!is_given) listener.ips = own_ips();
  }
  const SocketAddress own = listener.socket ? address_of(listener.socket.get()) : SocketAddress{};
  if (own.length == 0) {
    throw CommError(std::string("launch: cannot wait for the other processes\n  have  ") + std::strerror(errno) +
                    "\n  fix   look at the limits of this process (ulimit -n)");
  }
  listener.port = own.address.ss_family == AF_INET6
                      ? ntohs(reinterpret_cast<const sockaddr_in6*>(&own.address)->sin6_port)
                      : ntohs(reinterpret_cast<const sockaddr_in*>(&own.address)->sin_port);
  return listener;
}

Socket listen_at(const std::string& host, uint16_t port) {
  const bool here = is_loopback(host);
  for (const int family : {AF_INET, AF_INET6}) {
    const Addresses found = addresses_of(host, family, port);
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      // A name of this machine's own that means loopback here means something else to others.
      const bool own_name = family == AF_INET && !here &&
                            begins_with_127(reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr.s_addr);
      if (own_name) continue;
      Socket socket = listening_socket(one->ai_addr, one->ai_addrlen);
      if (socket || errno == EADDRINUSE || errno == EACCES) return socket;
    }
  }
  return listening_everywhere(port);
}

std::string way_to(int listening) {
  const SocketAddress own = address_of(listening);
  if (own.length == 0) return "";
  const std::string ip = text_of(generic(own));
  if (ip != "0.0.0.0" && ip != "::") return ip;
  for (const char* loopback : {"127.0.0.1", "::1"}) {
    if (listening_socket(loopback, 0)) return loopback;
  }
  return "";
}

}  // namespace moonhalo
