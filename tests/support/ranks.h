// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/patience.h"

namespace moonhalo::testing {

/// Runs `fn` on `ranks` rank threads of this process, as run_ranks does. Exceptions come out of here as they do there.
/// If a rank has not ended after `limit`, the test fails with the ranks that hang, and their world is aborted; a rank
/// that does not even stop then (it computes, or waits for something else) ends the whole test program.
void on_ranks(int ranks, const std::function<void(Communicator&)>& fn, std::chrono::milliseconds limit = kHang);

/// on_ranks without its watch: what all tests of ranks stand on. With MOONHALO_TEST_RANKS=mpi (under mpirun) or tcp
/// the ranks are the processes of that run: `fn` is called once in each of them, and not at all where it needs
/// another number of ranks; the program fails when nothing of it ran. Tests that look at several ranks from
/// outside, in memory that threads share, are not for that.
void run_test_ranks(int ranks, const std::function<void(Communicator&)>& fn);

}  // namespace moonhalo::testing
