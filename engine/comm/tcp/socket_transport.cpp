// SPDX-License-Identifier: Apache-2.0
// Every message is a head and its bytes. A message whose receive is posted goes straight to its place; one that comes
// earlier is kept, because a message that is waited for may come behind it. A head is believed as far as bytes follow:
// memory grows with what has come, never by what is said.
#include "moonhalo/engine/comm/tcp/socket_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace moonhalo {
namespace {

// A rank that ends waits so long for the others to end, and for a socket to take its last words.
constexpr std::chrono::milliseconds kLinger{500}, kLastWordsWithin{2000};
constexpr int kLastWordsTag = -1;
constexpr size_t kMostLastWords = size_t{1} << 20;
constexpr size_t kLeastGrowth = size_t{1} << 16;

struct Head {
  uint64_t bytes;
  int64_t tag;
};

struct Request {
  int peer, tag;
  char* data;
  size_t bytes;
  bool sends;
  bool done = false;
  std::string problem = {};
};

class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {
    if (socket_ >= 0) fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
  }
  Connection(const Connection&) = delete;
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }

  int socket() const { return socket_; }
  bool open() const { return socket_ >= 0 && gone_.empty(); }
  bool writes() const { return !sends_.empty(); }
  /// Says how it ended; empty while it is open.
  const std::string& gone() const { return gone_; }

  void send(Request* request) {
    sends_.push_back(request);
    write();
  }

  void receive(Request* request) {
    const auto early = early_.find(request->tag);
    if (early == early_.end()) {
      posted_[request->tag].push_back(request);
      return;
    }
    deliver(*request, early->second.front());
    early->second.pop_front();
    if (early->second.empty()) early_.erase(early);
  }

  void withdraw(Request* request) {
    std::erase(posted_[request->tag], request);
    if (into_ != request) return;
    // Its message is half here.
    aside_.assign(request->data, request->data + got_ - sizeof(Head));
    into_ = nullptr;
  }

  /// Sends and takes what it can without waiting.
  void progress() {
    if (open()) write();
    if (open()) read();
  }

  /// Lets the other end know that no more messages come than those that are on their way, and why. Nothing is received
  /// any more. Where the socket is full, drain goes on with it.
  void say_goodbye(const std::optional<std::vector<uint64_t>>& words) {
    ends_ = true;
    if (!open()) return;
    if (words) {
      farewell_ = *words;
      last_ = {0, kLastWordsTag, reinterpret_cast<char*>(farewell_.data()), farewell_.size() * sizeof(uint64_t), true};
      sends_.push_back(&last_);
    }
    finish_writing();
  }
  std::optional<std::vector<uint64_t>> last_words() const {
    const auto found = early_.find(kLastWordsTag);
    if (found == early_.end()) return std::nullopt;
    const std::vector<char>& bytes = found->second.front();
    std::vector<uint64_t> words(bytes.size() / sizeof(uint64_t));
    std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint64_t));
    return words;
  }
  /// Throws away what still comes. A socket that is closed with bytes unread takes back what it sent last.
  void drain() {
    if (open() && writes()) finish_writing();
    std::vector<char> bytes(1 << 16);
    while (open()) {
      const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), 0);
      if (got > 0 || (got < 0 && errno == EINTR)) continue;
      if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) gone_ = "closed";
      return;
    }
  }

 private:
  static void deliver(Request& request, const std::vector<char>& message) {
    const size_t bytes = std::min(message.size(), request.bytes);
    if (bytes > 0) std::memcpy(request.data, message.data(), bytes);
    finish(request, message.size());
  }

  static void finish(Request& request, uint64_t bytes) {
    if (bytes > request.bytes) {
      request.problem = "a message of " + std::to_string(bytes) + " bytes came where " + std::to_string(request.bytes) +
                        " were expected";
    }
    request.done = true;
  }

  /// The last message has been taken: the other end is to see that no other follows.
  void finish_writing() {
    write();
    if (open() && !writes()) shutdown(socket_, SHUT_WR);
  }

  void write() {
    while (!sends_.empty()) {
      Request& request = *sends_.front();
      Head head{request.bytes, request.tag};
      iovec parts[2] = {{&head, sizeof(head)}, {request.data, request.bytes}};
      size_t skip = sent_;
      for (iovec& part : parts) {
        const size_t here = std::min(skip, part.iov_len);
        part = {static_cast<char*>(part.iov_base) + here, part.iov_len - here};
        skip -= here;
      }
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      const ssize_t moved = ::sendmsg(socket_, &message, MSG_NOSIGNAL);
      if (moved < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        // The rank may have sent messages and its last words before it ended.
        const std::string problem = std::string("cannot send to it: ") + std::strerror(errno);
        if (!ends_) read();
        if (open()) gone_ = problem;
        return;
      }
      sent_ += static_cast<size_t>(moved);
      if (sent_ < sizeof(head) + request.bytes) continue;
      sent_ = 0;
      sends_.pop_front();
      request.done = true;
    }
  }

  void read() {
    for (;;) {
      if (!open()) return;
      if (got_ >= sizeof(Head) && got_ == sizeof(Head) + head_.bytes) end_message();
      const auto [place, room] = next_place();
      const ssize_t moved = ::recv(socket_, place, room, 0);
      if (moved <= 0) {
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        gone_ =
            moved == 0 ? "its connection has closed" : std::string("cannot receive from it: ") + std::strerror(errno);
        return;
      }
      got_ += static_cast<size_t>(moved);
      if (got_ == sizeof(Head)) begin_message();
    }
  }

  std::pair<char*, size_t> next_place() {
    if (got_ < sizeof(Head)) return {reinterpret_cast<char*>(&head_) + got_, sizeof(Head) - got_};
    const size_t begin = got_ - sizeof(Head);
    if (into_) return {into_->data + begin, head_.bytes - begin};
    if (drops_) {
      aside_.resize(kLeastGrowth);
      return {aside_.data(), std::min<size_t>(kLeastGrowth, head_.bytes - begin)};
    }
    if (aside_.size() <= begin) aside_.resize(std::min<size_t>(head_.bytes, begin + std::max(begin, kLeastGrowth)));
    return {aside_.data() + begin, aside_.size() - begin};
  }

  /// True for what a rank may send.
  static bool believable(const Head& head) {
    if (head.tag == kLastWordsTag) return head.bytes <= kMostLastWords;
    return head.tag >= 0 && head.tag <= Transport::kLastTag && head.bytes <= Transport::kPieceBytes;
  }

  void begin_message() {
    into_ = nullptr;
    drops_ = false;
    aside_.clear();
    if (!believable(head_)) {
      gone_ = "it has sent a message of " + std::to_string(head_.bytes) + " bytes with tag " +
              std::to_string(head_.tag) + ", which no rank does";
      return;
    }
    const auto posted = posted_.find(static_cast<int>(head_.tag));
    if (posted == posted_.end() || posted->second.empty()) return;
    Request* const request = posted->second.front();
    posted->second.pop_front();
    if (head_.bytes <= request->bytes) {
      into_ = request;
    } else {
      drops_ = true;  // the receive has failed, and what comes has no place
      finish(*request, head_.bytes);
    }
  }

  void end_message() {
    got_ = 0;
    if (drops_) return;
    if (into_) {
      finish(*std::exchange(into_, nullptr), head_.bytes);
      return;
    }
    const int tag = static_cast<int>(head_.tag);
    auto& posted = posted_[tag];
    if (posted.empty()) {
      early_[tag].push_back(std::exchange(aside_, {}));
    } else {
      deliver(*posted.front(), aside_);
      posted.pop_front();
    }
  }

  int socket_;
  std::string gone_;
  bool ends_ = false;  // this rank
  std::vector<uint64_t> farewell_;
  Request last_{};
  std::deque<Request*> sends_;
  size_t sent_ = 0;  // of the first, its head included
  Head head_{};
  size_t got_ = 0;           // of the message that comes in, its head included
  Request* into_ = nullptr;  // its place; null: aside_
  bool drops_ = false;       // its receive has failed
  std::vector<char> aside_;
  std::map<int, std::deque<Request*>> posted_;
  std::map<int, std::deque<std::vector<char>>> early_;
};

class SocketTransport final : public Transport {
 public:
  SocketTransport(int rank, const std::vector<int>& sockets) : rank_(rank) {
    for (const int socket : sockets) connections_.push_back(std::make_unique<Connection>(socket));
  }

  ~SocketTransport() override {
    for (const auto& one : connections_) one->say_goodbye(last_words_);
    const auto begin = std::chrono::steady_clock::now();
    auto written = begin;  // when nothing was left to write
    for (;;) {
      std::vector<pollfd> ready;
      bool writes = false;
      for (const auto& one : connections_) {
        one->drain();
        if (!one->open()) continue;
        ready.push_back({one->socket(), static_cast<short>(POLLIN | (one->writes() ? POLLOUT : 0)), 0});
        writes = writes || one->writes();
      }
      const auto now = std::chrono::steady_clock::now();
      if (writes) written = now;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(writes ? begin + kLastWordsWithin - now
                                                                                     : written + kLinger - now);
      if (ready.empty() || left.count() <= 0) return;
      ::poll(ready.data(), ready.size(), static_cast<int>(left.count()));
    }
  }

  const char* name() const override { return "tcp"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(connections_.size()); }
  bool any_thread() const override { return true; }

  void* send(const void* data, size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(mutex_);
    auto request = std::make_unique<Request>(
        Request{peer, tag, static_cast<char*>(const_cast<void*>(data)), bytes, /*sends=*/true});
    if (connections_[peer]->open()) connections_[peer]->send(request.get());
    return request.release();
  }

  void* receive(void* data, size_t bytes, int peer, int tag) override {
    const std::lock_guard lock(mutex_);
    auto request = std::make_unique<Request>(Request{peer, tag, static_cast<char*>(data), bytes, /*sends=*/false});
    connections_[peer]->receive(request.get());
    return request.release();
  }

  bool test(void*& request) override {
    const std::lock_guard lock(mutex_);
    auto* mine = static_cast<Request*>(request);
    Connection& connection = *connections_[mine->peer];
    if (!mine->done) connection.progress();
    // Whoever waits for this rank may be waited for elsewhere.
    if (!mine->done) progress_ready();
    if (mine->done) {
      const std::unique_ptr<Request> ended(std::exchange(mine, nullptr));
      request = nullptr;
      if (!ended->problem.empty()) throw CommError("from rank " + std::to_string(ended->peer) + ": " + ended->problem);
      return true;
    }
    if (!connection.gone().empty() && mine->tag != kNoteTag) {
      throw CommError("rank " + std::to_string(mine->peer) + " has ended or was lost\n  have  " + connection.gone() +
                      "\n  fix   look at what that rank said last");
    }
    return false;
  }

  std::vector<Gone> gone() override {
    const std::lock_guard lock(mutex_);
    progress_ready();
    std::vector<Gone> all;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != rank_ && !connections_[rank]->gone().empty()) all.push_back({rank, connections_[rank]->last_words()});
    }
    return all;
  }
  void give_last_words(std::vector<uint64_t> words) override {
    const std::lock_guard lock(mutex_);
    last_words_ = std::move(words);
  }

  void cancel(void*& request) override {
    const std::lock_guard lock(mutex_);
    const std::unique_ptr<Request> mine(static_cast<Request*>(request));
    request = nullptr;
    connections_[mine->peer]->withdraw(mine.get());
  }

 private:
  void progress_ready() {
    ready_.clear();
    for (const auto& one : connections_) {
      if (one->open()) ready_.push_back({one->socket(), static_cast<short>(POLLIN | (one->writes() ? POLLOUT : 0)), 0});
    }
    if (::poll(ready_.data(), ready_.size(), 0) <= 0) return;
    size_t at = 0;
    for (const auto& one : connections_) {
      if (one->open() && ready_[at++].revents != 0) one->progress();
    }
  }

  int rank_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> connections_;  // that of this rank itself has no socket
  std::vector<pollfd> ready_;
  std::optional<std::vector<uint64_t>> last_words_;
};

}  // namespace

TransportPtr make_socket_transport(int rank, std::vector<int> sockets) {
  return std::make_shared<SocketTransport>(rank, sockets);
}

}  // namespace moonhalo
