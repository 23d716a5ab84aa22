// SPDX-License-Identifier: Apache-2.0
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/fake/fake_subgroup.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/comm/message_memory.h"

namespace moonhalo {
namespace {

// Nothing is sent. The tensors are there until the exchange ends, as with real ranks.
class FakeExchange final : public Work {
 public:
  FakeExchange(std::vector<Message> sends, std::vector<Message> receives, at::Tensor copies)
      : sends_(std::move(sends)), receives_(std::move(receives)), copies_(std::move(copies)) {}
  void do_wait() override {
    copies_.reset();
    sends_.clear();
    receives_.clear();
  }

 private:
  std::vector<Message> sends_, receives_;
  at::Tensor copies_;
};

/// A fake rank, which all its groups share.
struct FakeRank {
  std::string backend;                                                 // that it would use; "": it is not known
  std::shared_ptr<RootFacts> facts;                                    // null: ranks share no facts
  std::map<std::pair<std::vector<int64_t>, int64_t>, uint64_t> calls;  // counts of facts_of_root, by group and root
};

// Own parts are put in their places, what others would send is zeros. Memory is taken as the real ranks would take it:
// processes pack messages, and have memory for the parts of sums that come; threads read each other's tensors, and copy
// small messages.
class FakeCommunicator final : public CommunicatorBackend {
 public:
  /// `world`: the ranks of the world that this group holds, in its order.
  FakeCommunicator(int rank, std::vector<int64_t> world, std::shared_ptr<FakeRank> of_rank,
                   std::shared_ptr<CommStats> stats = nullptr)
      : CommunicatorBackend(rank, static_cast<int>(world.size()), std::move(stats)),
        world_(std::move(world)),
        of_rank_(std::move(of_rank)) {}

  CommunicatorPtr part(const std::vector<int64_t>& ranks) const {
    std::vector<int64_t> world;
    for (const int64_t rank : ranks) world.push_back(world_.at(rank));
    const auto mine = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return std::make_shared<FakeCommunicator>(static_cast<int>(mine), std::move(world), of_rank_, shared_stats());
  }
  const std::vector<int64_t>& world() const { return world_; }
  const std::string& simulated() const { return of_rank_->backend; }

  std::vector<int64_t> facts_of(int root, std::vector<int64_t> mine) const {
    if (!of_rank_->facts) return mine;
    RootFacts::Call call{world_, world_.at(root)};
    call.number = of_rank_->calls[{world_, call.root}]++;
    if (root == rank() && !mine.empty()) of_rank_->facts->share(call, mine);
    if (root == rank() || !mine.empty()) return mine;
    return of_rank_->facts->read(call, world_.at(rank())).value_or(std::vector<int64_t>());
  }

  const char* backend() const override { return "fake"; }
  bool takes_strided() const override { return are_threads(); }
  bool takes_parts() const override { return are_threads(); }

  void abort(const std::string& reason) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (reason_.empty()) reason_ = reason;
    aborted_.store(true);
  }

 protected:
  void check_alive() const override {
    if (!aborted_.load()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    throw CommError("communicator: rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                    " stops: " + reason_);
  }
  bool takes(at::Device) const override { return true; }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    const at::Tensor* last = nullptr;
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors()) {
        if (last == nullptr || !tensor.is_same(*last)) clear(tensor);
        last = &tensor;
      }
    }
    at::Tensor copies = copies_of(sends);
    return std::make_unique<FakeExchange>(std::move(sends), std::move(receives), std::move(copies));
  }
  void do_all_reduce(at::Tensor& data, ReduceOp) override {
    take_memory(data, [&] { return memory_of_all_reduce(sum_plan(), rank(), data); });
  }
  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    take_memory(in, [&] { return memory_of_all_gather(rank(), counts, in.itemsize()); });
    place(in, 0, out, before(counts), counts[rank()]);
  }
  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp) override {
    take_memory(in, [&] { return memory_of_reduce_scatter(sum_plan(), rank(), counts, in.scalar_type()); });
    place(in, before(counts), out, 0, counts[rank()]);
  }
  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                     int64_t largest) override {
    take_memory(in, [&] { return memory_of_all_to_all(size(), largest, in.itemsize()); });
    place(in, before(send_counts), out, before(receive_counts), receive_counts[rank()]);
  }
  void do_broadcast(at::Tensor&, int) override {}
  void do_barrier() override {}
  CommunicatorPtr do_split(int, int) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "split: a fake communicator cannot know what the other ranks would give",
                                "\n  have  rank ", rank(), " of ", size(), " fake ranks",
                                "\n  fix   make the part directly: make_fake_subgroup(whole, ranks of the part)");
  }

 private:
  bool are_threads() const { return simulated() == "threads"; }

  // The memory of the small messages that threads copy.
  at::Tensor copies_of(const std::vector<Message>& sends) const {
    if (!are_threads()) return {};
    int64_t bytes = 0;
    for (const Message& message : sends) bytes += message.nbytes() <= kCopiedMessageBytes ? message.nbytes() : 0;
    const at::DisableRecordFunctionGuard unseen;
    return bytes > 0 ? empty_block({bytes}, at::kByte) : at::Tensor();
  }

  // For the peak.
  template <typename Bytes>
  void take_memory(const at::Tensor& data, const Bytes& bytes) const {
    if (are_threads() || !data.device().is_cpu()) return;
    const at::DisableRecordFunctionGuard unseen;
    empty_block({bytes()}, at::kByte);
  }

  int64_t before(at::IntArrayRef counts) const {
    return std::accumulate(counts.begin(), counts.begin() + rank(), int64_t{0});
  }

  // Zeros in the place of messages do not count as work of the program: profiles and tapes do not see it. Fake tensors
  // have no values.
  static void clear(const at::Tensor& data) {
    if (moonhalo::is_fake(data)) return;
    const at::DisableRecordFunctionGuard unseen;
    data.detach().zero_();
  }

  static void place(const at::Tensor& in, int64_t from, at::Tensor& out, int64_t to, int64_t count) {
    if (moonhalo::is_fake(in) || moonhalo::is_fake(out)) return;
    const at::DisableRecordFunctionGuard unseen;
    const at::Tensor own = in.detach().flatten().narrow(0, from, count).clone();
    at::Tensor flat = out.detach().view({-1});
    flat.zero_();
    flat.narrow(0, to, count).copy_(own);
  }

  const std::vector<int64_t> world_;
  const std::shared_ptr<FakeRank> of_rank_;
  mutable std::mutex mutex_;
  std::string reason_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

CommunicatorPtr make_fake_communicator(int rank, int ranks) { return make_fake_communicator(rank, ranks, nullptr); }

CommunicatorPtr make_fake_communicator(int rank, int ranks, std::shared_ptr<RootFacts> facts,
                                       const std::string& simulated) {
  std::vector<int64_t> world(ranks);
  std::iota(world.begin(), world.end(), int64_t{0});
  const auto of_rank = std::make_shared<FakeRank>();
  of_rank->facts = std::move(facts);
  of_rank->backend = simulated;
  return std::make_shared<FakeCommunicator>(rank, std::move(world), of_rank);
}

std::string simulated_backend(const Communicator& group) {
  const auto* fake = dynamic_cast<const FakeCommunicator*>(&group);
  TORCH_INTERNAL_ASSERT(fake != nullptr);
  return fake->simulated();
}

std::vector<int64_t> facts_of_root(const Communicator& group, int root, std::vector<int64_t> facts) {
  const auto* fake = dynamic_cast<const FakeCommunicator*>(&group);
  TORCH_INTERNAL_ASSERT(fake != nullptr);
  return fake->facts_of(root, std::move(facts));
}

CommunicatorPtr make_fake_subgroup(const Communicator& whole, const std::vector<int64_t>& ranks) {
  const auto* fake = dynamic_cast<const FakeCommunicator*>(&whole);
  TORCH_INTERNAL_ASSERT(fake != nullptr);
  CommunicatorPtr part = fake->part(ranks);
  // Recorders distinguish groups by their numbers, which split gives to other parts.
  comm_context->groups[part.get()] = {.group = part, .number = fingerprint_of(pretended_ranks(*part))};
  return part;
}

std::vector<int64_t> pretended_ranks(const Communicator& group) {
  const auto* fake = dynamic_cast<const FakeCommunicator*>(&group);
  return fake != nullptr ? fake->world() : std::vector<int64_t>();
}

}  // namespace moonhalo
