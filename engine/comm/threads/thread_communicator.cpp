// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/message_memory.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/threads/thread_group.h"

namespace moonhalo {
namespace {

// Small messages are not copied if the receiver lags behind by this number.
constexpr size_t kEagerMessages = 64;
constexpr int kSplit = CollectiveCall::kSplit;

using Pointers = c10::SmallVector<const void*, 16>;

const char* at_element(const void* data, int64_t element, size_t itemsize) {
  return static_cast<const char*>(data) + static_cast<size_t>(element) * itemsize;
}

int64_t offset_of(at::IntArrayRef counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// From any strides to any strides: what one rank thread does with the memory of another.
void copy_message(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_contiguous() && from.is_contiguous()) {
    return copy_bytes(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  to.copy_(from);
}

bool fits_receive(const at::Tensor& sent, const at::Tensor& expected) {
  return sent.scalar_type() == expected.scalar_type() && sent.numel() == expected.numel() &&
         (sent.sizes() == expected.sizes() || (sent.is_contiguous() && expected.is_contiguous()));
}

// "12 x Float", of several parts "12 + 3 x Float".
std::string sizes_of(at::TensorList tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += (text.empty() ? "" : " + ") + std::to_string(tensor.numel());
  return text + " x " + c10::toString(tensors[0].scalar_type());
}

class ThreadExchange final : public Work, public Pollable {
 public:
  struct Receive : Message {
    uint64_t number;
  };
  struct Send {
    int peer;
    std::shared_ptr<Envelope> envelope;
  };
  ThreadExchange(std::shared_ptr<ThreadGroup> hub, int rank, const CollectiveCall& call,
                 std::chrono::milliseconds timeout, std::vector<Receive> receives, std::vector<Send> sends)
      : group_(std::move(hub)),
        rank_(rank),
        call_(call),
        timeout_(timeout),
        receives_(std::move(receives)),
        sends_(std::move(sends)) {}

  // A dropped exchange is finished, or its messages would match the wrong receives. If that fails, so does the
  // group's next verb, with the reason.
  ~ThreadExchange() override {
    try {
      wait();
    } catch (const std::exception&) {
    }
  }

  void do_wait() override {
    try {
      finish_all(
          receives_, [this](const Receive& r) { return arrived(r); }, [this](const Receive& r) { take(r); });
      finish_all(sends_, delivered, [](const Send&) {});
    } catch (...) {
      withdraw();
      throw;
    }
  }

  bool ready() override {
    const auto may_come = [this](const auto& entry) {
      return !group_->world().ended[group_->world_rank(entry.peer)].load();
    };
    const auto missing = [&](const Receive& r) { return !arrived(r) && may_come(r); };
    const auto waiting = [&](const Send& s) { return !delivered(s) && may_come(s); };
    return group_->broken() || group_->world().aborted.load() ||
           (std::none_of(receives_.begin(), receives_.end(), missing) &&
            std::none_of(sends_.begin(), sends_.end(), waiting));
  }

 private:
  template <typename List>
  static std::vector<int> peers_of(const List& list) {
    std::vector<int> peers;
    for (const auto& entry : list) {
      if (std::find(peers.begin(), peers.end(), entry.peer) == peers.end()) peers.push_back(entry.peer);
    }
    return peers;
  }

  static bool delivered(const Send& send) { return send.envelope->state.load() == Envelope::kDelivered; }
  bool arrived(const Receive& receive) const { return group_->channel(receive.peer, rank_).posted() > receive.number; }

  // Whatever comes first. Only peers that still owe something may be missed when they end.
  template <typename Entry, typename Ready, typename Finish>
  void finish_all(std::vector<Entry>& entries, const Ready& ready, const Finish& finish) {
    const auto finish_if_ready = [&](const Entry& entry) {
      if (!ready(entry)) return false;
      finish(entry);
      return true;
    };
    for (;;) {
      entries.erase(std::remove_if(entries.begin(), entries.end(), finish_if_ready), entries.end());
      if (entries.empty()) return;
      group_->wait_for_peers(
          rank_, "exchange", timeout_, [&] { return std::any_of(entries.begin(), entries.end(), ready); },
          peers_of(entries), [this] { return call_.describe(); });
    }
  }

  void take(const Receive& receive) {
    const std::shared_ptr<Envelope> envelope = group_->channel(receive.peer, rank_).take(receive.number);
    TORCH_INTERNAL_ASSERT(envelope != nullptr, "exchange: message ", receive.number, " was taken twice");
    int posted = Envelope::kPosted;
    if (!envelope->state.compare_exchange_strong(posted, Envelope::kClaimed)) {
      group_->check(rank_, "exchange");
      TORCH_INTERNAL_ASSERT(false, "exchange: a message was withdrawn from a sound group");
    }
    const CallMark mark = envelope->mark;
    const uint64_t call = envelope->call;
    const at::TensorList sent = envelope->tensors, expected = receive.tensors();
    const bool fits = mark.tag == call_.mark.tag && sent.size() == expected.size() &&
                      std::equal(sent.begin(), sent.end(), expected.begin(), fits_receive);
    for (size_t i = 0; fits && i < sent.size(); ++i) copy_message(expected[i], sent[i]);
    const std::string misfit = fits ? "" : sizes_of(sent) + " sent, " + sizes_of(expected) + " expected";
    envelope->tensors.clear();
    envelope->state.store(Envelope::kDelivered);
    group_->wake(receive.peer);
    if (fits) return;
    if (mark.tag != call_.mark.tag) return refuse_call(receive.peer, mark, call);
    const std::string text =
        c10::str("exchange: a message from rank ", receive.peer, " does not fit its receive on rank ", rank_,
                 "\n  have  ", misfit, "\n  fix   messages of one pair of ranks match in the order of the lists");
    group_->fail(text, true);
    TORCH_CHECK_VALUE(false, text);
  }

  void refuse_call(int peer, const CallMark& mark, uint64_t number) {
    const std::string mine = call_.describe();
    std::string theirs = group_->peer_description(rank_, peer, number, [&mine] { return mine; });
    if (theirs.empty()) {
      CollectiveCall call{.kind = CommStats::kExchange, .number = number};
      theirs = call.text() + (mark.what != nullptr ? std::string(", in ") + mark.what : "");
    }
    const std::string text = rank_ < peer ? different_calls("exchange", rank_, mine, peer, theirs)
                                          : different_calls("exchange", peer, theirs, rank_, mine);
    group_->fail(text, true);
    group_->check(rank_, "exchange");
  }

  // After an error the caller may free its buffers, so no rank may still read them.
  void withdraw() {
    for (const Send& send : sends_) {
      int posted = Envelope::kPosted;
      if (send.envelope->state.compare_exchange_strong(posted, Envelope::kWithdrawn)) continue;
      group_->wait_without_timeout(rank_, [&] { return send.envelope->state.load() == Envelope::kDelivered; });
    }
    sends_.clear();
    receives_.clear();
  }

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  CollectiveCall call_;
  std::chrono::milliseconds timeout_;
  std::vector<Receive> receives_;
  std::vector<Send> sends_;
};

class ThreadsCommunicator final : public CommunicatorBackend {
 public:
  ThreadsCommunicator(std::shared_ptr<ThreadGroup> hub, int rank, std::shared_ptr<CommStats> stats)
      : CommunicatorBackend(rank, hub->size(), std::move(stats)), group_(std::move(hub)), next_receive_(size(), 0) {
    groups().add(this);
  }
  ~ThreadsCommunicator() override { groups().remove(this); }

  const char* backend() const override { return "threads"; }
  void set_time_limit(std::chrono::milliseconds limit) override { groups().set_timeout(limit); }
  bool takes_strided() const override { return true; }
  bool takes_parts() const override { return true; }
  void abort(const std::string& reason) override { group_->world().abort(reason); }
  void report_failure(const std::string& reason) override { abort(reason); }
  void note_device_call(uint64_t number) override { group_->note_device_call(rank(), number); }
  std::string peer_failure(uint64_t number) override { return group_->peer_failure(number); }
  void set_inactive(const std::vector<int>& ranks, bool inactive) override {
    for (const int rank : ranks) group_->world().set_inactive(group_->world_rank(rank), inactive);
  }
  bool is_broken() override { return group_->broken() || group_->world().aborted; }

 protected:
  void check_alive() const override {
    if (group_->world().aborted.load()) group_->check(rank(), "communicator");
  }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    begin(CommStats::kExchange);
    group_->check(rank(), "exchange");
    std::vector<ThreadExchange::Send> waiting;
    for (Message& message : sends) {
      Channel& channel = group_->channel(rank(), message.peer);
      auto envelope = std::make_shared<Envelope>();
      const at::TensorList tensors = message.tensors();
      if (message.nbytes() <= kCopiedMessageBytes && channel.waiting() < kEagerMessages) {
        for (const at::Tensor& tensor : tensors) {
          envelope->tensors.push_back(at::empty(tensor.sizes(), tensor.options().requires_grad(false)));
          copy_message(envelope->tensors.back(), tensor);
        }
      } else {
        envelope->tensors.append(tensors.begin(), tensors.end());
        waiting.push_back({message.peer, envelope});
      }
      envelope->mark = mark_;
      envelope->call = call_;
      channel.push(std::move(envelope));
      group_->wake(message.peer);
    }
    std::vector<ThreadExchange::Receive> expected;
    for (Message& message : receives) {
      const uint64_t number = next_receive_[message.peer]++;
      expected.push_back({std::move(message), number});
    }
    const CollectiveCall call{.kind = CommStats::kExchange, .number = call_, .mark = mark_};
    return std::make_unique<ThreadExchange>(group_, rank(), call, timeout(), std::move(expected), std::move(waiting));
  }

  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    begin(CommStats::kAllReduce);
    CollectiveSlot& mine = slot(data, static_cast<int>(op));
    const bool small = data.nbytes() <= CollectiveSlot::kInlineBytes;
    if (small) copy_in(mine, data);
    arrive();
    if (small) return reduce_elements(op, data.scalar_type(), inputs(0, 0), data.numel(), data.mutable_data_ptr());
    // Each rank reduces its own share of the elements and writes it into all ranks' tensors: read once, same bits.
    const int64_t n = data.numel();
    const int64_t begin = n * rank() / size();
    const int64_t end = n * (rank() + 1) / size();
    const Pointers sources = inputs(begin, data.itemsize());
    c10::SmallVector<void*, 16> destinations;
    for (const void* source : sources) destinations.push_back(const_cast<void*>(source));
    reduce_elements(op, data.scalar_type(), sources, end - begin, destinations);
    depart();
  }

  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    begin(CommStats::kAllGather);
    CollectiveSlot& mine = slot(in, 0, counts);
    const int64_t largest = *std::max_element(counts.begin(), counts.end());
    const bool small = static_cast<size_t>(largest) * in.itemsize() <= CollectiveSlot::kInlineBytes;
    if (small) copy_in(mine, in);
    mine.elements = 0;
    arrive();
    char* next = static_cast<char*>(out.mutable_data_ptr());
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = static_cast<size_t>(counts[r]) * in.itemsize();
      copy_bytes(next, slot_of(r).in, bytes);
      next += bytes;
    }
    if (!small) depart();
  }

  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    begin(CommStats::kReduceScatter);
    slot(in, static_cast<int>(op), counts);
    arrive();
    bool packed = out.is_contiguous();
    for (int r = 0; r < size(); ++r) packed = packed && slot_of(r).tensor->is_contiguous();
    if (!packed) {
      if (counts[rank()] > 0) reduce_strided(in, counts, out, op);
      depart();
      return;
    }
    reduce_elements(op, in.scalar_type(), inputs(offset_of(counts, rank()), in.itemsize()), counts[rank()],
                    out.mutable_data_ptr());
    depart();
  }

  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                     int64_t largest) override {
    begin(CommStats::kAllToAll);
    CollectiveSlot& mine = slot(in, 0);
    mine.elements = largest;
    mine.receive_counts.assign(receive_counts.begin(), receive_counts.end());
    mine.send_counts.assign(send_counts.begin(), send_counts.end());
    arrive();
    char* next = static_cast<char*>(out.mutable_data_ptr());
    for (int r = 0; r < size(); ++r) {
      const CollectiveSlot& theirs = slot_of(r);
      const size_t bytes = static_cast<size_t>(receive_counts[r]) * in.itemsize();
      copy_bytes(next, at_element(theirs.in, offset_of(theirs.send_counts, rank()), in.itemsize()), bytes);
      next += bytes;
    }
    depart();
  }

  void do_broadcast(at::Tensor& data, int root) override {
    begin(CommStats::kBroadcast);
    CollectiveSlot& mine = slot(data, 0);
    mine.root = root;
    const bool small = data.nbytes() <= CollectiveSlot::kInlineBytes;
    if (small && rank() == root) copy_in(mine, data);
    arrive();
    if (rank() != root) copy_bytes(data.mutable_data_ptr(), slot_of(root).in, data.nbytes());
    if (!small) depart();
  }

  void do_barrier() override {
    begin(CommStats::kBarrier);
    blank_slot();
    arrive();
  }

  CommunicatorPtr do_split(int color, int key) override {
    begin(kSplit);
    CollectiveSlot& mine = blank_slot();
    mine.color = color;
    mine.key = key;
    mine.made.reset();
    arrive();
    std::vector<std::tuple<int, int>> members;
    for (int r = 0; r < size(); ++r) {
      if (slot_of(r).color == color) members.emplace_back(slot_of(r).key, r);
    }
    std::sort(members.begin(), members.end());
    const int leader = std::get<1>(members.front());
    int new_rank = 0;
    std::vector<int> world_ranks;
    for (const auto& [member_key, r] : members) {
      if (r == rank()) new_rank = static_cast<int>(world_ranks.size());
      world_ranks.push_back(group_->world_rank(r));
    }
    CollectiveSlot& of_leader = slot_of(leader);
    if (rank() == leader) mine.made = std::make_shared<ThreadGroup>(group_->shared_world(), std::move(world_ranks));
    depart();
    std::shared_ptr<ThreadGroup> made = of_leader.made;
    depart();
    mine.made.reset();
    return std::make_shared<ThreadsCommunicator>(std::move(made), new_rank, shared_stats());
  }

 private:
  GroupList& groups() { return group_->world().groups[group_->world_rank(rank())]; }

  // The parts are runs of rows of the first dim, strided in the same way or not on the ranks, as is `out`.
  void reduce_strided(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) {
    const int64_t row = in.numel() / in.size(0), begin = offset_of(counts, rank()) / row;
    std::vector<at::Tensor> sources;
    for (int r = 0; r < size(); ++r) sources.push_back(slot_of(r).tensor->narrow(0, begin, out.size(0)));
    reduce_tensors(op, sources, out);
  }

  void begin(int kind) {
    kind_ = kind;
    mark_ = CallMark::now();
    group_->announce(rank(), ++call_, kind);
  }

  const char* verb() const { return kind_ == kSplit ? "split" : CommStats::name(static_cast<CommStats::Kind>(kind_)); }

  // The slot of this call: `slots_phase_` stays while the phases go on.
  CollectiveSlot& blank_slot() {
    slots_phase_ = phase_;
    CollectiveSlot& mine = group_->slot(rank(), slots_phase_);
    mine.call = call_;
    mine.kind = kind_;
    mine.mark = mark_;
    mine.op = mine.dtype = mine.root = 0;
    mine.elements = 0;
    mine.counts.clear();
    mine.receive_counts.clear();
    mine.in = nullptr;
    mine.tensor = nullptr;
    return mine;
  }

  CollectiveSlot& slot(const at::Tensor& data, int op, at::IntArrayRef counts = {}) {
    CollectiveSlot& mine = blank_slot();
    mine.op = op;
    mine.dtype = static_cast<int>(data.scalar_type());
    mine.elements = data.numel();
    mine.counts.assign(counts.begin(), counts.end());
    mine.in = data.const_data_ptr();
    mine.tensor = &data;
    return mine;
  }

  static void copy_in(CollectiveSlot& mine, const at::Tensor& data) {
    copy_bytes(mine.bytes, mine.in, data.nbytes());
    mine.in = mine.bytes;
  }

  CollectiveSlot& slot_of(int other) { return group_->slot(other, slots_phase_); }

  Pointers inputs(int64_t element, size_t itemsize) {
    Pointers pointers;
    for (int r = 0; r < size(); ++r) pointers.push_back(at_element(slot_of(r).in, element, itemsize));
    return pointers;
  }

  void arrive() {
    const auto describe = [this] { return call_of(rank()).describe(); };
    group_->arrive(rank(), phase_++, verb(), timeout(), describe);
    check_same_call(describe);
  }
  void depart() { group_->depart(rank(), phase_++); }

  CollectiveCall call_of(int other) {
    const CollectiveSlot& s = slot_of(other);
    return {s.kind, s.call, s.op, s.dtype, s.root, s.elements, s.counts, s.send_counts, s.receive_counts, s.mark};
  }

  // Every rank compares all slots, so that all ranks find the same error.
  void check_same_call(ThreadGroup::Describe describe) {
    const CollectiveSlot& first = slot_of(0);
    int odd = 0;
    for (int r = 1; r < size() && odd == 0; ++r) {
      const CollectiveSlot& s = slot_of(r);
      const bool same = s.kind == first.kind && s.call == first.call && s.op == first.op && s.dtype == first.dtype &&
                        s.root == first.root && s.elements == first.elements && s.counts == first.counts &&
                        s.mark.tag == first.mark.tag;
      if (!same) odd = r;
    }
    int other = 0;
    if (odd == 0 && kind_ == CommStats::kAllToAll) {
      for (int from = 0; from < size() && odd == 0; ++from) {
        for (int to = 0; to < size() && odd == 0; ++to) {
          if (slot_of(from).send_counts[to] != slot_of(to).receive_counts[from]) {
            odd = std::max(from, to);
            other = std::min(from, to);
          }
        }
      }
    }
    if (odd == 0) return;
    const std::vector<std::string> calls = group_->exchange_descriptions(rank(), describe);
    const std::string text = different_calls(verb(), other, calls[other], odd, calls[odd]);
    group_->fail(text, true);
    TORCH_CHECK_VALUE(false, text);
  }

  std::shared_ptr<ThreadGroup> group_;
  std::vector<uint64_t> next_receive_;
  CallMark mark_;
  uint64_t call_ = 0;
  uint64_t phase_ = 0;
  uint64_t slots_phase_ = 0;
  int kind_ = 0;
};

}  // namespace

CommunicatorPtr make_threads_communicator(std::shared_ptr<ThreadGroup> hub, int rank) {
  return std::make_shared<ThreadsCommunicator>(std::move(hub), rank, nullptr);
}

CommunicatorPtr make_self_communicator() {
  auto hub = std::make_shared<ThreadGroup>(std::make_shared<ThreadWorld>(1), std::vector<int>{0});
  return std::make_shared<ThreadsCommunicator>(std::move(hub), 0, nullptr);
}

}  // namespace moonhalo
