// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace moonhalo {

/// The reductions over ranks. kAvg is the sum divided by the number of ranks.
enum class ReduceOp : uint8_t { kSum, kAvg, kMax, kMin, kProduct };
/// Returns "sum" | "avg" | "max" | "min" | "product". Not collective.
const char* name(ReduceOp op);
/// Parses "sum" | "avg" | "max" | "min" | "product". Throws ValueError for any other string. Not collective.
ReduceOp parse_reduce_op(const std::string& text);

/// One point-to-point message, sent or received. `data` has any dtype. It is contiguous, unless takes_strided() is
/// true; if either end is not contiguous, both ends give the same shape. The receiver gives the size in advance.
struct Message {
  /// The rank in the group that sends or receives.
  int peer;
  at::Tensor data;
  /// If takes_parts() is true, a message may hold several tensors of one dtype and any strides instead; `data` is then
  /// undefined. Both ends give the same number of tensors with the same shapes.
  std::vector<at::Tensor> parts = {};

  /// Returns the parts, or `data` alone; and their bytes. Not collective.
  at::TensorList tensors() const { return parts.empty() ? at::TensorList(data) : at::TensorList(parts); }
  int64_t nbytes() const {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }
};

/// Counts calls, messages and bytes by kind of collective, in the same way for every backend. Messages are those
/// that this rank sends over MPI or TCP (docs/clusters.md). Bytes are counted as if each part went directly to the
/// rank that needs it (all_reduce: a reduce-scatter and an all-gather). A group of one rank counts nothing, and so
/// does a barrier.
struct CommStats {
  /// The kinds of collectives; kKinds is their number.
  enum Kind { kExchange, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kBarrier, kKinds };
  /// The counts of one kind: `calls`, `messages` and `bytes`.
  struct Count {
    int64_t calls = 0;
    int64_t messages = 0;
    int64_t bytes = 0;
  };
  /// The counts by Kind; the name of a kind, such as "all_reduce"; the sum of all kinds. Not collective.
  std::array<Count, kKinds> by_kind;
  /// Seconds that this rank was inside of verbs: what it waited for others, and what moving and reducing data took it.
  /// Of exchanges these are the beginning and Work::wait(). On devices whose verbs do not block the host (NCCL), only
  /// the host's time counts.
  double waited = 0;
  static const char* name(Kind kind);
  Count total() const;
};

/// Returns the bytes that this thread has sent through all communicators so far, counted as in CommStats. Not
/// collective.
int64_t bytes_sent_by_this_thread();

class SumPlan;

/// A collective in progress. It keeps the tensors of the call alive until it ends.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the data has arrived and the send buffers may be reused. Throws CommError on timeout or abort.
  void wait();

 protected:
  virtual void do_wait() = 0;

 private:
  friend class Communicator;
  std::shared_ptr<CommStats> stats_;  // of the communicator that began it
};
/// Owns a collective in progress.
using WorkPtr = std::unique_ptr<Work>;

/// A group of ranks and its collectives. Counts are numbers of elements per rank and may be zero. With 3 ranks and
/// counts {2, 0, 3}:
///
///     all_gather(in, counts, out)       in: [1 2], [], [3 4 5]    out: [1 2 3 4 5] on every rank
///     reduce_scatter(in, counts, out)   in: [1 2 3 4 5] on every rank
///                                       out: [3 6] on rank 0, [] on rank 1, [9 12 15] on rank 2
///
/// The backends are rank threads, MPI, TCP, a transport of the host program, NCCL, staged (device tensors through host
/// memory) and fake (nothing is sent).
///
/// The exchanges, all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier, split and all_gather_strings
/// are collectives: all ranks of the group must call them in the same order (check_calls.h checks this). A rank with
/// nothing to send calls exchange with empty lists. `counts` must be equal on all ranks. Tensors are contiguous (see
/// takes_strided for exceptions). A collective on a group of one rank is the identity. Throws ValueError for sizes that
/// do not fit, before anything is sent, and CommError if a rank is lost, aborts or does not respond within the timeout.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  virtual ~Communicator() = default;

  /// The number of this rank in the group, from 0, and the number of ranks.
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns "threads" | "mpi" | "tcp" | "transport" | "staged" | "nccl" | "fake".
  virtual const char* backend() const = 0;
  /// True if nothing is computed or sent, as in planning.
  bool is_fake() const;
  /// True if these calls take non-contiguous tensors without packing: exchange, and reduce_scatter if its parts are
  /// rows of dim 0.
  virtual bool takes_strided() const { return false; }
  /// True if exchange takes messages of several parts, which are copied directly from source to destination.
  virtual bool takes_parts() const { return false; }

  /// Posts all receives, then all sends. Messages between a pair of ranks match in order. Collective.
  WorkPtr exchange_async(std::vector<Message> sends, std::vector<Message> receives);
  void exchange(std::vector<Message> sends, std::vector<Message> receives);

  /// Reduces `data` in place, to the same bits on every rank. Collective.
  void all_reduce(at::Tensor& data, ReduceOp op = ReduceOp::kSum);
  /// Concatenates the ranks' blocks in rank order: `in` is flat with counts[rank] elements, `out` is flat with
  /// sum(counts) elements. Collective.
  void all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out);
  /// Reduces `in` (flat, sum(counts) elements) over the ranks; each rank receives its own part in `out` (flat,
  /// counts[rank] elements). Collective.
  void reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op = ReduceOp::kSum);
  /// Sends send_counts[r] elements of `in` to rank r and receives receive_counts[r] elements of `out` from it.
  /// `largest`: no part of any rank has more elements; the same number on all ranks. Short parts are then sent
  /// together. Collective.
  void all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                  int64_t largest = kUnknown);
  static constexpr int64_t kUnknown = -1;
  void broadcast(at::Tensor& data, int root);
  void barrier();

  /// Returns the group of the ranks that pass the same `color`, ordered by `key`, then by rank. Collective.
  std::shared_ptr<Communicator> split(int color, int key);

  /// Returns the strings of all ranks in rank order. For small strings: error messages and set-up. The other ranks of a
  /// fake communicator have `mine`, too. Collective.
  std::vector<std::string> all_gather_strings(const std::string& mine);
  /// Returns the facts of all ranks in rank order, one row for each; `mine` is flat and has the same size and dtype on
  /// all of them. For numbers by which all ranks decide. The other ranks of a fake communicator have `mine`,
  /// too, where all_gather would give zeros. Collective.
  at::Tensor facts_of_all(const at::Tensor& mine);

  /// Makes blocked calls on all ranks of this world throw CommError with `reason`. Any thread may call it. Not
  /// collective.
  virtual void abort(const std::string& reason) = 0;

  /// Sets the longest time that a collective waits for a peer that does not respond. The default is MOONHALO_TIMEOUT_S
  /// seconds, or 10 minutes.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Returns the counts of this rank over this group and all groups split from it, which share one counter.
  const CommStats& stats() const { return *stats_; }
  void reset_stats() { *stats_ = {}; }

 protected:
  Communicator(int rank, int size, std::shared_ptr<CommStats> stats = nullptr);

  virtual WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) = 0;
  virtual void do_all_reduce(at::Tensor& data, ReduceOp op) = 0;
  virtual void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) = 0;
  virtual void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) = 0;
  virtual void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out,
                             at::IntArrayRef receive_counts, int64_t largest) = 0;
  virtual void do_broadcast(at::Tensor& data, int root) = 0;
  virtual void do_barrier() = 0;
  virtual std::shared_ptr<Communicator> do_split(int color, int key) = 0;
  /// Throws CommError if the world has been aborted. Called before every collective, also in a group of one rank.
  virtual void check_alive() const {}
  /// True if tensors on `device` can be sent directly.
  virtual bool takes(at::Device device) const { return device.is_cpu(); }

  std::shared_ptr<CommStats> shared_stats() const { return stats_; }
  const SumPlan& sum_plan();

 private:
  void check_tensor(const char* verb, const char* what, const at::Tensor& tensor, bool strided = false) const;
  void count(CommStats::Kind kind, int64_t messages, int64_t bytes);

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<CommStats> stats_;
  std::shared_ptr<const SumPlan> sum_plan_;
};
/// Shares a communicator; a group stays valid as long as one of these exists.
using CommunicatorPtr = std::shared_ptr<Communicator>;

/// A rank was lost, timed out or aborted the world.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs `fn` once per rank, with threads of this process as ranks, and returns when all have ended. The first exception
/// of any rank aborts the others and is rethrown here. Errors of LibTorch, CommError and the exceptions of <stdexcept>
/// keep their type and get the prefix "rank R: " if there is more than one rank; other exceptions are rethrown
/// unchanged. Each rank gets `threads_per_rank` threads of LibTorch (0: cores / ranks) and a copy of the caller's
/// thread-local state, such as grad mode. Not collective: one thread calls it.
void run_ranks(int ranks, const std::function<void(Communicator&)>& fn, int threads_per_rank = 0);

/// Registers a function to run when this thread's rank ends, in reverse order of registration. Use it to free caches
/// held per thread. In a thread that run_ranks did not start, it runs when the thread ends. Not collective.
void at_rank_exit(std::function<void()> hook);

/// Makes a world of one rank. Not collective.
CommunicatorPtr make_self_communicator();
/// Makes rank `rank` of a world of `ranks` ranks that do not exist: nothing is sent, everything is counted. For
/// planning. Not collective.
CommunicatorPtr make_fake_communicator(int rank, int ranks);
/// Makes a communicator from a duplicate of the MPI_Comm at address `mpi_comm`. The caller still owns the original.
/// Throws if Moonhalo was built without MPI. Collective over the communicator.
CommunicatorPtr make_mpi_communicator(const void* mpi_comm);
/// Does the same for a Fortran handle (MPI_Fint).
CommunicatorPtr make_mpi_communicator_from_fortran(int mpi_fint);
/// Makes a communicator for MPI_COMM_WORLD. If MPI is not initialised, initialises it (with MPI_THREAD_MULTIPLE if
/// available) and finalises it at exit. Collective over the world.
CommunicatorPtr make_mpi_world();
/// True if Moonhalo was built with MPI. Not collective.
bool has_mpi();

}  // namespace moonhalo
