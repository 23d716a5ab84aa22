// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/store_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>

namespace moonhalo {
namespace {

using c10d::detail::CheckResponseType;
using c10d::detail::QueryType;
using c10d::detail::WaitResponseType;
using std::chrono::milliseconds;

constexpr const char* kSilent =
    "it takes connections and says nothing: another program has the port, or the process of the store is stopped";
constexpr const char* kEnds =
    "it ends the connection: the process of the store has ended, or another program has the port";
constexpr const char* kOther = "what answers there is no store, but another program";
constexpr size_t kLongest = size_t{1} << 20;  // of a value; those of ranks are short

/// Another program answers, which will not change.
class OtherProgram : public StoreLost {
 public:
  OtherProgram() : StoreLost(kOther) {}
};

}  // namespace

/// Numbers are sent as they are in memory; strings follow their length.
class StoreClient::Request {
 public:
  explicit Request(QueryType type) { add(type); }
  template <class T>
  Request& add(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  Request& text(std::string_view text) {
    add(uint64_t{text.size()});
    bytes_ += text;
    return *this;
  }
  /// LibTorch's own clients put this before the names that their users give.
  Request& name(const std::string& name) { return text("/" + name); }
  Request& names(const std::vector<std::string>& names) {
    add(uint64_t{names.size()});
    for (const std::string& one : names) name(one);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

StoreClient::StoreClient(const std::string& host, uint16_t port, MeetingClock::time_point deadline) {
  constexpr milliseconds kEach{30000}, kLongestPause{500};
  milliseconds pause{10};
  for (;;) {
    const std::vector<SocketAddress> addresses = stream_addresses(host, port);
    std::string reason = addresses.empty() ? "no address is known for that name" : "";
    bool other = false;
    for (size_t i = 0; i < addresses.size(); ++i) {
      const milliseconds share = left_until(deadline) / static_cast<int>(addresses.size() - i);
      deadline_ = MeetingClock::now() + std::min(kEach, share);
      try {
        socket_ = connect_to(addresses[i], deadline_);
        if (!socket_) throw StoreLost(std::strerror(errno));
        check_it_is_a_store();
        deadline_ = deadline;
        return;
      } catch (const StoreLost& lost) {
        if (reason.find(lost.what()) == std::string::npos)
          reason += (reason.empty() ? "" : "; ") + std::string(lost.what());
        other = other || dynamic_cast<const OtherProgram*>(&lost) != nullptr;
      }
    }
    if (other) throw OtherProgram();
    if (MeetingClock::now() + pause >= deadline) throw StoreLost(reason);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void StoreClient::check_it_is_a_store() {
  const auto sent = static_cast<uint32_t>(::getpid());
  uint32_t back = 0;
  send(Request(QueryType::VALIDATE).add(c10d::detail::validationMagicNumber));
  send(Request(QueryType::PING).add(sent));
  receive(&back, sizeof(back));
  if (back != sent) throw OtherProgram();
}

void StoreClient::set(const std::string& name, const std::string& value) {
  send(Request(QueryType::SET).name(name).text(value));
}

std::string StoreClient::set_once(const std::string& name, const std::string& value) {
  send(Request(QueryType::COMPARE_SET).name(name).text("").text(value));
  return receive_text();
}

int64_t StoreClient::add(const std::string& name, int64_t number) {
  int64_t sum = 0;
  send(Request(QueryType::ADD).name(name).add(number));
  receive(&sum, sizeof(sum));
  return sum;
}

bool StoreClient::has(const std::string& name) {
  send(Request(QueryType::CHECK).names({name}));
  return receive_byte() == static_cast<uint8_t>(CheckResponseType::READY);
}

bool StoreClient::wait(const std::vector<std::string>& names, MeetingClock::time_point until) {
  constexpr auto kHere = static_cast<uint8_t>(WaitResponseType::STOP_WAITING);
  send(Request(QueryType::WAIT).names(names));
  if (!wait_for(socket_.get(), POLLIN, until)) {
    send(Request(QueryType::CANCEL_WAIT));
    if (receive_byte() != kHere) return false;
    receive_byte();  // the answer to what came too late
    return true;
  }
  if (receive_byte() != kHere) throw OtherProgram();
  return true;
}

std::vector<std::string> StoreClient::get(const std::vector<std::string>& names) {
  send(Request(QueryType::MULTI_GET).names(names));
  std::vector<std::string> values;
  for (size_t i = 0; i < names.size(); ++i) values.push_back(receive_text());
  return values;
}

void StoreClient::send(const Request& request) {
  const auto until = std::max(deadline_, MeetingClock::now() + std::chrono::seconds(1));
  if (!write_all(socket_.get(), request.bytes().data(), request.bytes().size(), until))
    throw StoreLost(MeetingClock::now() < until ? kEnds : kSilent);
}

void StoreClient::receive(void* data, size_t bytes) {
  const auto until = std::max(deadline_, MeetingClock::now() + std::chrono::seconds(1));
  if (!read_all(socket_.get(), data, bytes, until)) throw StoreLost(MeetingClock::now() < until ? kEnds : kSilent);
}

uint8_t StoreClient::receive_byte() {
  uint8_t byte = 0;
  receive(&byte, sizeof(byte));
  return byte;
}

std::string StoreClient::receive_text() {
  uint64_t length = 0;
  receive(&length, sizeof(length));
  if (length > kLongest) throw OtherProgram();
  std::string text(length, '\0');
  receive(text.data(), text.size());
  return text;
}

}  // namespace moonhalo
