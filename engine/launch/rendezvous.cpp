// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/rendezvous.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/rank_device.h"
#include "moonhalo/engine/comm/socket_transport.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/launch/late_note.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds left(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

[[noreturn]] void fail(const std::string& what, const std::string& have, const std::string& fix) {
  throw CommError("launch: " + what + "\n  have  " + have + "\n  fix   " + fix);
}

sockaddr_in address_of(uint32_t ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ip;
  address.sin_port = htons(port);
  return address;
}

/// Says how other processes reach this one.
struct Contact {
  std::string machine;  ///< name and boot of its system
  std::vector<std::string> ips;
  uint16_t port = 0;

  std::string text() const {
    std::string all;
    for (const std::string& ip : ips) all += " " + ip;
    return machine + " " + std::to_string(port) + all;
  }
  static Contact of(const std::string& text) {
    std::istringstream words(text);
    Contact contact;
    words >> contact.machine >> contact.port;
    for (std::string ip; words >> ip;) contact.ips.push_back(ip);
    return contact;
  }
};

std::string this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return this_host() + "/" + boot;
}

/// The addresses of this machine, or the one that MOONHALO_ADDRESS gives.
std::vector<std::string> own_ips() {
  if (const char* given = std::getenv("MOONHALO_ADDRESS"); given != nullptr && *given != '\0') return {given};
  std::vector<std::string> ips;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return ips;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof(text));
    ips.emplace_back(text);
  }
  freeifaddrs(all);
  return ips;
}

bool is_loopback(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const uint32_t ip = ntohl(reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr);
  freeaddrinfo(found);
  return ip == INADDR_LOOPBACK;
}

Socket listen_on(bool only_here, int size, uint16_t& port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = address_of(htonl(only_here ? INADDR_LOOPBACK : INADDR_ANY), 0);
  socklen_t length = sizeof(address);
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("cannot wait for the other processes", std::strerror(errno), "look at the limits of this process (ulimit -n)");
  }
  port = ntohs(address.sin_port);
  return socket;
}

bool wait_for(int socket, short events, Clock::time_point deadline) {
  pollfd one{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&one, 1, static_cast<int>(left(deadline).count()));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

bool read_all(int socket, void* data, size_t bytes, Clock::time_point deadline) {
  auto* place = static_cast<char*>(data);
  while (bytes > 0) {
    if (!wait_for(socket, POLLIN, deadline)) return false;
    const ssize_t got = ::recv(socket, place, bytes, 0);
    if (got <= 0) return false;
    place += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

/// The first words of whoever calls: another program that finds the port does not know the secret.
struct Hello {
  uint64_t secret;
  int64_t rank;
};

/// Empty when no rank answers there.
Socket connect_to(const std::string& ip, uint16_t port, const Hello& hello, Clock::time_point deadline) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = address_of(0, port);
  if (!socket || inet_pton(AF_INET, ip.c_str(), &address.sin_addr) != 1) return Socket();
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 && errno != EINPROGRESS)
    return Socket();
  int error = 0;
  socklen_t length = sizeof(error);
  if (!wait_for(socket.get(), POLLOUT, deadline)) return Socket();
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) return Socket();
  Hello answer{};
  const bool sent = ::send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(hello));
  if (!sent || !read_all(socket.get(), &answer, sizeof(answer), deadline) || answer.secret != hello.secret)
    return Socket();
  return socket;
}

/// Calls the ranks before this one and is called by those behind it.
class Meeting {
 public:
  Meeting(const Launch& launch, const MeetingPlace& place, milliseconds limit, milliseconds note_after)
      : launch_(launch),
        place_(place),
        limit_(limit),
        note_after_(note_after),
        deadline_(Clock::now() + limit),
        sockets_(launch.size) {}

  std::vector<int> hold() {
    allow_many_files();
    open_store();
    claim();
    Contact mine{this_machine(), own_ips(), 0};
    const Socket listening = listen_on(is_loopback(place_.host), launch_.size, mine.port);
    if (launch_.rank == 0) set("secret", std::to_string(draw_secret()));
    set("rank" + std::to_string(launch_.rank), mine.text());
    const std::vector<std::string> contacts = get_of_all("rank");
    secret_ = std::stoull(store_->get_to_str(key("secret")));
    for (int rank = 0; rank < launch_.rank; ++rank) call(rank, contacts[rank], mine.machine);
    while (missing() >= 0) answer(listening);
    set("done" + std::to_string(launch_.rank), "yes");
    if (place_.serves) get_of_all("done");  // then no rank needs the store
    std::vector<int> sockets;
    for (Socket& socket : sockets_) sockets.push_back(socket.release());
    return sockets;
  }

 private:
  static uint64_t draw_secret() {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }

  void allow_many_files() const {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    const auto wanted = static_cast<rlim_t>(launch_.size) + 256;
    if (files.rlim_cur >= wanted || files.rlim_cur == files.rlim_max) return;
    files.rlim_cur = std::min(files.rlim_max, wanted);
    setrlimit(RLIMIT_NOFILE, &files);
  }

  void open_store() {
    c10d::TCPStoreOptions options;
    options.port = place_.port;
    options.isServer = place_.serves;
    options.waitWorkers = false;
    options.timeout = limit_;
    const LateNote late(note_after_, rank_text(launch_.rank) + " has not reached the store at " + address() +
                                         " within " + seconds_text(note_after_) + ", and goes on trying for " +
                                         seconds_text(limit_ - note_after_) +
                                         "; rank 0 serves it, and MASTER_ADDR and MASTER_PORT say where");
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>(place_.host, options);
    } catch (const std::exception& error) {
      if (place_.serves) warn_the_other(options);
      unreachable(error);
    }
  }

  /// Where the port is taken, the store there may be another job's, whose rank 0 would take ranks of this one for its
  /// own.
  void warn_the_other(c10d::TCPStoreOptions options) {
    options.isServer = false;
    options.timeout = std::min<milliseconds>(limit_, std::chrono::seconds(3));
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    } catch (const std::exception&) {  // another program's
      return;
    }
    claim();
  }

  std::string address() const { return place_.host + ":" + std::to_string(place_.port); }
  std::string rank_text(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(launch_.size);
  }

  /// Says that this process is its rank, and of which job. Where another says the same, or something else, two jobs
  /// have one store, or ranks wrong numbers; none of them may go on.
  void claim() {
    const std::string me = this_host() + ", process " + std::to_string(::getpid());
    const std::string mark =
        "\n" + std::to_string(draw_secret());  // processes of two machines' containers may look alike
    const std::string fix =
        "\n  fix   give every job a MASTER_PORT of its own, and its processes each a RANK and all one WORLD_SIZE";
    const std::string job = std::to_string(launch_.size) + " ranks" + place_.job;
    const std::string theirs = set_once("job", job + "\nrank " + std::to_string(launch_.rank) + ", " + me);
    if (const size_t end = theirs.find('\n'); theirs.substr(0, end) != job) {
      stop_all(std::clamp(std::atoi(theirs.c_str()), launch_.size, launch_.size + 100000),
               "launch: processes at " + address() + " do not belong to one job\n  have  " + job + ", says rank " +
                   std::to_string(launch_.rank) + ", " + me + "; " + theirs.substr(0, end) + ", says " +
                   theirs.substr(end + 1) + fix);
    }
    const std::string first = set_once("claim" + std::to_string(launch_.rank), me + mark);
    if (first != me + mark) {
      stop_all(launch_.size, "launch: two processes at " + address() + " say that they are rank " +
                                 std::to_string(launch_.rank) + "\n  have  " + me + "; " +
                                 first.substr(0, first.find('\n')) + fix);
    }
  }

  /// The value that was there before, else this one.
  std::string set_once(const std::string& name, const std::string& value) {
    try {
      const std::vector<uint8_t> now =
          store_->compareSet(key(name), std::vector<uint8_t>(), std::vector<uint8_t>(value.begin(), value.end()));
      return {now.begin(), now.end()};
    } catch (const std::exception& error) {
      unreachable(error);
    }
  }

  static constexpr std::chrono::seconds kHear{1};  // before the store goes, which others are about to ask
  static constexpr char kStops = '!';              // begins what is no contact, but the reason for which all ranks stop

  /// In place of the contacts that others wait for.
  [[noreturn]] void stop_all(int ranks, const std::string& text) {
    for (int rank = 0; rank < ranks; ++rank) set("rank" + std::to_string(rank), kStops + text);
    if (place_.serves) std::this_thread::sleep_for(kHear);
    throw CommError(text);
  }

  [[noreturn]] void unreachable(const std::exception& error) const {
    const std::string text = error.what();
    fail("cannot reach the store at " + address(), text.substr(0, text.find('\n')),
         "see that the node of rank 0 can be reached from all others and that its port is free; MASTER_ADDR and "
         "MASTER_PORT name another");
  }

  std::string key(const std::string& name) const { return "moonhalo/" + place_.run + "/" + name; }

  void set(const std::string& name, const std::string& value) {
    try {
      store_->set(key(name), std::vector<uint8_t>(value.begin(), value.end()));
    } catch (const std::exception& error) {
      unreachable(error);
    }
  }

  /// Gives what each rank has said under NAME and its number. When all have, all are there.
  std::vector<std::string> get_of_all(const std::string& name) {
    std::vector<std::string> keys, values;
    for (int rank = 0; rank < launch_.size; ++rank) keys.push_back(key(name + std::to_string(rank)));
    try {
      await(keys);
      for (const auto& value : store_->multiGet(keys)) values.emplace_back(value.begin(), value.end());
      for (const std::string& value : values) {
        if (value[0] != kStops) continue;
        if (place_.serves) std::this_thread::sleep_for(kHear);
        throw CommError(value.substr(1));
      }
      return values;
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      if (Clock::now() < deadline_) unreachable(error);
    }
    const int rank = first_without(keys);
    if (place_.serves) std::this_thread::sleep_for(kHear);
    late(rank);
  }

  void await(const std::vector<std::string>& keys) {
    try {
      return store_->wait(keys, std::min(note_after_, left(deadline_)));
    } catch (const std::exception&) {
      if (left(deadline_) <= milliseconds(1)) throw;
    }
    const int rank = first_without(keys);
    if (place_.serves && rank >= 0) {
      note(rank_text(rank) + " has not come to " + address() + " within " + seconds_text(note_after_) +
           "; it is waited for " + seconds_text(left(deadline_)) + " longer");
    }
    store_->wait(keys, left(deadline_));
  }

  /// The first rank whose key the store does not have; -1 when that cannot be asked any more.
  int first_without(const std::vector<std::string>& keys) {
    try {
      for (int rank = 0; rank < launch_.size; ++rank) {
        if (!store_->check({keys[rank]})) return rank;
      }
    } catch (const std::exception&) {  // rank 0 has given up, and the store with it
    }
    return -1;
  }

  [[noreturn]] void late(int rank) const {
    fail((rank < 0 ? "one of the ranks" : rank_text(rank)) + " has not come within " + seconds_text(limit_),
         launch_.why, "look at what that process said; MOONHALO_TIMEOUT_S gives it more time");
  }

  void call(int rank, const std::string& text, const std::string& machine) {
    const Contact contact = Contact::of(text);
    const std::vector<std::string> ips =
        contact.machine == machine ? std::vector<std::string>{"127.0.0.1"} : contact.ips;
    constexpr milliseconds kEach{30000};
    for (const std::string& ip : ips) {
      const auto until = std::min(deadline_, Clock::now() + kEach);
      sockets_[rank] = connect_to(ip, contact.port, {secret_, launch_.rank}, until);
      if (sockets_[rank]) return prepare(sockets_[rank].get());
    }
    fail("cannot connect to rank " + std::to_string(rank), "it can be called at " + text,
         "see that no firewall is between the nodes; MOONHALO_ADDRESS gives the address of a node that others reach");
  }

  void answer(const Socket& listening) {
    if (!wait_for(listening.get(), POLLIN, deadline_)) late(missing());
    Socket caller(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello{};
    constexpr milliseconds kSaysHelloWithin{2000};
    const auto until = std::min(deadline_, Clock::now() + kSaysHelloWithin);
    if (!caller || !read_all(caller.get(), &hello, sizeof(hello), until) || hello.secret != secret_) return;
    if (hello.rank <= launch_.rank || hello.rank >= launch_.size || sockets_[hello.rank]) return;
    const Hello mine{secret_, launch_.rank};
    if (::send(caller.get(), &mine, sizeof(mine), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(mine))) return;
    prepare(caller.get());
    sockets_[hello.rank] = std::move(caller);
  }

  static void prepare(int socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  }

  /// A rank behind this one that has not called yet, or -1.
  int missing() const {
    for (int rank = launch_.rank + 1; rank < launch_.size; ++rank) {
      if (!sockets_[rank]) return rank;
    }
    return -1;
  }

  const Launch& launch_;
  const MeetingPlace& place_;
  milliseconds limit_, note_after_;
  Clock::time_point deadline_;
  c10::intrusive_ptr<c10d::Store> store_;
  uint64_t secret_ = 0;
  std::vector<Socket> sockets_;
};

// "n01" of "n[01-04,7],m3".
std::string first_node(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

}  // namespace

std::optional<MeetingPlace> meeting_place(const Launch& launch, const std::function<const char*(const char*)>& getenv) {
  const auto text = [&](const char* variable) -> std::string {
    const char* value = getenv(variable);
    return value == nullptr ? "" : value;
  };
  MeetingPlace place;
  if (!text("MASTER_ADDR").empty() && !text("MASTER_PORT").empty()) {
    char* end = nullptr;
    const std::string given = text("MASTER_PORT");
    const long port = std::strtol(given.c_str(), &end, 10);
    TORCH_CHECK_VALUE(*end == '\0' && port > 0 && port < 65536, "launch: MASTER_PORT is no port\n  have  MASTER_PORT=",
                      given, "\n  fix   give a free port, 1 to 65535");
    place = {text("MASTER_ADDR"), static_cast<uint16_t>(port), launch.rank == 0, ""};
    // torchrun serves a store itself, one for each attempt.
    if (text("TORCHELASTIC_USE_AGENT_STORE") == "True") place.serves = false;
    place.run = text("TORCHELASTIC_RUN_ID") + "/" + text("TORCHELASTIC_RESTART_COUNT");
    for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"}) {
      if (place.job.empty() && !text(variable).empty())
        place.job = " of " + std::string(variable) + "=" + text(variable);
    }
    return place;
  }
  if (launch.kind != Launch::kSlurm) return std::nullopt;
  const std::string nodes = text("SLURM_STEP_NODELIST"), job = text("SLURM_JOB_ID");
  const std::string step = text("SLURM_STEP_ID").empty() ? text("SLURM_STEPID") : text("SLURM_STEP_ID");
  if (nodes.empty() || job.empty()) return std::nullopt;
  // Steps of one job may share a node, as may jobs.
  constexpr uint64_t kFirstPort = 20000, kPorts = 10000;
  const uint64_t number = std::strtoull(job.c_str(), nullptr, 10) * 31 + std::strtoull(step.c_str(), nullptr, 10);
  place = {first_node(nodes), static_cast<uint16_t>(kFirstPort + number % kPorts), launch.rank == 0, job + "." + step};
  return place;
}

TransportPtr meet(const Launch& launch, const MeetingPlace& place, milliseconds limit, milliseconds note_after) {
  return make_socket_transport(launch.rank, Meeting(launch, place, limit, note_after).hold());
}

}  // namespace moonhalo
