// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "moonhalo/engine/comm/collective_rounds.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/comm/missing_mpi.h"
#include "moonhalo/engine/comm/mpi/mpi_group.h"
#include "moonhalo/engine/comm/mpi/mpi_requests.h"
#include "moonhalo/engine/comm/mpi/mpi_start.h"
#include "moonhalo/engine/comm/several_ranks.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {
namespace {

constexpr int kExchangeTag = 1;
using Requests = MpiRequests;

class MpiCommunicator final : public CommunicatorBackend {
 public:
  MpiCommunicator(MpiGroupPtr group, std::shared_ptr<CommStats> stats)
      : CommunicatorBackend(group->rank(), group->size(), std::move(stats)),
        group_(std::move(group)),
        chunk_(chunk_bytes_from_environment()) {
    MPI_Query_thread(&thread_level_);
    group_->world().groups.add(this);
  }
  ~MpiCommunicator() override { group_->world().groups.remove(this); }

  const char* backend() const override { return "mpi"; }

  void abort(const std::string& reason) override { abort_with_status(reason, EXIT_FAILURE); }

  // Nothing less than MPI_Abort wakes a rank that waits inside of MPI.
  void abort_with_status(const std::string& reason, int status) override {
    std::fflush(nullptr);
    std::fprintf(stderr, "moonhalo: rank %d stops all ranks: %s\n", rank(), reason.c_str());
    std::fflush(stderr);
    if (const int theirs = group_->world().exit_notifier->status()) status = theirs;
    MPI_Abort(group_->world().comm->handle, status);
    std::_Exit(status);
  }

  void set_time_limit(std::chrono::milliseconds limit) override {
    group_->world().groups.set_timeout(limit);
    group_->world().exit_notifier->set_limit(limit);
  }

  void suspend() override {
    const MpiWorld& world = group_->world();
    world.exit_notifier->suspend(world.absence, world.group_ids);
  }
  // No report_failure: a rank's own thread notifies the others, by MPI_Abort or a note.
  void note_device_call(uint64_t number) override { group_->note_device_call(number); }
  std::string peer_failure(uint64_t number) override {
    if (!any_thread()) return "";
    const int rank = group_->failed_rank(number);
    return rank < 0 ? "" : "rank " + std::to_string(rank) + " of the world has failed or has ended";
  }
  void resume() override {
    MpiWorld& world = group_->world();
    world.exit_notifier->forget(world.absence);
    world.absence = combine_fingerprint(world.absence, 1);
  }

  std::string take_deadlock() override { return group_->world().exit_notifier->deadlock_detector().take_report(); }

  int suspended_rank() override {
    const UsesMpi mpi("communicator");
    return group_->suspended_rank();
  }

  bool any_thread() const override { return thread_level_ == MPI_THREAD_MULTIPLE; }

  bool set_check_calls(bool on) override {
    if (size() > 1) barrier();
    return std::exchange(group_->world().check_calls, on);
  }

  std::optional<bool> same_scope() override {
    if (size() == 1) return true;
    if (!group_->world().check_calls) return std::nullopt;
    check_alive();
    const UsesMpi mpi("barrier");
    group_->begin({.kind = CommStats::kBarrier}, MpiTraffic(0), /*may_differ=*/true);
    begin("barrier")->settle();
    return !group_->found_different();
  }

 protected:
  void check_alive() const override {
    UsesMpi::check_still("communicator");
    if (thread_level_ >= MPI_THREAD_SERIALIZED) return;
    int main_thread = 0;
    MPI_Is_thread_main(&main_thread);
    TORCH_CHECK_VALUE(main_thread != 0, "communicator: called from a thread that MPI does not allow to communicate",
                      "\n  have  MPI initialised without thread support, and a call from another thread",
                      "\n  fix   call from the thread that initialised MPI, or initialise it with MPI_THREAD_MULTIPLE");
  }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    const UsesMpi mpi("exchange");
    MpiTraffic traffic(size());
    for (const Message& m : receives) traffic.receive(m.peer, rank(), m.data.nbytes(), m.data.scalar_type());
    for (const Message& m : sends) traffic.send(rank(), m.peer, m.data.nbytes(), m.data.scalar_type());
    group_->begin({.kind = CommStats::kExchange}, traffic);
    return start_exchange(begin("exchange", kExchangeTag), sends, receives);
  }

  // Not MPI_Allreduce: this way ranks are added in the order of all backends (sum_tree.h), so that all give the
  // same bits; half, bfloat16, bool and NaN are treated in the same way; and no rank can get other bits than
  // another.
  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    const UsesMpi mpi("all_reduce");
    enter(CommStats::kAllReduce, data, static_cast<int>(op), data.numel());
    all_reduce_rounds(*begin("all_reduce"), sum_plan(), rank(), data, op);
  }

  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    const UsesMpi mpi("all_gather");
    enter(CommStats::kAllGather, in, 0, 0, counts);
    all_gather_rounds(*begin("all_gather"), rank(), in, counts, out);
  }

  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    const UsesMpi mpi("reduce_scatter");
    enter(CommStats::kReduceScatter, in, static_cast<int>(op), in.numel(), counts);
    reduce_scatter_rounds(*begin("reduce_scatter"), sum_plan(), rank(), in, counts, out, op);
  }

  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                     int64_t largest) override {
    const UsesMpi mpi("all_to_all");
    MpiTraffic traffic(size());
    for (int r = 0; r < size(); ++r) {
      traffic.send(rank(), r, send_counts[r], in.scalar_type());
      traffic.receive(r, rank(), receive_counts[r], in.scalar_type());
    }
    group_->begin({.kind = CommStats::kAllToAll,
                   .dtype = static_cast<int>(in.scalar_type()),
                   .elements = largest,
                   .send_counts = send_counts,
                   .receive_counts = receive_counts},
                  traffic);
    all_to_all_rounds(*begin("all_to_all"), rank(), in, send_counts, out, receive_counts, largest);
  }

  void do_broadcast(at::Tensor& data, int root) override {
    const UsesMpi mpi("broadcast");
    enter(CommStats::kBroadcast, data, 0, data.numel(), {}, root);
    for (size_t begin_byte = 0; begin_byte < data.nbytes(); begin_byte += chunk_) {
      const size_t bytes = std::min(chunk_, data.nbytes() - begin_byte);
      auto requests = begin("broadcast");
      requests->keep(data);
      check_mpi(MPI_Ibcast(bytes_of(data) + begin_byte, static_cast<int>(bytes), MPI_BYTE, root, group_->handle(),
                           requests->collective(bytes)),
                "broadcast", "MPI_Ibcast");
      requests->wait();
    }
    if (data.nbytes() == 0) begin("broadcast")->settle();
  }

  void do_barrier() override {
    const UsesMpi mpi("barrier");
    barrier_of(CommStats::kBarrier);
  }

  CommunicatorPtr do_split(int color, int key) override {
    const UsesMpi mpi("split");
    // MPI_Comm_split itself waits without a limit.
    if (size() > 1) barrier_of(CollectiveCall::kSplit);
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(group_->handle(), color, key, &part), "split", "MPI_Comm_split");
    auto group =
        std::make_shared<MpiGroup>(std::make_shared<OwnedComm>(part), group_->shared_world(), group_->next_id(color));
    return std::make_shared<MpiCommunicator>(std::move(group), shared_stats());
  }

 private:
  std::unique_ptr<Requests> begin(const char* verb) const { return begin(verb, group_->message_tag()); }
  std::unique_ptr<Requests> begin(const char* verb, int tag) const {
    return std::make_unique<Requests>(group_, verb, tag, timeout(), chunk_);
  }

  // Counts the call and, where calls are compared, starts that. It is sent beside the data, so that no round is
  // added; Requests::wait looks at it first, and where calls differ at nothing else: data that does not fit its
  // receive is never looked at.
  void enter(const CollectiveCall& call) { group_->begin(call); }
  void enter(int kind, const at::Tensor& data, int op, int64_t elements, at::IntArrayRef counts = {}, int root = 0) {
    enter({.kind = kind,
           .op = op,
           .dtype = static_cast<int>(data.scalar_type()),
           .root = root,
           .elements = elements,
           .counts = counts});
  }

  void barrier_of(int kind) {
    const CollectiveCall call{.kind = kind};
    enter(call);
    auto requests = begin(call.verb());
    // The comparing is a barrier itself.
    if (group_->world().check_calls) return requests->settle();
    check_mpi(MPI_Ibarrier(group_->handle(), requests->collective(0)), call.verb(), "MPI_Ibarrier");
    requests->wait();
  }

  MpiGroupPtr group_;
  size_t chunk_;
  int thread_level_ = MPI_THREAD_SINGLE;
};

bool on_all_ranks(bool mine, MPI_Comm comm, const char* maker) {
  const at::Tensor all = at::full({1}, mine ? 1 : 0, at::kInt);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, all.mutable_data_ptr(), 1, MPI_INT, MPI_MIN, comm, &request), maker,
            "MPI_Iallreduce");
  try {
    finish(request, maker, "MPI_Iallreduce");
  } catch (const CommError&) {
    new at::Tensor(all);  // MPI may still write to it
    throw;
  }
  return *all.const_data_ptr<int>() != 0;
}

// Where handles are addresses of objects, one may come as a `const void*` by mistake. All these objects begin with the
// same address, that of their class; a variable that holds a handle begins with another, the object's.
bool is_handle_itself(const void* mpi_comm) {
  if constexpr (std::is_pointer_v<MPI_Comm>) {
    if (mpi_comm == MPI_COMM_NULL) return true;
    const void *given = nullptr, *of_class = nullptr;
    std::memcpy(&given, mpi_comm, sizeof(given));
    std::memcpy(&of_class, static_cast<const void*>(MPI_COMM_WORLD), sizeof(of_class));
    return given == of_class;
  }
  return false;
}

void check_running(const char* maker) {
  TORCH_CHECK_VALUE(mpi_initialized() && !mpi_finalized(), maker, ": MPI is not running\n  have  a call ",
                    mpi_initialized() ? "after MPI_Finalize" : "before MPI_Init",
                    "\n  fix   initialise MPI first (in C++ make_mpi_world() does it), and finalise it last");
}

CommunicatorPtr wrap(MPI_Comm given, const char* maker) {
  check_running(maker);
  const UsesMpi mpi(maker);
  TORCH_CHECK_VALUE(given != MPI_COMM_NULL, maker, ": MPI_COMM_NULL is not a group of ranks\n  have  MPI_COMM_NULL",
                    "\n  fix   call it only on ranks that are in the communicator");
  const bool check_calls = check_calls_from_environment().value_or(true);
  auto world = std::make_shared<MpiWorld>();
  world->comm = std::make_shared<OwnedComm>(duplicate(given, maker));
  world->exit_notifier = MpiExitNotifier::of(world->comm->handle);
  world->check_calls = on_all_ranks(check_calls, world->comm->handle, maker);
  const uint64_t id = combine_fingerprint(fingerprint_of("world"), world->exit_notifier->next_world());
  world->absence = id;
  auto made = std::make_shared<MpiCommunicator>(std::make_shared<MpiGroup>(world->comm, world, id), nullptr);
  if (made->size() > 1) note_several_ranks(library_loaded_at());
  return made;
}

}  // namespace

bool has_mpi() { return true; }
std::string missing_mpi() { return ""; }
bool looks_for_mpi() { return false; }

CommunicatorPtr make_mpi_communicator(const void* mpi_comm) {
  check_library("make_mpi_communicator");
  TORCH_CHECK_VALUE(mpi_comm != nullptr, "make_mpi_communicator: no communicator\n  have  a null pointer",
                    "\n  fix   give the address of an MPI_Comm");
  TORCH_CHECK_VALUE(
      !is_handle_itself(mpi_comm),
      "make_mpi_communicator: a communicator itself, not its address\n  have  an MPI_Comm that became a const void*",
      "\n  fix   include <moonhalo/mpi_communicator.h>, which takes an MPI_Comm, or give the address of a variable "
      "that holds it");
  return wrap(*static_cast<const MPI_Comm*>(mpi_comm), "make_mpi_communicator");
}

CommunicatorPtr make_mpi_communicator_from_fortran(int mpi_fint) {
  check_library("make_mpi_communicator_from_fortran");
  check_running("make_mpi_communicator_from_fortran");  // before that MPI ends the program that asks for a handle
  return wrap(MPI_Comm_f2c(static_cast<MPI_Fint>(mpi_fint)), "make_mpi_communicator_from_fortran");
}

CommunicatorPtr make_mpi_world() {
  start_mpi();
  return wrap(MPI_COMM_WORLD, "make_mpi_world");
}

}  // namespace moonhalo
