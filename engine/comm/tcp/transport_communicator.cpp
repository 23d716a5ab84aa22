// SPDX-License-Identifier: Apache-2.0
// The verbs from point-to-point messages alone.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "moonhalo/engine/comm/collective_rounds.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/diagnostics/collective_fingerprint.h"
#include "moonhalo/engine/comm/several_ranks.h"
#include "moonhalo/engine/comm/tcp/transport_call.h"

namespace moonhalo {
namespace {

class TransportCommunicator final : public CommunicatorBackend {
 public:
  TransportCommunicator(TransportGroup group, std::shared_ptr<CommStats> stats)
      : CommunicatorBackend(group.rank, group.size(), std::move(stats)),
        group_(std::make_shared<const TransportGroup>(std::move(group))) {
    {
      const std::lock_guard lock(group_->world->mutex);
      group_->world->calls[group_->tag] = 0;
    }
    group_->world->groups.add(this);
  }
  ~TransportCommunicator() override { group_->world->groups.remove(this); }

  const char* backend() const override { return group_->hub->transport().name(); }

  // Ranks that wait are notified within a moment, as of one that is suspended for good.
  void abort(const std::string& reason) override {
    if (!group_->world->aborted.empty()) return;
    group_->world->aborted = reason;
    group_->hub->suspend(*group_->world);
  }

  void set_time_limit(std::chrono::milliseconds limit) override { group_->world->groups.set_timeout(limit); }
  void suspend() override { group_->hub->suspend(*group_->world); }
  // Only where other threads may use the transport. A rank that fails then notifies the others by itself.
  void report_failure(const std::string&) override {
    if (any_thread()) suspend();
  }
  void note_device_call(uint64_t number) override { group_->hub->note_device_call(group_->tag, number); }
  std::string peer_failure(uint64_t number) override {
    const int rank = any_thread() ? group_->hub->missing(*group_->world, group_->tag, group_->members, number) : -1;
    return rank < 0 ? "" : "rank " + std::to_string(rank) + " of the world has failed, has ended or was lost";
  }
  void resume() override {
    const std::lock_guard lock(group_->world->mutex);
    group_->world->failed.clear();
    ++group_->world->absence;
  }
  int suspended_rank() override {
    constexpr uint64_t kAnyCall = std::numeric_limits<uint64_t>::max();
    group_->hub->poll();
    group_->hub->check_neighbours();
    return group_->hub->ended_rank(*group_->world, group_->tag, group_->members, kAnyCall);
  }
  bool any_thread() const override { return group_->hub->transport().any_thread(); }

 protected:
  void check_alive() const override {
    if (!group_->world->aborted.empty()) throw CommError("communicator: aborted: " + group_->world->aborted);
  }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    return start_exchange(begin({.kind = CommStats::kExchange}), sends, receives);
  }

  // In the order of all backends (sum_tree.h): all get the same bits.
  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    const CollectiveCall call = numbered(CommStats::kAllReduce, data, static_cast<int>(op), data.numel());
    all_reduce_rounds(*begin_part(call), sum_plan(), rank(), data, op);
  }

  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    const CollectiveCall call = numbered(CommStats::kAllGather, in, 0, 0, counts);
    all_gather_rounds(*begin_part(call), rank(), in, counts, out);
  }

  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    const CollectiveCall call = numbered(CommStats::kReduceScatter, in, static_cast<int>(op), in.numel(), counts);
    reduce_scatter_rounds(*begin_part(call), sum_plan(), rank(), in, counts, out, op);
  }

  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                     int64_t largest) override {
    const CollectiveCall call =
        number({.kind = CommStats::kAllToAll, .dtype = static_cast<int>(in.scalar_type()), .elements = largest});
    all_to_all_rounds(*begin_part(call), rank(), in, send_counts, out, receive_counts, largest);
  }

  // A binomial tree that begins at the root.
  void do_broadcast(at::Tensor& data, int root) override {
    const CollectiveCall verb = numbered(CommStats::kBroadcast, data, 0, data.numel(), {}, root);
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

  // After round k each rank has been notified, by way of others, by 2^k ranks before it.
  void do_barrier() override {
    const CollectiveCall verb = number({.kind = CommStats::kBarrier});
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
    all_gather_rounds(*begin({.kind = CollectiveCall::kSplit}), rank(), mine, std::vector<int64_t>(size(), 3), all);
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
  /// One more call of this group.
  CollectiveCall number(CollectiveCall call) {
    const std::string& broken = group_->broken();
    TORCH_CHECK_VALUE(broken.empty(), call.verb(), ": the ranks of this group have diverged before\n  have  ", broken);
    {
      const std::lock_guard lock(group_->world->mutex);
      call.number = ++group_->world->calls[group_->tag];
    }
    call.mark = CallMark::now();
    return call;
  }
  CollectiveCall numbered(int kind, const at::Tensor& data, int op, int64_t elements, at::IntArrayRef counts = {},
                          int root = 0) {
    return number({.kind = kind,
                   .op = op,
                   .dtype = static_cast<int>(data.scalar_type()),
                   .root = root,
                   .elements = elements,
                   .counts = counts});
  }
  /// The messages of a call.
  std::unique_ptr<TransportCall> begin_part(const CollectiveCall& call) const {
    return std::make_unique<TransportCall>(group_, call, fingerprint_of_call(call), timeout());
  }
  std::unique_ptr<TransportCall> begin(const CollectiveCall& call) { return begin_part(number(call)); }

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
  if (transport->size() > 1) note_several_ranks(library_loaded_at());
  return made;
}

}  // namespace moonhalo
