// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_memory.h"
#include "tests/support/fake_streams.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::fake {
namespace {

constexpr int kInvalidArgument = 4, kInvalidUsage = 5;
constexpr int kMax = 2, kMin = 3;
constexpr std::chrono::milliseconds kPollPause{1};

struct Mail {
  const char* data;
  size_t bytes;
  bool taken = false;
};

// A collective call as one rank makes it.
struct Part {
  enum Kind { kNone, kAllReduce, kReduceScatter, kAllGather, kBroadcast } kind = kNone;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  int type = 0, op = 0, root = 0;
  bool fits(const Part& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op && root == other.root;
  }
};

struct Meeting {
  std::vector<Part> parts;
  int here = 0;
  bool done = false;
};

// The ranks of one communicator.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int ranks = 0, joined = 0;
  bool shares_a_device = false;
  std::vector<int> devices;
  std::vector<void*> streams;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Mail>>> mail;  // by sender and receiver
  std::vector<uint64_t> calls;
  std::map<uint64_t, Meeting> meetings;
};

struct Member {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> error{NcclApi::kSuccess};
};
using MemberPtr = std::shared_ptr<Member>;

struct Call {
  MemberPtr member;
  NcclApi::Stream stream;
  bool sends = false, receives = false;
  char* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
  Part part = {};
  std::shared_ptr<std::vector<char>> read = {};
};

struct State {
  std::mutex mutex;
  std::condition_variable fault_taken_back;
  NcclFault fault;
  uint64_t fault_number = 0;
  NcclCounts counts;
  std::map<int, int> groups_of_rank;
  std::map<uint64_t, std::shared_ptr<Clique>> cliques;
  uint64_t next_id = 1;
  std::atomic<bool> reads_at_once{false};
};
State& state() {
  static auto* all = new State;
  return *all;
}

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};
thread_local Group group;

MemberPtr& member_of(NcclApi::Comm comm) { return *static_cast<MemberPtr*>(comm); }

// Returns when `ready`, else when the communicator is aborted (false). Streams of other ranks begin meanwhile.
template <typename Ready>
bool wait(Member& member, std::unique_lock<std::mutex>& lock, const Ready& ready) {
  Clique& clique = *member.clique;
  while (!ready()) {
    if (member.aborted) return false;
    const std::vector<void*> streams = clique.streams;
    lock.unlock();
    for (void* const stream : streams) {
      if (stream != nullptr) hurry(stream_of_handle(stream));
    }
    lock.lock();
    if (!ready() && !member.aborted) clique.changed.wait_for(lock, kPollPause);
  }
  return !member.aborted;
}

void wait_for_ever(Member& member) {
  std::unique_lock lock(member.clique->mutex);
  wait(member, lock, [] { return false; });
}

size_t size_of(int type) {
  switch (type) {
    case NcclApi::kInt8:
    case NcclApi::kUint8:
      return 1;
    case NcclApi::kFloat16:
    case NcclApi::kBfloat16:
      return 2;
    case NcclApi::kInt32:
    case NcclApi::kFloat32:
      return 4;
    default:
      return 8;
  }
}

at::ScalarType dtype_of(int type) {
  static const std::map<int, at::ScalarType> known = {
      {NcclApi::kInt8, at::kChar},      {NcclApi::kUint8, at::kByte},       {NcclApi::kInt32, at::kInt},
      {NcclApi::kInt64, at::kLong},     {NcclApi::kFloat16, at::kHalf},     {NcclApi::kFloat32, at::kFloat},
      {NcclApi::kFloat64, at::kDouble}, {NcclApi::kBfloat16, at::kBFloat16}};
  return known.at(type);
}

at::Tensor seen(const void* device_address, size_t count, int type) {
  return at::from_blob(kernel_view(device_address), {static_cast<int64_t>(count)}, at::TensorOptions(dtype_of(type)));
}

// Round the ring, from the rank after the one whose share it is, rounded at every step.
at::Tensor round_the_ring(const std::vector<Part>& parts, size_t begin, size_t count, size_t share) {
  const int ranks = static_cast<int>(parts.size());
  const auto of = [&](int rank) {
    return seen(parts[rank].in, begin + count, parts[rank].type).narrow(0, begin, count);
  };
  at::Tensor result = of((static_cast<int>(share) + 1) % ranks).clone();
  for (int step = 2; step <= ranks; ++step) {
    const at::Tensor next = of((static_cast<int>(share) + step) % ranks);
    switch (parts[0].op) {
      case NcclApi::kProduct:
        result.mul_(next);
        break;
      case kMax:
        result = at::fmax(result, next);
        break;
      case kMin:
        result = at::fmin(result, next);
        break;
      default:
        result.add_(next);
    }
  }
  if (parts[0].op == NcclApi::kAvg) result.div_(ranks);
  return result;
}

void carry_out(const std::vector<Part>& parts) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Part& any = parts[0];
  const size_t ranks = parts.size(), bytes = any.count * size_of(any.type);
  std::vector<at::Tensor> results;
  switch (any.kind) {
    case Part::kAllReduce:
      for (size_t r = 0; r < ranks; ++r) {
        const size_t begin = any.count * r / ranks, end = any.count * (r + 1) / ranks;
        results.push_back(round_the_ring(parts, begin, end - begin, r));
      }
      for (const Part& part : parts) seen(part.out, any.count, any.type).copy_(at::cat(results));
      return;
    case Part::kReduceScatter:
      for (size_t r = 0; r < ranks; ++r) results.push_back(round_the_ring(parts, any.count * r, any.count, r));
      for (size_t r = 0; r < ranks; ++r) seen(parts[r].out, any.count, any.type).copy_(results[r]);
      return;
    case Part::kAllGather:
      for (const Part& part : parts) {
        for (size_t r = 0; r < ranks; ++r)
          std::memcpy(static_cast<char*>(kernel_view(part.out)) + r * bytes, kernel_view(parts[r].in), bytes);
      }
      return;
    case Part::kBroadcast:
      for (const Part& part : parts) {
        if (&part != &parts[any.root]) std::memcpy(kernel_view(part.out), kernel_view(parts[any.root].in), bytes);
      }
      return;
    case Part::kNone:
      return;
  }
}

// The last rank to come works for all; where the calls do not fit together, nothing ever ends.
bool meet(Member& member, const Part& part) {
  Clique& clique = *member.clique;
  std::unique_lock lock(clique.mutex);
  Meeting& meeting = clique.meetings[clique.calls[member.rank]++];
  meeting.parts.resize(clique.ranks);
  meeting.parts[member.rank] = part;
  if (++meeting.here == clique.ranks &&
      std::all_of(meeting.parts.begin(), meeting.parts.end(), [&](const Part& other) { return other.fits(part); })) {
    carry_out(meeting.parts);
    meeting.done = true;
    clique.changed.notify_all();
  }
  return wait(member, lock, [&] { return meeting.done; });
}

bool swap_mail(Member& member, const std::vector<Call>& calls) {
  Clique& clique = *member.clique;
  std::vector<std::shared_ptr<Mail>> sent;
  std::unique_lock lock(clique.mutex);
  for (const Call& call : calls) {
    if (!call.sends) continue;
    const char* const from = call.read ? call.read->data() : static_cast<char*>(kernel_view(call.data));
    sent.push_back(std::make_shared<Mail>(Mail{from, call.bytes}));
    clique.mail[{member.rank, call.peer}].push_back(sent.back());
  }
  clique.changed.notify_all();
  for (const Call& call : calls) {
    if (!call.receives) continue;
    auto& box = clique.mail[{call.peer, member.rank}];
    if (!wait(member, lock, [&] { return !box.empty() && box.front()->bytes == call.bytes; })) return false;
    std::memcpy(kernel_view(call.data), box.front()->data, call.bytes);
    box.front()->taken = true;
    box.pop_front();
    clique.changed.notify_all();
  }
  return wait(member, lock,
              [&] { return std::all_of(sent.begin(), sent.end(), [](const auto& one) { return one->taken; }); });
}

void run(const std::vector<Call>& calls) {
  Member& member = *calls[0].member;
  for (const Call& call : calls) {
    if (call.part.kind != Part::kNone && !meet(member, call.part)) return;
  }
  swap_mail(member, calls);
}

// The part of the planted fault that is planted for this rank in the group that it posts now.
NcclFault fault_of(int rank) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  ++all.counts.groups;
  const int number = all.groups_of_rank[rank]++;
  const NcclFault& fault = all.fault;
  return fault.rank == rank && fault.group_at >= 0 && number >= fault.group_at ? fault : NcclFault{};
}

// Waits until the stream has come there.
void read_messages(std::vector<Call>& calls) {
  const c10::Stream stream = stream_of_handle(calls[0].stream);
  for (Call& call : calls) {
    if (!call.sends) continue;
    call.read = std::make_shared<std::vector<char>>(call.bytes);
    enqueue(stream, [to = call.read, from = call.data] { std::memcpy(to->data(), kernel_view(from), to->size()); });
  }
  finish(stream);
}

int post(std::vector<Call> calls) {
  const MemberPtr member = calls[0].member;
  const NcclFault fault = fault_of(member->rank);
  if (fault.refused) return NcclApi::kSystemError;
  void* const stream = calls[0].stream;
  {
    const std::lock_guard lock(member->clique->mutex);
    member->clique->streams[member->rank] = stream;
  }
  if (state().reads_at_once) read_messages(calls);
  if (fault.async_error) member->error = NcclApi::kRemoteError;
  if (fault.never_ends || fault.async_error) {
    enqueue(stream_of_handle(stream), [member] { wait_for_ever(*member); });
  } else {
    enqueue(stream_of_handle(stream), [calls = std::move(calls)] { run(calls); });
  }
  return NcclApi::kSuccess;
}

int add(Call call) {
  if (group.depth > 0) {
    group.calls.push_back(std::move(call));
    return NcclApi::kSuccess;
  }
  return post({std::move(call)});
}

const char* get_error_string(int result) {
  return result == NcclApi::kRemoteError ? "remote process exited" : "unhandled system error";
}
const char* get_last_error(NcclApi::Comm) { return "the double's"; }

int get_unique_id(NcclApi::UniqueId* id) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  std::memcpy(id->bytes, &all.next_id, sizeof(all.next_id));
  ++all.next_id;
  return NcclApi::kSuccess;
}

int comm_init_rank_config(NcclApi::Comm* comm, int ranks, NcclApi::UniqueId id, int rank, NcclApi::Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  State& all = state();
  auto member = std::make_shared<Member>();
  member->rank = rank;
  {
    const std::lock_guard lock(all.mutex);
    ++all.counts.inits;
    uint64_t key = 0;
    std::memcpy(&key, id.bytes, sizeof(key));
    std::shared_ptr<Clique>& clique = all.cliques[key];
    if (!clique) clique = std::make_shared<Clique>();
    member->clique = clique;
    if (all.fault.rank == rank && all.fault.init_fails) return NcclApi::kSystemError;
  }
  Clique& clique = *member->clique;
  const std::lock_guard lock(clique.mutex);
  *comm = new MemberPtr(member);
  clique.ranks = ranks;
  clique.streams.resize(ranks);
  clique.calls.resize(ranks);
  const int device = current_device();
  clique.shares_a_device =
      clique.shares_a_device || std::count(clique.devices.begin(), clique.devices.end(), device) > 0;
  clique.devices.push_back(device);
  if (all.fault.rank != rank || !all.fault.init_hangs) ++clique.joined;
  return NcclApi::kInProgress;
}

int comm_get_async_error(NcclApi::Comm comm, int* result) {
  const MemberPtr& member = member_of(comm);
  const std::lock_guard lock(member->clique->mutex);
  *result = member->error;
  if (member->clique->shares_a_device) {
    *result = kInvalidUsage;
  } else if (member->clique->joined < member->clique->ranks) {
    *result = NcclApi::kInProgress;
  }
  return NcclApi::kSuccess;
}

int comm_abort(NcclApi::Comm comm) {
  State& all = state();
  const MemberPtr member = member_of(comm);
  {
    std::unique_lock lock(all.mutex);
    ++all.counts.aborts;
    const uint64_t number = all.fault_number;
    if (all.fault.rank == member->rank && all.fault.abort_hangs)
      all.fault_taken_back.wait(lock, [&] { return all.fault_number != number; });
  }
  member->aborted = true;
  {
    const std::lock_guard lock(member->clique->mutex);
    member->clique->changed.notify_all();
  }
  delete static_cast<MemberPtr*>(comm);
  return NcclApi::kSuccess;
}

int comm_destroy(NcclApi::Comm comm) {
  {
    const std::lock_guard lock(state().mutex);
    ++state().counts.destroys;
  }
  delete static_cast<MemberPtr*>(comm);
  return NcclApi::kSuccess;
}

int group_start() {
  ++group.depth;
  return NcclApi::kSuccess;
}
int group_end() {
  if (--group.depth > 0 || group.calls.empty()) return NcclApi::kSuccess;
  return post(std::exchange(group.calls, {}));
}

// Messages of no bytes have no meaning there.
int send(const void* data, size_t count, int type, int peer, NcclApi::Comm comm, NcclApi::Stream stream) {
  const MemberPtr& member = member_of(comm);
  if (count == 0 || peer == member->rank) return kInvalidArgument;
  return add({member, stream, true, false, static_cast<char*>(const_cast<void*>(data)), count * size_of(type), peer});
}
int recv(void* data, size_t count, int type, int peer, NcclApi::Comm comm, NcclApi::Stream stream) {
  const MemberPtr& member = member_of(comm);
  if (count == 0 || peer == member->rank) return kInvalidArgument;
  return add({member, stream, false, true, static_cast<char*>(data), count * size_of(type), peer});
}
int collective(const Part& part, NcclApi::Comm comm, NcclApi::Stream stream) {
  Call call{member_of(comm), stream};
  call.part = part;
  return add(std::move(call));
}
int all_reduce(const void* in, void* out, size_t count, int type, int op, NcclApi::Comm comm, NcclApi::Stream stream) {
  return collective({Part::kAllReduce, in, out, count, type, op}, comm, stream);
}
int reduce_scatter(const void* in, void* out, size_t count, int type, int op, NcclApi::Comm comm,
                   NcclApi::Stream stream) {
  return collective({Part::kReduceScatter, in, out, count, type, op}, comm, stream);
}
int all_gather(const void* in, void* out, size_t count, int type, NcclApi::Comm comm, NcclApi::Stream stream) {
  return collective({Part::kAllGather, in, out, count, type}, comm, stream);
}
int broadcast(const void* in, void* out, size_t count, int type, int root, NcclApi::Comm comm, NcclApi::Stream stream) {
  return collective({Part::kBroadcast, in, out, count, type, 0, root}, comm, stream);
}

}  // namespace

const NcclApi& nccl() {
  static const NcclApi table = {get_error_string,
                                get_last_error,
                                get_unique_id,
                                comm_init_rank_config,
                                comm_get_async_error,
                                comm_abort,
                                comm_destroy,
                                group_start,
                                group_end,
                                send,
                                recv,
                                all_reduce,
                                reduce_scatter,
                                all_gather,
                                broadcast,
                                c10::kPrivateUse1};
  return table;
}

void plant(const NcclFault& fault) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.fault = fault;
  ++all.fault_number;
  all.groups_of_rank.clear();
  all.counts = {};
  all.fault_taken_back.notify_all();
}

WithNccl::WithNccl() {
  install();
  set_nccl_api(&nccl());
}
WithNccl::~WithNccl() { set_nccl_api(nullptr); }

void on_nccl_ranks(int ranks, const std::function<void(Communicator&)>& body, std::chrono::milliseconds limit) {
  const WithNccl here;
  const auto on_device = [&](Communicator& world) {
    exchange_device(world.rank());
    body(*make_device_communicator(world.shared_from_this(), device(world.rank()), DeviceLink::kNccl));
  };
  on_ranks(ranks, on_device, limit);
}

void read_at_once(bool on) { state().reads_at_once = on; }

NcclCounts nccl_counts() {
  const std::lock_guard lock(state().mutex);
  return state().counts;
}

}  // namespace moonhalo::testing::fake
