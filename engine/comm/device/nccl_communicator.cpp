// SPDX-License-Identifier: Apache-2.0
// Tensors of devices by NCCL: everything is posted on one stream beside the computation, and nothing waits for it but
// that stream and those that come after.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>

#include "moonhalo/engine/comm/collective_messages.h"
#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/device/device_communicator.h"
#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/device/device_watch.h"
#include "moonhalo/engine/comm/device/nccl_comm.h"
#include "moonhalo/engine/comm/device/ordered_reduction.h"
#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/comm/pollable.h"

namespace moonhalo {
namespace {

using DeviceImpl = c10::impl::VirtualGuardImpl;
using EventPtr = std::shared_ptr<const c10::Event>;

c10::Stream current_stream(c10::Device device) { return DeviceImpl(device.type()).getStream(device); }

EventPtr mark(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

// NCCL's number for a dtype whose sums are right there: it has none for bools, complex numbers and 2-byte integers.
std::optional<int> summable(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return NcclApi::kInt8;
    case at::kByte:
      return NcclApi::kUint8;
    case at::kInt:
      return NcclApi::kInt32;
    case at::kLong:
      return NcclApi::kInt64;
    case at::kHalf:
      return NcclApi::kFloat16;
    case at::kFloat:
      return NcclApi::kFloat32;
    case at::kDouble:
      return NcclApi::kFloat64;
    case at::kBFloat16:
      return NcclApi::kBfloat16;
    default:
      return std::nullopt;
  }
}

// Not its max and min, which drop NaN.
std::optional<int> op_of(ReduceOp op) {
  if (op == ReduceOp::kSum) return NcclApi::kSum;
  if (op == ReduceOp::kProduct) return NcclApi::kProduct;
  if (op == ReduceOp::kAvg) return NcclApi::kAvg;
  return std::nullopt;
}

}  // namespace

// Shared by the groups of one rank. One stream serves all of them, so that their operations begin in one order.
struct NcclRank {
  static std::shared_ptr<NcclRank> of(const NcclApi& api, const CommunicatorPtr& host, c10::Device device);
  NcclRank(const NcclApi& api, CommunicatorPtr host, c10::Device device)
      : api(api),
        stream(DeviceImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        watch(std::move(host)) {}
  const NcclApi& api;
  c10::Stream stream;
  DeviceWatch watch;
};

std::shared_ptr<NcclRank> NcclRank::of(const NcclApi& api, const CommunicatorPtr& host, c10::Device device) {
  std::weak_ptr<NcclRank>& known = comm_context->nccl_ranks[{&host->stats(), device.index()}];
  std::shared_ptr<NcclRank> rank = known.lock();
  if (rank && &rank->api == &api && !rank->watch.failed()) return rank;
  rank = std::make_shared<NcclRank>(api, host, device);
  known = rank;
  return rank;
}

namespace {

// Messages on their way. What they need stays until the stream that it belongs to comes behind them.
class NcclExchange final : public Work, public Pollable {
 public:
  NcclExchange(std::shared_ptr<const NcclRank> rank, EventPtr done, std::vector<at::Tensor> kept,
               std::vector<std::pair<at::Tensor, at::Tensor>> to_host)
      : rank_(std::move(rank)),
        begun_on_(current_stream(rank_->stream.device())),
        done_(std::move(done)),
        kept_(std::move(kept)),
        to_host_(std::move(to_host)) {}
  ~NcclExchange() override {
    try {
      end();
    } catch (const c10::Error& error) {
      std::fprintf(stderr, "moonhalo: at the end of an exchange: %s\n", error.what_without_backtrace());
    }
  }
  bool ready() override { return !done_ || done_->query() || rank_->watch.failed(); }
  void do_wait() override {
    if (!done_) return;
    end();
    rank_->watch.check("exchange");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const auto& [from, to] : to_host_) to.detach().copy_(from);
    to_host_.clear();
  }

 private:
  void end() {
    if (!done_) return;
    const c10::Stream here = current_stream(rank_->stream.device());
    done_->block(begun_on_);
    if (here != begun_on_) done_->block(here);
    done_.reset();
    kept_.clear();
  }

  std::shared_ptr<const NcclRank> rank_;
  c10::Stream begun_on_;
  EventPtr done_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> to_host_;
};

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(CommunicatorPtr host, c10::Device device, std::shared_ptr<NcclRank> rank)
      : DeviceCommunicator(std::move(host), device), rank_(std::move(rank)) {
    backend_of(*this->host()).note_device_call(0);
  }
  // The device's library is not to be called at the end of the process, nor from there to wait for others.
  ~NcclCommunicator() override { close(); }

  const char* backend() const override { return "nccl"; }
  void abort(const std::string& reason) override {
    rank_->watch.fail(reason);
    host()->abort(reason);
  }
  void check_arrived() const override { check_alive(); }
  bool set_check_calls(bool on) override { return std::exchange(check_calls_, on); }

 protected:
  void check_alive() const override { rank_->watch.check("communicator"); }

  // All by NCCL, tensors of the host by way of the device: a rank cannot know where the other end's are, and one
  // that has no messages not even where its own would.
  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    std::vector<std::pair<at::Tensor, at::Tensor>> to_host;
    std::vector<at::Tensor> kept;
    for (Message& message : sends) {
      message.data = there(message.data);
      kept.push_back(message.data);
    }
    for (Message& message : receives) {
      if (message.data.is_cpu()) {
        to_host.emplace_back(at::empty_like(message.data, message.data.options().device(device())), message.data);
        message.data = to_host.back().first;
      }
      kept.push_back(message.data);
    }
    const auto moves = [](const Message& message) { return message.data.nbytes() > 0; };
    EventPtr done;
    CollectiveCall call{.kind = CommStats::kExchange};
    begin(call, sends, receives);
    if (std::any_of(sends.begin(), sends.end(), moves) || std::any_of(receives.begin(), receives.end(), moves)) {
      done = post(call, [&](NcclApi::Comm comm) {
        int result = NcclApi::kSuccess;
        for (const Message& m : receives) {
          if (moves(m)) keep_first(result, receive(comm, bytes_of(m.data), m.data.nbytes(), m.peer));
        }
        for (const Message& m : sends) {
          if (moves(m)) keep_first(result, send(comm, const_bytes_of(m.data), m.data.nbytes(), m.peer));
        }
        return result;
      });
    } else {
      comm();
      done = mark(rank_->stream);
    }
    return std::make_unique<NcclExchange>(rank_, std::move(done), std::move(kept), std::move(to_host));
  }

  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    if (data.is_cpu()) return on_host([&](Communicator& host) { host.all_reduce(data, op); });
    CollectiveCall call = call_of(CommStats::kAllReduce, data, op);
    begin(call);
    if (data.numel() == 0) return;
    if (!settings().ordered_reductions && op_of(op) && summable(data.scalar_type())) {
      return finish(post(call, [&](NcclApi::Comm comm) {
        void* const at = data.mutable_data_ptr();
        return rank_->api.all_reduce(at, at, data.numel(), *summable(data.scalar_type()), *op_of(op), comm, stream());
      }));
    }
    at::Tensor flat = data.detach().view({-1});
    std::vector<int64_t> shares = even_shares(flat.numel(), size());
    if (data.nbytes() * size() <= kGatherBytes) {
      const at::Tensor all = at::empty({size(), flat.numel()}, flat.options());
      at::Tensor to = all.view({-1});
      gather(call, flat, std::vector<int64_t>(size(), flat.numel()), to);
      return copy(reduced_in_order(op, all.unbind(0)), flat);
    }
    const at::Tensor mine = reduce_share(call, flat, shares, op);
    gather(call, mine, shares, flat);
  }

  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    if (in.is_cpu() && out.is_cpu()) return on_host([&](Communicator& host) { host.all_gather(in, counts, out); });
    CollectiveCall call = call_of(CommStats::kAllGather, in, ReduceOp::kSum);
    call.elements = 0;
    call.counts = counts;
    begin(call);
    into(out, [&](at::Tensor& to) { gather(call, there(in), counts, to); });
  }

  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    if (in.is_cpu() && out.is_cpu())
      return on_host([&](Communicator& host) { host.reduce_scatter(in, counts, out, op); });
    CollectiveCall call = call_of(CommStats::kReduceScatter, in, op);
    call.counts = counts;
    begin(call);
    const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return n == counts[0]; });
    into(out, [&](at::Tensor& to) {
      const at::Tensor from = there(in);
      if (settings().ordered_reductions || !even || !op_of(op) || !summable(in.scalar_type()))
        return copy(reduce_share(call, from, counts, op), to);
      if (counts[0] == 0) return;
      finish(post(call, [&](NcclApi::Comm comm) {
        return rank_->api.reduce_scatter(from.const_data_ptr(), to.mutable_data_ptr(), counts[0],
                                         *summable(in.scalar_type()), *op_of(op), comm, stream());
      }));
    });
  }

  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                     int64_t largest) override {
    if (in.is_cpu() && out.is_cpu())
      return on_host([&](Communicator& host) { host.all_to_all(in, send_counts, out, receive_counts, largest); });
    CollectiveCall call = call_of(CommStats::kAllToAll, in, ReduceOp::kSum);
    call.elements = largest;
    call.send_counts = send_counts;
    call.receive_counts = receive_counts;
    begin(call);
    into(out, [&](at::Tensor& to) { swap(call, there(in), send_counts, to, receive_counts); });
  }

  void do_broadcast(at::Tensor& data, int root) override {
    if (data.is_cpu()) return on_host([&](Communicator& host) { host.broadcast(data, root); });
    CollectiveCall call = call_of(CommStats::kBroadcast, data, ReduceOp::kSum);
    call.root = root;
    begin(call);
    if (data.numel() == 0) return;
    finish(post(call, [&](NcclApi::Comm comm) {
      void* const at = data.mutable_data_ptr();
      return rank_->api.broadcast(at, at, data.nbytes(), NcclApi::kInt8, root, comm, stream());
    }));
  }

  CommunicatorPtr do_split(int color, int key) override {
    auto part = std::make_shared<NcclCommunicator>(host()->split(color, key), device(), rank_);
    part->check_calls_ = check_calls_;
    part->set_why(why());
    return part;
  }

 private:
  static void keep_first(int& result, int next) {
    if (result == NcclApi::kSuccess || result == NcclApi::kInProgress) result = next;
  }
  NcclApi::Stream stream() const { return rank_->stream.native_handle(); }
  int send(NcclApi::Comm comm, const char* data, size_t bytes, int peer) const {
    return rank_->api.send(data, bytes, NcclApi::kInt8, peer, comm, stream());
  }
  int receive(NcclApi::Comm comm, char* data, size_t bytes, int peer) const {
    return rank_->api.recv(data, bytes, NcclApi::kInt8, peer, comm, stream());
  }

  template <typename Verb>
  void on_host(const Verb& verb) {
    const ScopedStatsPause inside;
    verb(*host());
  }
  at::Tensor there(const at::Tensor& tensor) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return tensor.is_cpu() ? tensor.detach().to(device()) : tensor;
  }
  template <typename Verb>
  void into(at::Tensor& out, const Verb& verb) {
    at::Tensor to = out.is_cpu() ? at::empty_like(out, out.options().device(device())) : out;
    verb(to);
    if (out.is_cpu()) copy(to, out);
  }
  static void copy(const at::Tensor& from, const at::Tensor& to) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    to.detach().copy_(from.detach());
  }

  static CollectiveCall call_of(int kind, const at::Tensor& data, ReduceOp op) {
    return {.kind = kind,
            .op = static_cast<int>(op),
            .dtype = static_cast<int>(data.scalar_type()),
            .elements = data.numel()};
  }

  // Made by the first verb that needs it, by all ranks together.
  NcclComm& comm() {
    if (comm_) return *comm_;
    comm_ = NcclComm::make(rank_->api, *host(), device());
    rank_->watch.add(comm_);
    at_rank_exit([group = std::weak_ptr<Communicator>(shared_from_this())] {
      if (const auto alive = group.lock()) static_cast<NcclCommunicator&>(*alive).close();
    });
    return *comm_;
  }

  // A rank that fails does not wait here for the others: they are notified later, and its device until then.
  void close() {
    if (!comm_) return;
    auto finish = [rank = rank_, comm = std::move(comm_)] {
      rank->watch.finish();
      if (!rank->watch.failed()) NcclComm::close(comm);
    };
    comm_ = nullptr;
    if (std::uncaught_exceptions() > 0) {
      std::thread(std::move(finish)).detach();
    } else {
      finish();
    }
  }

  // `calls` on the stream beside, after what has been computed so far.
  EventPtr post(CollectiveCall& call, c10::function_ref<int(NcclApi::Comm)> calls) {
    NcclComm& group = comm();
    call.mark = CallMark::now();
    const EventPtr ready = mark(current_stream(device()));
    ready->block(rank_->stream);
    const DeviceWatch::OperationPtr operation = rank_->watch.begin(host(), call, ready, timeout());
    try {
      group.post(call.verb(), rank_->watch, calls);
    } catch (const CommError& error) {
      rank_->watch.drop(operation);
      rank_->watch.fail(error.what());
      throw;
    }
    EventPtr done = mark(rank_->stream);
    rank_->watch.posted(operation, done);
    return done;
  }
  // All that is computed from now on comes after it.
  void finish(const EventPtr& done) const { done->block(current_stream(device())); }

  void gather(CollectiveCall& call, const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) {
    if (out.numel() == 0) return;
    const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return n == counts[0]; });
    if (even) {
      return finish(post(call, [&](NcclApi::Comm comm) {
        return rank_->api.all_gather(in.const_data_ptr(), out.mutable_data_ptr(), in.nbytes(), NcclApi::kInt8, comm,
                                     stream());
      }));
    }
    swap(call, in, std::vector<int64_t>(size(), counts[rank()]), out, counts, /*same_to_all=*/true);
  }

  // Part r of `in` goes to rank r, or all of it to all, and what comes from all is stored one after another in
  // `out`.
  void swap(CollectiveCall& call, const at::Tensor& in, at::IntArrayRef send_counts, const at::Tensor& out,
            at::IntArrayRef receive_counts, bool same_to_all = false) {
    const size_t item = in.itemsize();
    const auto begin_of = [](at::IntArrayRef counts, int rank) { return c10::sum_integers(counts.slice(0, rank)); };
    const auto from = [&](int rank) { return same_to_all ? 0 : begin_of(send_counts, rank); };
    const int64_t own = send_counts[rank()];
    if (own > 0) copy(in.narrow(0, from(rank()), own), out.narrow(0, begin_of(receive_counts, rank()), own));
    bool moves = false;
    for (int r = 0; r < size(); ++r) moves = moves || (r != rank() && send_counts[r] + receive_counts[r] > 0);
    if (!moves) return static_cast<void>(comm());
    finish(post(call, [&](NcclApi::Comm comm) {
      int result = NcclApi::kSuccess;
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        if (receive_counts[r] > 0)
          keep_first(result,
                     receive(comm, bytes_of(out) + begin_of(receive_counts, r) * item, receive_counts[r] * item, r));
        if (send_counts[r] > 0)
          keep_first(result, send(comm, const_bytes_of(in) + from(r) * item, send_counts[r] * item, r));
      }
      return result;
    }));
  }

  // Reduces part `rank` of all ranks' `in`.
  at::Tensor reduce_share(CollectiveCall& call, const at::Tensor& in, at::IntArrayRef counts, ReduceOp op) {
    const int64_t mine = counts[rank()];
    const at::Tensor all = at::empty({size(), mine}, in.options());
    swap(call, in, counts, all.view({-1}), std::vector<int64_t>(size(), mine));
    return reduced_in_order(op, all.unbind(0));
  }

  // Numbers the call, also where this rank moves nothing. Calls are compared only where it is asked for
  // (MOONHALO_CHECK_CALLS=1, set_check_calls), since the host waits for it.
  void begin(CollectiveCall& call, const std::vector<Message>& sends = {}, const std::vector<Message>& receives = {}) {
    call.number = ++calls_;
    backend_of(*host()).note_device_call(call.number);
    if (check_calls_) compare_calls(*host(), call, sends, receives);
  }

  std::shared_ptr<NcclRank> rank_;
  std::shared_ptr<NcclComm> comm_;
  uint64_t calls_ = 0;
  bool check_calls_ = check_calls_from_environment().value_or(false);
};

}  // namespace

bool set_ordered_reductions(bool ordered) { return std::exchange(base_context->settings.ordered_reductions, ordered); }

std::shared_ptr<DeviceCommunicator> make_nccl_communicator(CommunicatorPtr host, c10::Device device) {
  const NcclFound& found = find_nccl();
  TORCH_CHECK_NOT_IMPLEMENTED(found.api != nullptr, "device communicator: there is no NCCL here\n  have  ", found.text,
                              "\n  fix   install it, name its file in MOONHALO_NCCL, or take --backend staged");
  auto rank = NcclRank::of(*found.api, host, device);
  return std::make_shared<NcclCommunicator>(std::move(host), device, std::move(rank));
}

}  // namespace moonhalo
