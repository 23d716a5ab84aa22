// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "engine/communicator.h"

namespace moonhalo::testing {

/// Runs `fn` on `ranks` rank threads of this process, as run_ranks does. Exceptions come out of here as they do there.
/// If a rank has not ended after `limit`, the test fails with the ranks that hang, and their world is aborted; a rank
/// that does not even stop then (it computes, or waits for something else) ends the whole test program.
void on_ranks(int ranks, const std::function<void(Communicator&)>& fn,
              std::chrono::milliseconds limit = std::chrono::seconds(60));

}  // namespace moonhalo::testing
