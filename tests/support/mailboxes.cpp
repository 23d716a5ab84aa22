// SPDX-License-Identifier: Apache-2.0
#include "tests/support/mailboxes.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "tests/support/patience.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing {
namespace {

struct Letter {
  char* data;
  size_t bytes;
  std::atomic<bool> done{false};
};

/// Messages that wait for their other end, by sender, receiver and tag.
class Mailboxes {
 public:
  std::shared_ptr<Letter> post(std::tuple<int, int, int> box, bool send, char* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto letter = std::make_shared<Letter>(data, bytes);
    auto& [sends, receives] = boxes_[box];
    (send ? sends : receives).push_back(letter);
    while (!sends.empty() && !receives.empty()) {
      Letter &from = *sends.front(), &to = *receives.front();
      if (from.bytes > to.bytes) throw CommError("a message is too long");
      if (from.bytes > 0) std::memcpy(to.data, from.data, from.bytes);
      from.done = to.done = true;
      sends.pop_front();
      receives.pop_front();
    }
    return letter;
  }
  void withdraw(const std::shared_ptr<Letter>& letter) {
    const std::lock_guard lock(mutex_);
    for (auto& [box, lists] : boxes_) std::erase(lists.second, letter);
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>,
           std::pair<std::deque<std::shared_ptr<Letter>>, std::deque<std::shared_ptr<Letter>>>>
      boxes_;
};

/// The head of a message of a verb is sent with its data, or before it.
constexpr size_t kLongBytes = 2048;

class Post final : public Transport {
 public:
  Post(std::shared_ptr<Mailboxes> boxes, int rank, int size) : boxes_(std::move(boxes)), rank_(rank), size_(size) {}
  int64_t messages = 0, bytes = 0;  // sent so far, heads included
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool any_thread() const override { return true; }
  void* send(const void* data, size_t length, int peer, int tag) override {
    messages += tag != kNoteTag && length < kLongBytes ? 1 : 0;
    bytes += tag != kNoteTag ? static_cast<int64_t>(length) : 0;
    return new std::shared_ptr<Letter>(
        boxes_->post({rank_, peer, tag}, true, static_cast<char*>(const_cast<void*>(data)), length));
  }
  void* receive(void* data, size_t bytes, int peer, int tag) override {
    return new std::shared_ptr<Letter>(boxes_->post({peer, rank_, tag}, false, static_cast<char*>(data), bytes));
  }
  bool test(void*& request) override {
    auto* letter = static_cast<std::shared_ptr<Letter>*>(request);
    if (!(*letter)->done) return false;
    delete letter;
    request = nullptr;
    return true;
  }
  void cancel(void*& request) override {
    auto* letter = static_cast<std::shared_ptr<Letter>*>(request);
    boxes_->withdraw(*letter);
    delete letter;
    request = nullptr;
  }

 private:
  std::shared_ptr<Mailboxes> boxes_;
  int rank_, size_;
};

}  // namespace

void with_transports(int ranks, const std::function<void(const TransportPtr&, Communicator& threads)>& body) {
  const auto boxes = std::make_shared<Mailboxes>();
  on_ranks(ranks, [&](Communicator& threads) { body(std::make_shared<Post>(boxes, threads.rank(), ranks), threads); });
}

void with_worlds(int ranks, int worlds, const std::function<void(std::vector<CommunicatorPtr>&)>& body) {
  with_transports(ranks, [&](const TransportPtr& post, Communicator& threads) {
    auto made = make_transport_communicators(post, worlds);
    for (auto& world : made) world->set_timeout(kHang);
    body(made);
    threads.barrier();
  });
}

std::vector<Sent> sent_in_world(int ranks, const std::function<void(Communicator&)>& body) {
  const auto boxes = std::make_shared<Mailboxes>();
  std::vector<Sent> sent(ranks);
  on_ranks(ranks, [&](Communicator& threads) {
    const auto post = std::make_shared<Post>(boxes, threads.rank(), ranks);
    const CommunicatorPtr world = make_transport_communicators(post, 1)[0];
    world->set_timeout(kHang);
    world->barrier();  // of heads alone
    const int64_t head = ranks == 1 ? 0 : post->bytes / post->messages;
    const int64_t messages = post->messages, bytes = post->bytes;
    body(*world);
    Sent& mine = sent[threads.rank()];
    mine.messages = post->messages - messages;
    mine.bytes = post->bytes - bytes - mine.messages * head;
    threads.barrier();
  });
  return sent;
}

}  // namespace moonhalo::testing
