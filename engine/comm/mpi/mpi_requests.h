// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/mpi/mpi_checked.h"
#include "moonhalo/engine/comm/mpi/mpi_group.h"
#include "moonhalo/engine/comm/polling_pause.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// The size of a piece in which larger messages are sent (environment: MOONHALO_MPI_CHUNK_BYTES).
size_t chunk_bytes_from_environment();

/// Requests under way in one call of a group, and the memory that they use.
class MpiRequests {
 public:
  static constexpr bool kSendsEmpty = false;

  /// For call number `number` of the group, the one begun last unless given.
  MpiRequests(MpiGroupPtr group, const char* verb, int tag, std::chrono::milliseconds timeout, size_t chunk);
  /// MPI may still write to the memory of a request that never ended, so that memory is given up, and the group with
  /// it.
  ~MpiRequests();

  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  void send(const void* data, size_t bytes, int peer);
  void receive(void* data, size_t bytes, int peer);
  /// A place for the request of a collective call on memory of `bytes`.
  MPI_Request* collective(size_t bytes) { return incoming_.add(-1, static_cast<int>(bytes)); }

  /// Returns when all ranks have been found to make this call.
  void settle();
  /// Returns when all that is to come has come; sends may still be under way. ValueError if one is of another size.
  void wait_received();
  /// Returns when all requests have ended, and frees the memory; then ValueError as above.
  void wait();
  bool ready();
  /// Nothing can end well any more: the ranks of the group have diverged, and all of them know it, or the program
  /// has finalised MPI.
  bool broken() const { return group_->broken() || UsesMpi::ended(); }

 private:
  using Clock = std::chrono::steady_clock;
  /// Open requests: those of sends, or those of receives and collective calls.
  struct Open {
    struct Info {
      int peer, bytes;
    };
    std::vector<MPI_Request> requests;
    std::vector<Info> infos;
    size_t bytes = 0;

    MPI_Request* add(int peer, int piece);
    void clear();
  };

  template <typename Post>
  void in_pieces(size_t bytes, const Post& post);
  struct GoesOn;
  /// One of the waits of a call, which have one time limit together.
  struct Wait {
    WaitingTime& time;
    PollingPause polling;
    Clock::duration before = time.poll();  ///< the time of earlier waits
  };
  void settle(WaitingTime& time);
  std::vector<MPI_Status> wait_for(Open& open, WaitingTime& time);
  /// `begins`: while it is not known yet that all ranks make this call.
  void pause(const Wait& wait, bool begins);
  [[noreturn]] void throw_timeout();
  [[noreturn]] void throw_failure(int code, const Open& open, const std::vector<MPI_Status>& statuses);
  void check_sizes(const std::vector<MPI_Status>& statuses);

  MpiGroupPtr group_;
  const char* verb_;
  int tag_;
  std::chrono::milliseconds timeout_;
  size_t chunk_;
  uint64_t number_;
  Clock::time_point last_poll_{};
  Open incoming_, outgoing_;
  std::vector<at::Tensor> kept_;
};

}  // namespace moonhalo
