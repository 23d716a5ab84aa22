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
  /// A place for the request of a collective call.
  MPI_Request* collective() { return add(-1, -1); }

  /// Returns when all ranks have been found to make this call.
  void settle();
  void wait();
  bool ready();
  /// Nothing can end well any more: the ranks of the group have diverged, and all of them know it, or the program
  /// has finalised MPI.
  bool broken() const { return group_->broken() || UsesMpi::ended(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Info {
    int peer;
    int expected;
  };

  template <typename Post>
  void in_pieces(size_t bytes, const Post& post);
  MPI_Request* add(int peer, int expected);
  struct GoesOn;
  /// `begins`: while it is not known yet that all ranks make this call.
  void pause(WaitingTime& time, bool begins);
  static void give_way();
  [[noreturn]] void throw_timeout();
  [[noreturn]] void throw_failure(int code, const std::vector<MPI_Status>& statuses);
  void check_sizes(const std::vector<MPI_Status>& statuses);

  MpiGroupPtr group_;
  const char* verb_;
  int tag_;
  std::chrono::milliseconds timeout_;
  size_t chunk_;
  uint64_t number_;
  Clock::time_point last_poll_{};
  std::vector<MPI_Request> requests_;
  std::vector<Info> infos_;
  std::vector<at::Tensor> kept_;
};

}  // namespace moonhalo
