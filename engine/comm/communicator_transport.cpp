// SPDX-License-Identifier: Apache-2.0
// The verbs from point-to-point messages alone.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "moonhalo/engine/comm/away.h"
#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/thread_support.h"
#include "moonhalo/engine/comm/transport_call.h"
#include "moonhalo/engine/comm/verb_tag.h"

namespace moonhalo {
namespace {

// Up to this size of all ranks' data together, an all_reduce is one all-gather.
constexpr size_t kGatherBytes = 64 * 1024;

int64_t sum(at::IntArrayRef counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }
const char* const_bytes_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }

class TransportExchange final : public Work {
 public:
  explicit TransportExchange(std::unique_ptr<TransportCall> call) : call_(std::move(call)) {}
  // A dropped exchange is finished, or its messages would meet the wrong receives.
  ~TransportExchange() override {
    if (call_ && call_->broken()) return;
    try {
      wait();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "moonhalo: in an exchange that nobody waited for: %s\n", error.what());
    }
  }
  void wait() override {
    if (!call_) return;
    const std::unique_ptr<TransportCall> call = std::move(call_);
    call->wait();
  }

 private:
  std::unique_ptr<TransportCall> call_;
};

class TransportCommunicator final : public Communicator,
                                    public HasTimeLimit,
                                    public PartsForAWhile,
                                    public ThreadSupport {
 public:
  TransportCommunicator(TransportGroup group, std::shared_ptr<CommStats> stats)
      : Communicator(group.rank, group.size(), std::move(stats)),
        group_(std::make_shared<const TransportGroup>(std::move(group))) {
    group_->world->calls[group_->tag] = 0;
    group_->world->groups.add(this);
  }
  ~TransportCommunicator() override { group_->world->groups.remove(this); }

  const char* backend() const override { return group_->hub->transport().name(); }

  // Ranks that wait hear of it within a moment, as of one that parts for good.
  void abort(const std::string& reason) override {
    if (!group_->world->aborted.empty()) return;
    group_->world->aborted = reason;
    group_->hub->part(*group_->world);
  }

  void set_time_limit(std::chrono::milliseconds limit) override { group_->world->groups.set_timeout(limit); }
  void part() override { group_->hub->part(*group_->world); }
  void come_back() override { ++group_->world->absence; }
  bool any_thread() const override { return group_->hub->transport().any_thread(); }

 protected:
  void check_alive() const override {
    if (!group_->world->aborted.empty()) throw CommError("communicator: aborted: " + group_->world->aborted);
  }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    auto call = begin({.kind = CommStats::kExchange});
    for (const Message& message : receives) {
      call->keep(message.data);
      call->receive(bytes_of(message.data), message.data.nbytes(), message.peer);
    }
    for (const Message& message : sends) {
      call->keep(message.data);
      call->send(const_bytes_of(message.data), message.data.nbytes(), message.peer);
    }
    return std::make_unique<TransportExchange>(std::move(call));
  }

  // In the order of ranks, as all backends do: all get the same bits.
  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    const VerbCall call = numbered(CommStats::kAllReduce, data, static_cast<int>(op), data.numel());
    if (data.nbytes() * size() <= kGatherBytes) {
      const at::Tensor all = at::empty({static_cast<int64_t>(data.nbytes()) * size()}, at::kByte);
      gather(call, data, const_bytes_of(data), bytes_of(all), std::vector<size_t>(size(), data.nbytes()));
      std::vector<const void*> sources;
      for (int r = 0; r < size(); ++r) sources.push_back(const_bytes_of(all) + data.nbytes() * r);
      reduce_elements(op, data.scalar_type(), sources, data.numel(), data.mutable_data_ptr());
      return;
    }
    std::vector<int64_t> shares;
    for (int r = 0; r < size(); ++r) shares.push_back(data.numel() * (r + 1) / size() - data.numel() * r / size());
    const int64_t mine = data.numel() * rank() / size();
    char* const part = bytes_of(data) + mine * data.itemsize();
    reduce_parts(call, data, shares, part, op);
    gather(call, data, part, bytes_of(data), sizes_of(shares, data.itemsize()));
  }

  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    gather(numbered(CommStats::kAllGather, in, 0, 0, counts), in, const_bytes_of(in), bytes_of(out),
           sizes_of(counts, in.itemsize()));
  }

  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    reduce_parts(numbered(CommStats::kReduceScatter, in, static_cast<int>(op), in.numel(), counts), in, counts,
                 out.mutable_data_ptr(), op);
  }

  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out,
                     at::IntArrayRef receive_counts) override {
    auto call = begin({.kind = CommStats::kAllToAll, .dtype = static_cast<int>(in.scalar_type())});
    call->keep(in);
    call->keep(out);
    char* to = bytes_of(out);
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = receive_counts[r] * in.itemsize();
      if (r != rank()) call->receive(to, bytes, r);
      to += bytes;
    }
    const char* from = const_bytes_of(in);
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = send_counts[r] * in.itemsize();
      if (r != rank()) call->send(from, bytes, r);
      if (r == rank() && bytes > 0)
        std::memmove(bytes_of(out) + sum(receive_counts.slice(0, r)) * in.itemsize(), from, bytes);
      from += bytes;
    }
    call->wait();
  }

  // A binomial tree that begins at the root.
  void do_broadcast(at::Tensor& data, int root) override {
    const VerbCall verb = numbered(CommStats::kBroadcast, data, 0, data.numel(), {}, root);
    const int place = (rank() - root + size()) % size();
    int step = 1;
    while (step <= place) step *= 2;
    if (place > 0) {
      auto call = begin_part(verb);
      call->keep(data);
      call->receive(bytes_of(data), data.nbytes(), (place - step / 2 + root) % size());
      call->wait();
    }
    auto call = begin_part(verb);
    call->keep(data);
    for (; place + step < size(); step *= 2) {
      call->send(const_bytes_of(data), data.nbytes(), (place + step + root) % size());
    }
    call->wait();
  }

  // After round k each rank has heard, by way of others, from 2^k ranks before it.
  void do_barrier() override {
    const VerbCall verb = number({.kind = CommStats::kBarrier});
    for (int step = 1; step < size(); step *= 2) {
      auto call = begin_part(verb);
      call->receive(nullptr, 0, (rank() - step + size()) % size());
      call->send(nullptr, 0, (rank() + step) % size());
      call->wait();
    }
  }

  CommunicatorPtr do_split(int color, int key) override {
    const at::Tensor mine = at::empty({3}, at::kLong), all = at::empty({3 * size()}, at::kLong);
    auto* words = mine.mutable_data_ptr<int64_t>();
    words[0] = color;
    words[1] = key;
    words[2] = group_->hub->next_tag();
    gather(number({.kind = VerbCall::kSplit}), mine, const_bytes_of(mine), bytes_of(all),
           std::vector<size_t>(size(), mine.nbytes()));
    std::vector<std::pair<int64_t, int>> chosen;  // key, rank
    int64_t tag = 0;
    for (int r = 0; r < size(); ++r) {
      const int64_t* theirs = all.const_data_ptr<int64_t>() + 3 * r;
      if (theirs[0] != color) continue;
      chosen.emplace_back(theirs[1], r);
      tag = std::max(tag, theirs[2]);
    }
    std::sort(chosen.begin(), chosen.end());
    group_->hub->take_tag(static_cast<int>(tag));
    TransportGroup part{group_->hub, group_->world, {}, 0, static_cast<int>(tag)};
    for (const auto& [their_key, r] : chosen) {
      if (r == rank()) part.rank = part.size();
      part.members.push_back(group_->members[r]);
    }
    return std::make_shared<TransportCommunicator>(std::move(part), shared_stats());
  }

 private:
  static std::vector<size_t> sizes_of(at::IntArrayRef counts, size_t item) {
    std::vector<size_t> sizes;
    for (const int64_t count : counts) sizes.push_back(count * item);
    return sizes;
  }

  /// One more call of this group.
  VerbCall number(VerbCall call) {
    const std::string& broken = group_->broken();
    TORCH_CHECK_VALUE(broken.empty(), call.verb(), ": the ranks of this group have parted ways before\n  have  ", broken);
    call.number = ++group_->world->calls[group_->tag];
    call.mark = CallMark::now();
    return call;
  }
  VerbCall numbered(int kind, const at::Tensor& data, int op, int64_t elements, at::IntArrayRef counts = {},
                    int root = 0) {
    return number({.kind = kind,
                   .op = op,
                   .dtype = static_cast<int>(data.scalar_type()),
                   .root = root,
                   .elements = elements,
                   .counts = counts});
  }
  /// The messages of a call, or of one of its rounds.
  std::unique_ptr<TransportCall> begin_part(const VerbCall& call) const {
    return std::make_unique<TransportCall>(group_, call, tag_of_call(call), timeout());
  }
  std::unique_ptr<TransportCall> begin(const VerbCall& call) { return begin_part(number(call)); }

  /// Sends `in`, which is memory of `owner`, to all, and puts what all send one after another to `out`.
  void gather(const VerbCall& verb, const at::Tensor& owner, const char* in, char* out,
              const std::vector<size_t>& sizes) {
    auto call = begin_part(verb);
    call->keep(owner);
    char* place = out;
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) call->receive(place, sizes[r], r);
      if (r == rank() && sizes[r] > 0) std::memmove(place, in, sizes[r]);
      place += sizes[r];
    }
    for (int step = 1; step < size(); ++step) call->send(in, sizes[rank()], (rank() + step) % size());
    call->wait();
  }

  /// Sends part r of `in` to rank r and reduces, in rank order, what comes for this rank into `out`.
  void reduce_parts(const VerbCall& verb, const at::Tensor& in, at::IntArrayRef counts, void* out, ReduceOp op) {
    const std::vector<size_t> sizes = sizes_of(counts, in.itemsize());
    const size_t mine = sizes[rank()];
    const at::Tensor arrived = at::empty({static_cast<int64_t>(mine) * size()}, at::kByte);
    auto call = begin_part(verb);
    call->keep(in);
    call->keep(arrived);
    std::vector<const void*> sources;
    for (int r = 0; r < size(); ++r) {
      sources.push_back(bytes_of(arrived) + mine * r);
      if (r != rank()) call->receive(bytes_of(arrived) + mine * r, mine, r);
    }
    const char* part = const_bytes_of(in);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) sources[r] = part;
      if (r != rank()) call->send(part, sizes[r], r);
      part += sizes[r];
    }
    call->wait();
    reduce_elements(op, in.scalar_type(), sources, counts[rank()], out);
  }

  TransportGroupPtr group_;
};

}  // namespace

std::vector<CommunicatorPtr> make_transport_communicators(const TransportPtr& transport, int worlds) {
  const auto hub = std::make_shared<TransportHub>(transport);
  std::vector<int> members(transport->size());
  std::iota(members.begin(), members.end(), 0);
  std::vector<CommunicatorPtr> made;
  for (int i = 0; i < worlds; ++i) {
    const auto world = std::make_shared<TransportWorld>();
    world->id = static_cast<uint64_t>(i);
    const int tag = hub->next_tag();
    hub->take_tag(tag);
    made.push_back(
        std::make_shared<TransportCommunicator>(TransportGroup{hub, world, members, transport->rank(), tag}, nullptr));
  }
  return made;
}

}  // namespace moonhalo
