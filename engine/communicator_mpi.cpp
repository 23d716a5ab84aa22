// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "engine/communicator.h"
#include "engine/reduce_elements.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kExchangeTag = 1;
constexpr int kVerbTag = 2;
// MPI counts in int; larger messages travel in pieces of this size (environment: MOONHALO_MPI_CHUNK_BYTES).
constexpr size_t kChunkBytes = size_t{1} << 30;
// Up to this size of all ranks' data together, an all_reduce is one all-gather.
constexpr size_t kGatherBytes = 64 * 1024;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

void check(int code, const char* verb, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw CommError(std::string(verb) + ": " + call + " failed: " + error_text(code));
}

size_t chunk_bytes_from_environment() {
  const char* text = std::getenv("MOONHALO_MPI_CHUNK_BYTES");
  if (text == nullptr || *text == '\0') return kChunkBytes;
  char* end = nullptr;
  const long long bytes = std::strtoll(text, &end, 10);
  TORCH_CHECK_VALUE(*end == '\0' && bytes > 0 && bytes <= INT_MAX,
                    "MOONHALO_MPI_CHUNK_BYTES: not a number of bytes from 1 to 2147483647",
                    "\n  have  MOONHALO_MPI_CHUNK_BYTES=", text, "\n  fix   unset it, or set it to 1073741824");
  return static_cast<size_t>(bytes);
}

bool is(int (*question)(int*)) {
  int answer = 0;
  question(&answer);
  return answer != 0;
}
bool initialized() { return is(MPI_Initialized); }
bool finalized() { return is(MPI_Finalized); }

// A communicator of ours. The caller may finalise MPI before the last of us is gone.
struct OwnedComm {
  explicit OwnedComm(MPI_Comm comm) : handle(comm) {
    MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
  }
  ~OwnedComm() {
    if (!finalized()) MPI_Comm_free(&handle);
  }
  OwnedComm(const OwnedComm&) = delete;
  MPI_Comm handle;
};
using CommHandle = std::shared_ptr<OwnedComm>;

// Requests under way and the memory that they use.
class Requests {
 public:
  Requests(CommHandle comm, const char* verb, std::chrono::milliseconds timeout, size_t chunk)
      : comm_(std::move(comm)), verb_(verb), timeout_(timeout), chunk_(chunk) {}

  // MPI may still write to the memory of a request that never ended, so that memory is given up.
  ~Requests() {
    if (!requests_.empty()) new std::vector<at::Tensor>(std::move(kept_));
  }

  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

  void send(const void* data, size_t bytes, int peer, int tag) {
    in_pieces(bytes, [&](size_t begin, int piece) {
      check(MPI_Isend(static_cast<const char*>(data) + begin, piece, MPI_BYTE, peer, tag,
                      comm_->handle, add(peer, -1)),
            verb_, "MPI_Isend");
    });
  }

  void receive(void* data, size_t bytes, int peer, int tag) {
    in_pieces(bytes, [&](size_t begin, int piece) {
      check(MPI_Irecv(static_cast<char*>(data) + begin, piece, MPI_BYTE, peer, tag, comm_->handle,
                      add(peer, piece)),
            verb_, "MPI_Irecv");
    });
  }

  /// A place for the request of a collective call.
  MPI_Request* collective() { return add(-1, -1); }

  void wait() {
    if (requests_.empty()) return;
    std::vector<MPI_Status> statuses(requests_.size());
    const Clock::time_point start = Clock::now();
    for (;;) {
      int done = 0;
      const int code =
          MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data());
      if (code != MPI_SUCCESS) throw_failure(code, statuses);
      if (done != 0) break;
      pause(Clock::now() - start);
    }
    requests_.clear();
    kept_.clear();
    check_sizes(statuses);
  }

 private:
  struct Info {
    int peer;
    int expected;
  };

  template <typename Post>
  void in_pieces(size_t bytes, const Post& post) {
    size_t begin = 0;
    do {
      const size_t piece = std::min(chunk_, bytes - begin);
      post(begin, static_cast<int>(piece));
      begin += piece;
    } while (begin < bytes);
  }

  MPI_Request* add(int peer, int expected) {
    infos_.push_back({peer, expected});
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }

  // Busy at first, for the sake of speed; then friendly to other ranks that share the core.
  void pause(Clock::duration waited) {
    if (waited > timeout_) throw_timeout();
    if (waited > std::chrono::microseconds(20)) sched_yield();
    if (waited > std::chrono::milliseconds(2)) {
      std::this_thread::sleep_for(
          std::min<Clock::duration>(waited / 20, std::chrono::microseconds(200)));
    }
  }

  [[noreturn]] void throw_timeout() {
    std::ostringstream text;
    int rank = 0;
    MPI_Comm_rank(comm_->handle, &rank);
    text << verb_ << " timed out after " << static_cast<double>(timeout_.count()) / 1000
         << " s on rank " << rank << ": ";
    std::set<int> missing;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0 && infos_[i].peer >= 0) missing.insert(infos_[i].peer);
    }
    text << (missing.empty() ? "not all ranks of the group came" : "no message to or from rank");
    for (const int peer : missing) text << (peer == *missing.begin() ? " " : ", ") << peer;
    text << "\n  have  ranks that make different calls, or a rank that was lost"
         << "\n  fix   look for ranks that take another branch; MOONHALO_TIMEOUT_S sets the time";
    throw CommError(text.str());
  }

  [[noreturn]] void throw_failure(int code, const std::vector<MPI_Status>& statuses) {
    if (code == MPI_ERR_IN_STATUS) {
      for (size_t i = 0; i < statuses.size(); ++i) {
        const int error = statuses[i].MPI_ERROR;
        if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
        std::ostringstream call;
        call << "a message " << (infos_[i].expected >= 0 ? "from" : "to") << " rank "
             << infos_[i].peer;
        check(error, verb_, call.str().c_str());
      }
    }
    check(code, verb_, "MPI_Testall");
    TORCH_INTERNAL_ASSERT(false, "MPI_Testall failed without an error");
  }

  void check_sizes(const std::vector<MPI_Status>& statuses) {
    for (size_t i = 0; i < infos_.size(); ++i) {
      if (infos_[i].expected < 0) continue;
      int bytes = 0;
      MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
      TORCH_CHECK_VALUE(bytes == infos_[i].expected, verb_, ": a message from rank ", infos_[i].peer,
                        " does not fit its receive\n  have  ", bytes, " bytes sent, ", infos_[i].expected,
                        " expected\n  fix   messages of one pair of ranks match in the order of the lists");
    }
  }

  CommHandle comm_;
  const char* verb_;
  std::chrono::milliseconds timeout_;
  size_t chunk_;
  std::vector<MPI_Request> requests_;
  std::vector<Info> infos_;
  std::vector<at::Tensor> kept_;
};

class MpiExchange final : public Work {
 public:
  explicit MpiExchange(std::unique_ptr<Requests> requests) : requests_(std::move(requests)) {}
  // A dropped exchange is finished, or its messages would meet the wrong receives.
  ~MpiExchange() override {
    try {
      wait();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "moonhalo: in an exchange that nobody waited for: %s\n", error.what());
    }
  }
  void wait() override {
    if (!requests_) return;
    const std::unique_ptr<Requests> requests = std::move(requests_);
    requests->wait();
  }

 private:
  std::unique_ptr<Requests> requests_;
};

int64_t sum(at::IntArrayRef counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }
const char* const_bytes_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

at::Tensor byte_buffer(size_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::kByte); }

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(CommHandle comm, CommHandle world, int rank, int size,
                  std::shared_ptr<CommStats> stats)
      : Communicator(rank, size, std::move(stats)),
        comm_(std::move(comm)),
        world_(std::move(world)),
        chunk_(chunk_bytes_from_environment()) {
    MPI_Query_thread(&thread_level_);
  }

  const char* backend() const override { return "mpi"; }

  // Nothing less than MPI_Abort wakes a rank that waits inside of MPI.
  void abort(const std::string& reason) override {
    std::fflush(nullptr);
    std::fprintf(stderr, "moonhalo: rank %d stops all ranks: %s\n", rank(), reason.c_str());
    std::fflush(stderr);
    MPI_Abort(world_->handle, EXIT_FAILURE);
    std::_Exit(EXIT_FAILURE);
  }

 protected:
  void check_alive() const override {
    if (finalized())
      throw CommError("communicator: MPI has been finalised; no rank can be reached any more");
    if (thread_level_ >= MPI_THREAD_SERIALIZED) return;
    TORCH_CHECK_VALUE(is(MPI_Is_thread_main), "communicator: called from a thread that MPI does not allow to communicate",
                      "\n  have  MPI initialised without thread support, and a call from another thread",
                      "\n  fix   call from the thread that initialised MPI, or initialise it with MPI_THREAD_MULTIPLE");
  }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    auto requests = begin("exchange");
    for (const Message& message : receives) {
      requests->keep(message.data);
      requests->receive(bytes_of(message.data), message.data.nbytes(), message.peer, kExchangeTag);
    }
    for (const Message& message : sends) {
      requests->keep(message.data);
      requests->send(const_bytes_of(message.data), message.data.nbytes(), message.peer,
                     kExchangeTag);
    }
    return std::make_unique<MpiExchange>(std::move(requests));
  }

  // Not MPI_Allreduce: this way the ranks are added in their order, as the threads backend does, so that both give the
  // same bits; half, bfloat16, bool and NaN are treated alike; and no rank can get other bits than another.
  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    const size_t bytes = data.nbytes();
    if (bytes * size() <= kGatherBytes) {
      const at::Tensor all = byte_buffer(bytes * size());
      auto requests = begin("all_reduce");
      requests->keep(all);
      requests->keep(data);
      check(
          MPI_Iallgather(const_bytes_of(data), static_cast<int>(bytes), MPI_BYTE, bytes_of(all),
                         static_cast<int>(bytes), MPI_BYTE, comm_->handle, requests->collective()),
          "all_reduce", "MPI_Iallgather");
      requests->wait();
      std::vector<const void*> sources;
      for (int r = 0; r < size(); ++r) sources.push_back(const_bytes_of(all) + bytes * r);
      reduce_elements(op, data.scalar_type(), sources, data.numel(), data.mutable_data_ptr());
      return;
    }
    std::vector<int64_t> shares;
    for (int r = 0; r < size(); ++r)
      shares.push_back(data.numel() * (r + 1) / size() - data.numel() * r / size());
    const int64_t begin = data.numel() * rank() / size();
    reduce_parts("all_reduce", data, shares, bytes_of(data) + begin * data.itemsize(), op);
    gather_parts("all_reduce", nullptr, shares, data);
  }

  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    gather_parts("all_gather", &in, counts, out);
  }

  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out,
                         ReduceOp op) override {
    reduce_parts("reduce_scatter", in, counts, bytes_of(out), op);
  }

  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out,
                     at::IntArrayRef receive_counts) override {
    auto requests = begin("all_to_all");
    requests->keep(in);
    requests->keep(out);
    char* to = bytes_of(out);
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = receive_counts[r] * in.itemsize();
      if (r != rank() && bytes > 0) requests->receive(to, bytes, r, kVerbTag);
      to += bytes;
    }
    const char* from = const_bytes_of(in);
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = send_counts[r] * in.itemsize();
      if (r != rank() && bytes > 0) requests->send(from, bytes, r, kVerbTag);
      if (r == rank() && bytes > 0) {
        const int64_t before = sum(receive_counts.slice(0, r));
        std::memmove(bytes_of(out) + before * in.itemsize(), from, bytes);
      }
      from += bytes;
    }
    requests->wait();
  }

  void do_broadcast(at::Tensor& data, int root) override {
    for (size_t begin_byte = 0; begin_byte < data.nbytes(); begin_byte += chunk_) {
      const size_t bytes = std::min(chunk_, data.nbytes() - begin_byte);
      auto requests = begin("broadcast");
      requests->keep(data);
      check(MPI_Ibcast(bytes_of(data) + begin_byte, static_cast<int>(bytes), MPI_BYTE, root,
                       comm_->handle, requests->collective()),
            "broadcast", "MPI_Ibcast");
      requests->wait();
    }
  }

  void do_barrier() override { barrier_of("barrier"); }

  CommunicatorPtr do_split(int color, int key) override {
    // MPI_Comm_split itself waits without a limit.
    if (size() > 1) barrier_of("split");
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_->handle, color, key, &part), "split", "MPI_Comm_split");
    auto owned = std::make_shared<OwnedComm>(part);
    int part_rank = 0, part_size = 0;
    MPI_Comm_rank(part, &part_rank);
    MPI_Comm_size(part, &part_size);
    return std::make_shared<MpiCommunicator>(std::move(owned), world_, part_rank, part_size,
                                             shared_stats());
  }

 private:
  std::unique_ptr<Requests> begin(const char* verb) const {
    return std::make_unique<Requests>(comm_, verb, timeout(), chunk_);
  }

  void barrier_of(const char* verb) {
    auto requests = begin(verb);
    check(MPI_Ibarrier(comm_->handle, requests->collective()), verb, "MPI_Ibarrier");
    requests->wait();
  }

  // Sends part r of `in` to rank r and reduces, in rank order, what comes for this rank into `out`.
  void reduce_parts(const char* verb, const at::Tensor& in, at::IntArrayRef counts, void* out,
                    ReduceOp op) {
    const size_t item = in.itemsize();
    const size_t mine = counts[rank()] * item;
    const at::Tensor arrived = byte_buffer(mine * size());
    auto requests = begin(verb);
    requests->keep(in);
    requests->keep(arrived);
    std::vector<const void*> sources;
    for (int r = 0; r < size(); ++r) {
      char* place = bytes_of(arrived) + mine * r;
      sources.push_back(place);
      if (r != rank() && mine > 0) requests->receive(place, mine, r, kVerbTag);
    }
    const char* part = const_bytes_of(in);
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = counts[r] * item;
      if (r == rank()) sources[r] = part;
      if (r != rank() && bytes > 0) requests->send(part, bytes, r, kVerbTag);
      part += bytes;
    }
    requests->wait();
    reduce_elements(op, in.scalar_type(), sources, counts[rank()], out);
  }

  // Collects `in` (or what lies at this rank's place in `out` already) of all ranks.
  void gather_parts(const char* verb, const at::Tensor* in, at::IntArrayRef counts,
                    at::Tensor& out) {
    const size_t item = out.itemsize();
    char* const own_place = bytes_of(out) + sum(counts.slice(0, rank())) * item;
    const size_t own_bytes = counts[rank()] * item;
    if (in != nullptr && own_bytes > 0) std::memmove(own_place, const_bytes_of(*in), own_bytes);
    auto requests = begin(verb);
    requests->keep(out);
    if (out.nbytes() <= chunk_) {
      // Kept with the rest: MPI reads the two lists while it works.
      const at::Tensor lists = at::empty({2, size()}, at::kInt);
      requests->keep(lists);
      int* const sizes = lists.mutable_data_ptr<int>();
      int* const begins = sizes + size();
      for (int r = 0; r < size(); ++r) {
        sizes[r] = static_cast<int>(counts[r] * item);
        begins[r] = r == 0 ? 0 : begins[r - 1] + sizes[r - 1];
      }
      check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, bytes_of(out), sizes, begins, MPI_BYTE,
                            comm_->handle, requests->collective()),
            verb, "MPI_Iallgatherv");
      return requests->wait();
    }
    char* place = bytes_of(out);
    for (int r = 0; r < size(); ++r) {
      const size_t bytes = counts[r] * item;
      if (r != rank() && bytes > 0) requests->receive(place, bytes, r, kVerbTag);
      place += bytes;
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && own_bytes > 0) requests->send(own_place, own_bytes, r, kVerbTag);
    }
    requests->wait();
  }

  CommHandle comm_;
  CommHandle world_;
  size_t chunk_;
  int thread_level_ = MPI_THREAD_SINGLE;
};

CommunicatorPtr wrap(MPI_Comm given, const char* maker) {
  TORCH_CHECK_VALUE(initialized() && !finalized(), maker, ": MPI is not running\n  have  a call ",
                    initialized() ? "after MPI_Finalize" : "before MPI_Init",
                    "\n  fix   initialise MPI first, or use make_mpi_world(), which does it");
  TORCH_CHECK_VALUE(given != MPI_COMM_NULL, maker, ": MPI_COMM_NULL is no group of ranks\n  have  MPI_COMM_NULL",
                    "\n  fix   call it only on ranks that are in the communicator");
  MPI_Comm ours = MPI_COMM_NULL;
  check(MPI_Comm_dup(given, &ours), maker, "MPI_Comm_dup");
  auto owned = std::make_shared<OwnedComm>(ours);
  int rank = 0, size = 1;
  MPI_Comm_rank(ours, &rank);
  MPI_Comm_size(ours, &size);
  return std::make_shared<MpiCommunicator>(owned, owned, rank, size, nullptr);
}

}  // namespace

bool has_mpi() { return true; }

CommunicatorPtr make_mpi_communicator(const void* mpi_comm) {
  TORCH_CHECK_VALUE(mpi_comm != nullptr, "make_mpi_communicator: no communicator\n  have  a null pointer",
                    "\n  fix   give the address of an MPI_Comm");
  return wrap(*static_cast<const MPI_Comm*>(mpi_comm), "make_mpi_communicator");
}

CommunicatorPtr make_mpi_communicator_from_fortran(int mpi_fint) {
  return wrap(MPI_Comm_f2c(static_cast<MPI_Fint>(mpi_fint)), "make_mpi_communicator_from_fortran");
}

CommunicatorPtr make_mpi_world() {
  static std::mutex mutex;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!initialized()) {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "make_mpi_world",
            "MPI_Init_thread");
      std::atexit([] {
        if (!finalized()) MPI_Finalize();
      });
    }
  }
  return wrap(MPI_COMM_WORLD, "make_mpi_world");
}

}  // namespace moonhalo
