// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/before_collective.h"
#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/comm_observer.h"
#include "moonhalo/engine/comm/message_counts.h"
#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/comm/sum_tree.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/comm/traffic.h"

namespace moonhalo {
namespace {

void check_counts(const char* verb, const char* what, at::IntArrayRef counts, int size) {
  TORCH_CHECK_VALUE(static_cast<int>(counts.size()) == size, verb, ": ", counts.size(), " ", what, " for ", size,
                    " ranks\n  have  ", what, " = ", counts, "\n  fix   give one count for each rank, zeros included");
  TORCH_CHECK_VALUE(std::all_of(counts.begin(), counts.end(), [](int64_t c) { return c >= 0; }), verb,
                    ": a negative count\n  have  ", what, " = ", counts, "\n  fix   counts are numbers of elements");
}

void check_largest(const char* what, at::IntArrayRef counts, int64_t largest) {
  TORCH_CHECK_VALUE(std::all_of(counts.begin(), counts.end(), [=](int64_t c) { return c <= largest; }),
                    "all_to_all: a part of more than ", largest, " elements\n  have  ", what, " = ", counts,
                    ", largest ", largest, "\n  fix   give the largest part of any rank, the same number on all ranks");
}

void check_elements(const char* verb, const char* what, const at::Tensor& tensor, int64_t required) {
  TORCH_CHECK_VALUE(tensor.numel() == required, verb, ": `", what, "` has ", tensor.numel(),
                    " elements, the counts say ", required, "\n  have  a tensor of shape ", tensor.sizes(),
                    "\n  fix   make the counts and `", what, "` agree");
}

void check_same_dtype(const char* verb, const at::Tensor& in, const at::Tensor& out) {
  TORCH_CHECK_TYPE(in.scalar_type() == out.scalar_type(), verb, ": `in` is ", in.scalar_type(), ", `out` is ",
                   out.scalar_type(),
                   "\n  have  two dtypes in one call\n  fix   allocate `out` with the dtype of `in`");
}

// Raw bytes where possible: autograd has no business here, and `in` may be `out`.
void copy_data(const at::Tensor& from, const at::Tensor& to) {
  if (from.numel() == 0 || from.const_data_ptr() == to.const_data_ptr()) return;
  const bool computed = !is_fake(from) && !is_fake(to);
  if (computed && from.device().is_cpu() && to.device().is_cpu() && from.is_contiguous() && to.is_contiguous()) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  to.detach().copy_(from.detach().view(to.sizes()));
}

class Finished final : public Work {
 protected:
  void do_wait() override {}
};

// Messages between this rank and itself never leave it: each send matches the receive in the same place.
void deliver_to_self(int rank, std::vector<Message>& sends, std::vector<Message>& receives) {
  const auto is_self = [rank](const Message& m) { return m.peer == rank; };
  std::vector<Message> from, to;
  std::copy_if(sends.begin(), sends.end(), std::back_inserter(from), is_self);
  std::copy_if(receives.begin(), receives.end(), std::back_inserter(to), is_self);
  TORCH_CHECK_VALUE(from.size() == to.size(), "exchange: rank ", rank, " sends ", from.size(),
                    " messages to itself and receives ", to.size(),
                    "\n  have  lists that do not match\n  fix   give one receive for each send");
  for (size_t i = 0; i < from.size(); ++i) {
    const at::TensorList sent = from[i].tensors(), expected = to[i].tensors();
    TORCH_CHECK_VALUE(sent.size() == expected.size(), "exchange: message ", i, " of rank ", rank,
                      " to itself does not fit its receive\n  have  ", sent.size(), " parts sent, ", expected.size(),
                      " expected\n  fix   give both the same parts");
    for (size_t k = 0; k < sent.size(); ++k) {
      TORCH_CHECK_VALUE(sent[k].numel() == expected[k].numel() && sent[k].scalar_type() == expected[k].scalar_type(),
                        "exchange: message ", i, " of rank ", rank, " to itself does not fit its receive\n  have  ",
                        sent[k].numel(), " x ", sent[k].scalar_type(), " sent, ", expected[k].numel(), " x ",
                        expected[k].scalar_type(), " expected\n  fix   give both the same size and dtype");
    }
  }
  for (size_t i = 0; i < from.size(); ++i) {
    for (size_t k = 0; k < from[i].tensors().size(); ++k) copy_data(from[i].tensors()[k], to[i].tensors()[k]);
  }
  if (from.empty()) return;
  sends.erase(std::remove_if(sends.begin(), sends.end(), is_self), sends.end());
  receives.erase(std::remove_if(receives.begin(), receives.end(), is_self), receives.end());
}

const std::pair<ReduceOp, const char*> kReduceOps[] = {{ReduceOp::kSum, "sum"},
                                                       {ReduceOp::kAvg, "avg"},
                                                       {ReduceOp::kMax, "max"},
                                                       {ReduceOp::kMin, "min"},
                                                       {ReduceOp::kProduct, "product"}};

}  // namespace

const char* name(ReduceOp op) {
  for (const auto& [known, text] : kReduceOps) {
    if (known == op) return text;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown ReduceOp ", static_cast<int>(op));
}

ReduceOp parse_reduce_op(const std::string& text) {
  for (const auto& [op, known] : kReduceOps) {
    if (text == known) return op;
  }
  static const std::map<std::string, std::string, std::less<>> kElsewhere = {
      {"mean", "avg"}, {"average", "avg"}, {"prod", "product"}, {"mul", "product"},
      {"add", "sum"},  {"amax", "max"},    {"maximum", "max"},  {"minimum", "min"}};
  TORCH_CHECK_VALUE(false, "reduce op: unknown name \"", text, "\"",
                    did_you_mean(text, {"sum", "avg", "max", "min", "product"}, kElsewhere), "\n  have  \"", text,
                    "\"\n  fix   use \"sum\", \"avg\", \"max\", \"min\" or \"product\"");
}

const char* CommStats::name(Kind kind) {
  static const char* const kNames[kKinds] = {"exchange",   "all_reduce", "all_gather", "reduce_scatter",
                                             "all_to_all", "broadcast",  "barrier"};
  return kNames[kind];
}

CommStats::Count CommStats::total() const {
  Count all;
  for (const Count& count : by_kind) {
    all.calls += count.calls;
    all.messages += count.messages;
    all.bytes += count.bytes;
  }
  return all;
}

bool Communicator::is_fake() const { return backend() == std::string_view("fake"); }

Communicator::Communicator(int rank, int size, std::shared_ptr<CommStats> stats)
    : rank_(rank),
      size_(size),
      timeout_(default_time_limit()),
      stats_(stats ? std::move(stats) : std::make_shared<CommStats>()) {
  TORCH_CHECK_VALUE(size > 0 && rank >= 0 && rank < size, "communicator: rank ", rank, " is not in a group of ", size,
                    "\n  have  rank ", rank, ", size ", size, "\n  fix   ranks count from 0 to size - 1");
}

void Communicator::check_tensor(const char* verb, const char* what, const at::Tensor& tensor, bool strided) const {
  TORCH_CHECK_VALUE(tensor.defined(), verb, ": `", what,
                    "` is an undefined tensor\n  have  no tensor\n  fix   give an "
                    "empty tensor where there is nothing to send");
  TORCH_CHECK_VALUE(!is_lazy(tensor), verb, ": `", what,
                    "` is conjugated, negated or zero by a mark alone, its memory holds other values",
                    "\n  have  shape ", tensor.sizes(),
                    "\n  fix   make it whole by resolve_conj() and resolve_neg(), or give a clone()");
  TORCH_CHECK_VALUE(strided || tensor.is_contiguous(), verb, ": `", what, "` is not contiguous\n  have  shape ",
                    tensor.sizes(), ", strides ", tensor.strides(), "\n  fix   make it contiguous() first");
  TORCH_CHECK_NOT_IMPLEMENTED(takes(tensor.device()), verb, ": the ", backend(), " communicator cannot send from ",
                              tensor.device(), "\n  have  `", what, "` on ", tensor.device(),
                              "\n  fix   move it to the CPU first, or use a backend for this device");
}

namespace {
using Counting = CommContext::Counting;
using Group = CommContext::Group;

Group& note_group(const Communicator& group) {
  auto& known = comm_context->groups;
  const auto found = known.find(&group);
  if (found != known.end() && !found->second.group.expired()) return found->second;
  std::erase_if(known, [](const auto& entry) { return entry.second.group.expired(); });
  return known[&group] = {group.weak_from_this()};
}

// In 0.618 of 2^64 no two of the first numbers come near each other.
uint64_t part_number(const Group& whole, int color) {
  return (whole.number * 31 + whole.splits * 1009 + static_cast<uint64_t>(color) + 2) * 0x9e3779b97f4a7c15ULL;
}

Traffic traffic_of(CommStats::Kind kind) {
  const bool reduces = kind == CommStats::kAllReduce || kind == CommStats::kReduceScatter;
  return traffic_now(reduces ? Traffic::kAllReduce : Traffic::kOther);
}

// One call of a verb, as the observer sees it. Without one it costs a branch.
class Observed {
 public:
  /// `data`: bytes of the tensor that is reduced or broadcast, of all blocks of a gather, of this rank's parts.
  Observed(CommStats::Kind kind, int64_t messages, int64_t bytes, const Communicator& group, size_t data, size_t item,
           int root = 0) {
    Counting& mine = comm_context->counting;
    if (mine.observer == nullptr) [[likely]]
      return;
    begin({.verb = kind,
           .bytes = mine.stats_pause > 0 ? 0 : bytes,
           .group = note_group(group).number,
           .rank = group.rank(),
           .size = group.size(),
           .ranks = &group,
           .messages = mine.stats_pause > 0 ? 0 : messages,
           .data = static_cast<int64_t>(data),
           .item = static_cast<int>(item),
           .root = root,
           .counted = mine.stats_pause == 0,
           .traffic = traffic_of(kind)});
  }
  Observed(int64_t bytes, const Communicator& group, const std::vector<Message>& sends,
           const std::vector<Message>& receives) {
    Counting& mine = comm_context->counting;
    if (mine.observer == nullptr) [[likely]]
      return;
    begin({.verb = CommStats::kExchange,
           .bytes = mine.stats_pause > 0 ? 0 : bytes,
           .group = note_group(group).number,
           .rank = group.rank(),
           .size = group.size(),
           .ranks = &group,
           .sends = parts(sends),
           .receives = parts(receives),
           .messages = mine.stats_pause > 0 ? 0 : static_cast<int64_t>(sends.size()),
           .data = bytes,
           .counted = mine.stats_pause == 0,
           .traffic = traffic_of(CommStats::kExchange)});
  }
  ~Observed() {
    if (observer_ != nullptr && observer_ == comm_context->counting.observer) observer_->end_call(this);
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
  CommObserver* observer() const { return observer_; }
  uint32_t call() const { return call_; }

 private:
  void begin(const CommObserver::Call& call) {
    observer_ = comm_context->counting.observer;
    call_ = observer_->begin_call(this, call);
  }
  static std::vector<CommObserver::Part> parts(const std::vector<Message>& messages) {
    std::vector<CommObserver::Part> all;
    for (const Message& message : messages) all.push_back({message.peer, message.nbytes()});
    return all;
  }

  CommObserver* observer_ = nullptr;
  uint32_t call_ = 0;
};

// Adds the time of a verb to CommStats::waited; verbs that a verb is made of are part of it.
class VerbTime {
 public:
  explicit VerbTime(CommStats* stats)
      : stats_(stats), is_outermost_(!std::exchange(comm_context->counting.inside_verb, true)) {
    if (is_outermost_) begin_ = std::chrono::steady_clock::now();
  }
  ~VerbTime() {
    if (!is_outermost_) return;
    comm_context->counting.inside_verb = false;
    if (stats_ != nullptr)
      stats_->waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  VerbTime(const VerbTime&) = delete;
  VerbTime& operator=(const VerbTime&) = delete;

 private:
  CommStats* stats_;
  bool is_outermost_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

CommObserver* set_comm_observer(CommObserver* observer) {
  return std::exchange(comm_context->counting.observer, observer);
}
CommObserver* comm_observer() { return comm_context->counting.observer; }

void Work::wait() {
  const std::shared_ptr<CommStats> stats = stats_;  // what waits may be destroyed by it
  const VerbTime time(stats.get());
  do_wait();
}

void set_before_collective(BeforeCollective hook) { comm_context->counting.before_collective = hook; }

ScopedStatsPause::ScopedStatsPause() { ++comm_context->counting.stats_pause; }
ScopedStatsPause::~ScopedStatsPause() { --comm_context->counting.stats_pause; }

int64_t bytes_sent_by_this_thread() { return comm_context->counting.bytes_sent; }

void Communicator::count(CommStats::Kind kind, int64_t messages, int64_t bytes) {
  Counting& mine = comm_context->counting;
  if (mine.before_collective) mine.before_collective();
  if (mine.stats_pause > 0) return;
  mine.bytes_sent += bytes;
  note_traffic(traffic_of(kind));
  CommStats::Count& count = stats_->by_kind[kind];
  ++count.calls;
  count.messages += messages;
  count.bytes += bytes;
}

WorkPtr Communicator::exchange_async(std::vector<Message> sends, std::vector<Message> receives) {
  check_alive();
  for (const auto* list : {&sends, &receives}) {
    for (const Message& message : *list) {
      TORCH_CHECK_VALUE(message.peer >= 0 && message.peer < size_, "exchange: rank ", message.peer,
                        " is not in this group of ", size_, "\n  have  peer ", message.peer, " in the list of rank ",
                        rank_, "\n  fix   peers are ranks of the group that the call is made on");
      const bool parts = !message.parts.empty();
      TORCH_CHECK_NOT_IMPLEMENTED(!parts || takes_parts(), "exchange: the ", backend(),
                                  " communicator sends no messages of several parts\n  have  ", message.parts.size(),
                                  " parts for rank ", message.peer, "\n  fix   ask takes_parts(), or pack them");
      for (const at::Tensor& tensor : message.tensors()) {
        check_tensor("exchange", list == &sends ? "send" : "receive", tensor, parts || takes_strided());
        check_same_dtype("exchange", message.tensors()[0], tensor);
      }
    }
  }
  deliver_to_self(rank_, sends, receives);
  if (size_ == 1) return std::make_unique<Finished>();
  int64_t bytes = 0;
  for (const Message& message : sends) bytes += message.nbytes();
  count(CommStats::kExchange, static_cast<int64_t>(sends.size()), bytes);
  const Observed observed(bytes, *this, sends, receives);
  const VerbTime time(stats_.get());
  WorkPtr work = do_exchange(std::move(sends), std::move(receives));
  if (observed.observer() != nullptr) work = observed_work(std::move(work), observed.observer(), observed.call());
  work->stats_ = stats_;
  return work;
}

void Communicator::exchange(std::vector<Message> sends, std::vector<Message> receives) {
  exchange_async(std::move(sends), std::move(receives))->wait();
}

const SumPlan& Communicator::sum_plan() {
  if (!sum_plan_) sum_plan_ = std::make_shared<const SumPlan>(size_);
  return *sum_plan_;
}

void Communicator::all_reduce(at::Tensor& data, ReduceOp op) {
  check_alive();
  check_tensor("all_reduce", "data", data);
  check_reducible("all_reduce", op, data.scalar_type());
  if (size_ == 1) return;
  const int64_t n = data.numel();
  const int64_t mine = n / size_ + (rank_ < n % size_ ? 1 : 0);
  const int64_t bytes = (n - mine + mine * (size_ - 1)) * static_cast<int64_t>(data.itemsize());
  const int64_t messages = messages_of_all_reduce(sum_plan(), rank_, data.nbytes());
  count(CommStats::kAllReduce, messages, bytes);
  const Observed observed(CommStats::kAllReduce, messages, bytes, *this, data.nbytes(), data.itemsize());
  const VerbTime time(stats_.get());
  do_all_reduce(data, op);
}

void Communicator::all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) {
  check_alive();
  check_tensor("all_gather", "in", in);
  check_tensor("all_gather", "out", out);
  check_counts("all_gather", "counts", counts, size_);
  check_elements("all_gather", "in", in, counts[rank_]);
  check_elements("all_gather", "out", out, c10::sum_integers(counts));
  check_same_dtype("all_gather", in, out);
  if (size_ == 1) return copy_data(in, out);
  const int64_t bytes = static_cast<int64_t>(in.nbytes()) * (size_ - 1);
  count(CommStats::kAllGather, rounds_of(size_), bytes);
  const Observed observed(CommStats::kAllGather, rounds_of(size_), bytes, *this, out.nbytes(), out.itemsize());
  const VerbTime time(stats_.get());
  do_all_gather(in, counts, out);
}

void Communicator::reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) {
  check_alive();
  check_tensor("reduce_scatter", "in", in, takes_strided());
  check_tensor("reduce_scatter", "out", out, takes_strided());
  check_counts("reduce_scatter", "counts", counts, size_);
  check_elements("reduce_scatter", "in", in, c10::sum_integers(counts));
  check_elements("reduce_scatter", "out", out, counts[rank_]);
  check_same_dtype("reduce_scatter", in, out);
  check_reducible("reduce_scatter", op, in.scalar_type());
  if (size_ == 1) return copy_data(in, out);
  const auto bytes = static_cast<int64_t>(in.nbytes() - out.nbytes());
  const int64_t messages = messages_of_reduce_scatter(sum_plan(), rank_);
  count(CommStats::kReduceScatter, messages, bytes);
  const Observed observed(CommStats::kReduceScatter, messages, bytes, *this, in.nbytes(), in.itemsize());
  const VerbTime time(stats_.get());
  do_reduce_scatter(in, counts, out, op);
}

void Communicator::all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out,
                              at::IntArrayRef receive_counts, int64_t largest) {
  check_alive();
  check_tensor("all_to_all", "in", in);
  check_tensor("all_to_all", "out", out);
  check_counts("all_to_all", "send_counts", send_counts, size_);
  check_counts("all_to_all", "receive_counts", receive_counts, size_);
  check_elements("all_to_all", "in", in, c10::sum_integers(send_counts));
  check_elements("all_to_all", "out", out, c10::sum_integers(receive_counts));
  check_same_dtype("all_to_all", in, out);
  TORCH_CHECK_VALUE(send_counts[rank_] == receive_counts[rank_], "all_to_all: rank ", rank_, " sends itself ",
                    send_counts[rank_], " elements and expects ", receive_counts[rank_],
                    "\n  have  send_counts = ", send_counts, ", receive_counts = ", receive_counts,
                    "\n  fix   give both the same own part");
  if (largest != kUnknown) {
    check_largest("send_counts", send_counts, largest);
    check_largest("receive_counts", receive_counts, largest);
  }
  if (size_ == 1) return copy_data(in, out);
  int64_t messages = 0;
  for (int r = 0; r < size_; ++r) messages += r != rank_ && send_counts[r] > 0 ? 1 : 0;
  if (goes_in_rounds(size_, largest, in.itemsize())) messages = rounds_of(size_);
  const int64_t bytes = (in.numel() - send_counts[rank_]) * static_cast<int64_t>(in.itemsize());
  count(CommStats::kAllToAll, messages, bytes);
  const Observed observed(CommStats::kAllToAll, messages, bytes, *this, in.nbytes(), in.itemsize());
  const VerbTime time(stats_.get());
  do_all_to_all(in, send_counts, out, receive_counts, largest);
}

void Communicator::broadcast(at::Tensor& data, int root) {
  check_alive();
  check_tensor("broadcast", "data", data);
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "broadcast: root ", root, " is not in this group of ", size_,
                    "\n  have  root ", root, "\n  fix   root is a rank of the group that the call is made on");
  if (size_ == 1) return;
  const int64_t messages = messages_of_broadcast(size_, (rank_ - root + size_) % size_);
  const int64_t bytes = messages * static_cast<int64_t>(data.nbytes());
  count(CommStats::kBroadcast, messages, bytes);
  const Observed observed(CommStats::kBroadcast, messages, bytes, *this, data.nbytes(), data.itemsize(), root);
  const VerbTime time(stats_.get());
  do_broadcast(data, root);
}

void Communicator::barrier() {
  check_alive();
  if (size_ == 1) return;
  count(CommStats::kBarrier, 0, 0);
  const Observed observed(CommStats::kBarrier, 0, 0, *this, 0, 1);
  const VerbTime time(stats_.get());
  do_barrier();
}

CommunicatorPtr Communicator::split(int color, int key) {
  check_alive();
  TORCH_CHECK_VALUE(color >= 0, "split: negative color\n  have  color ", color, " on rank ", rank_,
                    "\n  fix   ranks with the same color, 0 or more, become one group");
  if (comm_context->counting.before_collective && size_ > 1) comm_context->counting.before_collective();
  const VerbTime time(stats_.get());
  CommunicatorPtr part = do_split(color, key);
  Group& whole = note_group(*this);
  ++whole.splits;
  const uint64_t number = part_number(whole, color);
  note_group(*part).number = number;
  part->set_timeout(timeout_);
  return part;
}

at::Tensor Communicator::facts_of_all(const at::Tensor& mine) {
  const ComputedValues facts;  // in a dry run, too, however many ranks there are
  at::Tensor all = at::empty({size_, mine.numel()}, mine.options());
  at::Tensor flat = all.view({-1});
  all_gather(mine, std::vector<int64_t>(size_, mine.numel()), flat);
  if (is_fake()) all.copy_(mine.expand_as(all));
  return all;
}

std::vector<std::string> Communicator::all_gather_strings(const std::string& mine) {
  const ComputedValues facts;
  at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  const at::Tensor lengths = facts_of_all(length);
  const at::IntArrayRef counts(lengths.const_data_ptr<int64_t>(), size_);
  at::Tensor text = at::empty({static_cast<int64_t>(mine.size())}, at::kByte);
  if (!mine.empty()) std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor all = at::empty({c10::sum_integers(counts)}, at::kByte);
  all_gather(text, counts, all);
  if (is_fake()) return std::vector<std::string>(size_, mine);
  std::vector<std::string> strings;
  const char* next = static_cast<const char*>(all.const_data_ptr());
  for (const int64_t n : counts) {
    strings.emplace_back(n > 0 ? std::string(next, n) : std::string());
    next += n;
  }
  return strings;
}

}  // namespace moonhalo
