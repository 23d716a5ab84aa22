// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

namespace moonhalo {

/// A wait for ranks that may still start or work on their own has this many times the time limit of a collective.
inline constexpr int kStartTimeoutFactor = 10;

/// CommError with MPI's own text unless `code` is success.
void check_mpi(int code, const char* verb, const char* call);
/// NotImplementedError when the program has loaded another MPI than the one whose headers Moonhalo was built with:
/// calls reach that one, with handles that it does not know.
void check_library(const char* maker);
bool mpi_initialized();
bool mpi_finalized();

/// While it lives this thread uses MPI, if it may: a program may finalise MPI while other threads of it work, or while
/// communicators and messages under way are still there.
class UsesMpi {
 public:
  UsesMpi();
  /// CommError in the name of `verb` where it may not.
  explicit UsesMpi(const char* verb);
  ~UsesMpi();
  UsesMpi(const UsesMpi&) = delete;
  bool may() const { return may_; }
  /// In waits: MPI may be about to be finalised meanwhile.
  static void check_still(const char* verb);
  static bool ended();
  /// Ends all uses, now and later: returns when no thread uses it any more (within ten seconds).
  static void end();

 private:
  bool may_;
};

/// Waits for `request`, which all ranks must join within the time limit; CommError in the name of `maker`.
void finish(MPI_Request& request, const char* maker, const char* call);
/// MPI_Comm_dup with that limit.
MPI_Comm duplicate(MPI_Comm comm, const char* maker);

}  // namespace moonhalo
