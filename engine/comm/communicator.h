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

/// The ways in which values of several ranks become one. `avg` divides the sum by the number of ranks.
enum class ReduceOp : uint8_t { kSum, kAvg, kMax, kMin, kProduct };
const char* name(ReduceOp op);
/// "sum" | "avg" | "max" | "min" | "product"; ValueError otherwise.
ReduceOp parse_reduce_op(const std::string& text);

/// One direction of a point-to-point message. `data` has any dtype and is contiguous unless the communicator
/// takes_strided; then both ends give the same shape, if either is not. The receiver knows the size.
struct Message {
  int peer;
  at::Tensor data;
  /// Or, where the communicator takes_parts, tensors of one dtype and any strides, which travel together; then `data`
  /// is undefined. Both ends give as many, of the same shapes.
  std::vector<at::Tensor> parts = {};

  at::TensorList tensors() const { return parts.empty() ? at::TensorList(data) : at::TensorList(parts); }
  int64_t nbytes() const {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }
};

/// Counts what a communicator has moved so far. Bytes and messages are what left this rank, counted as if every part
/// went straight to the rank that needs it (all_reduce: reduce-scatter, then all-gather), so they are the same for
/// every backend. A group of one moves nothing and counts nothing.
struct CommStats {
  enum Kind { kExchange, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kBarrier, kKinds };
  struct Count {
    int64_t calls = 0;
    int64_t messages = 0;
    int64_t bytes = 0;
  };
  std::array<Count, kKinds> by_kind;
  static const char* name(Kind kind);
  Count total() const;
};

/// Bytes that this thread has given to any communicator so far, as CommStats counts them.
int64_t bytes_sent_by_this_thread();

/// A collective under way. The tensors handed in stay alive until it ends.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the data has arrived and the caller's send buffers may be reused. Throws on timeout or abort.
  virtual void wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

/// A group of ranks and the verbs among them: one interface for ranks as threads, MPI, NCCL, or none (fake).
///
/// Every verb is collective over the group and must be called in the same order by every rank (a rank with nothing to
/// send calls exchange with empty lists); the threads backend checks it. Tensors are contiguous (exchange,
/// reduce_scatter: unless the communicator takes_strided).
/// Uneven sizes are first class: counts are elements per rank, zero allowed; those given to a call must be the same on
/// every rank. A verb on a group of one is the identity. Errors: ValueError for sizes that do not fit (decided before
/// anything is sent), CommError when a rank is lost, aborted or silent past the timeout.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "threads" | "mpi" | "tcp" | "transport" | "staged" | "nccl" | "fake"
  virtual const char* backend() const = 0;
  /// True if nothing is computed or sent: ranks are planned for, or looked at alone.
  bool is_fake() const;
  /// True if exchange, and reduce_scatter whose parts are rows of the first dim, take tensors that are not contiguous,
  /// unpacked.
  virtual bool takes_strided() const { return false; }
  /// True if exchange takes messages of several parts, which are copied from where they lie to where they belong.
  virtual bool takes_parts() const { return false; }

  /// Posts every receive, then every send; messages between one pair of ranks match in order.
  WorkPtr exchange_async(std::vector<Message> sends, std::vector<Message> receives);
  void exchange(std::vector<Message> sends, std::vector<Message> receives);

  /// In place, the same bits on every rank.
  void all_reduce(at::Tensor& data, ReduceOp op = ReduceOp::kSum);
  /// `out` (flat, sum(counts) elements) receives every rank's `in` (flat, counts[rank]) in rank order.
  void all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out);
  /// `in` flat of sum(counts); `out` flat of counts[rank]: the reduction of every rank's part for this rank.
  void reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op = ReduceOp::kSum);
  /// send_counts[r] elements of `in` go to rank r; receive_counts[r] elements of `out` come from it.
  void all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts);
  void broadcast(at::Tensor& data, int root);
  void barrier();

  /// The ranks that gave the same `color`, ordered by `key` then rank. Collective over this group.
  std::shared_ptr<Communicator> split(int color, int key);

  /// Small strings of every rank, in rank order (for errors and one-off set-up).
  std::vector<std::string> all_gather_strings(const std::string& mine);

  /// Ends every rank's waiting calls in this world with a CommError carrying `reason`. Any thread, not collective.
  virtual void abort(const std::string& reason) = 0;

  /// Longest silence of a peer before a verb throws. Default 10 minutes (environment: MOONHALO_TIMEOUT_S).
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Counted over this group and all groups split from it (they share one counter per rank).
  const CommStats& stats() const { return *stats_; }
  void reset_stats() { *stats_ = {}; }

 protected:
  Communicator(int rank, int size, std::shared_ptr<CommStats> stats = nullptr);

  virtual WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) = 0;
  virtual void do_all_reduce(at::Tensor& data, ReduceOp op) = 0;
  virtual void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) = 0;
  virtual void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) = 0;
  virtual void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out,
                             at::IntArrayRef receive_counts) = 0;
  virtual void do_broadcast(at::Tensor& data, int root) = 0;
  virtual void do_barrier() = 0;
  virtual std::shared_ptr<Communicator> do_split(int color, int key) = 0;
  /// Throws CommError once the world has been aborted. Called before every verb, also in a group of one.
  virtual void check_alive() const {}
  /// True if tensors on `device` can be sent as they are.
  virtual bool takes(at::Device device) const { return device.is_cpu(); }

  std::shared_ptr<CommStats> shared_stats() const { return stats_; }

 private:
  void check_tensor(const char* verb, const char* what, const at::Tensor& tensor, bool strided = false) const;
  void count(CommStats::Kind kind, int64_t messages, int64_t bytes);

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<CommStats> stats_;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

/// A rank was lost, timed out or asked all ranks to stop.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs `fn` once per rank, ranks being threads of this process, and returns when all have ended. The first
/// exception of any rank aborts the others and is rethrown here in its own type, with "rank R: " in front of its
/// message if there is more than one rank and the type is one of LibTorch's errors, CommError or of <stdexcept>
/// (other types are rethrown as they were). LibTorch's thread count is divided among the ranks (threads_per_rank = 0:
/// cores / ranks), each rank inherits the caller's thread-local state (grad mode and such).
void run_ranks(int ranks, const std::function<void(Communicator&)>& fn, int threads_per_rank = 0);

/// Runs `hook` when this thread's rank ends (last in, first out), for caches held per thread. In a thread that
/// run_ranks did not start: when the thread ends.
void at_rank_exit(std::function<void()> hook);

/// A world of one rank, for programs that were not started in parallel.
CommunicatorPtr make_self_communicator();
/// `ranks` of which only `rank` exists: nothing moves, everything is counted. For planning.
CommunicatorPtr make_fake_communicator(int rank, int ranks);
/// Wraps the caller's communicator (an MPI_Comm passed by address; duplicated, never freed by us). Errors if built
/// without MPI.
CommunicatorPtr make_mpi_communicator(const void* mpi_comm);
/// From a Fortran integer handle (MPI_Fint).
CommunicatorPtr make_mpi_communicator_from_fortran(int mpi_fint);
/// MPI_COMM_WORLD; initialises MPI (THREAD_MULTIPLE if offered) when the caller has not, and then finalises it at exit.
CommunicatorPtr make_mpi_world();
bool has_mpi();

}  // namespace moonhalo
