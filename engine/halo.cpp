// SPDX-License-Identifier: Apache-2.0
#include "engine/halo.h"

#include <c10/util/Exception.h>

#include <utility>

#include "engine/communicator.h"

namespace moonhalo {
namespace {

thread_local HaloOptions options_of_thread;
thread_local HaloTimes times_of_thread;
thread_local HaloEvents* events_of_thread = nullptr;

std::string text_of(const HaloOptions& options) {
  return std::string("overlap = ") + (options.overlap ? "true" : "false") +
         ", exchange = " + name(options.backend);
}

void check_alike(const HaloOptions& options, Communicator& world) {
  const std::string mine = text_of(options);
  const std::vector<std::string> all = world.all_gather_strings(mine);
  const bool fake = std::string(world.backend()) == "fake";  // nobody else is there to differ
  for (size_t rank = 1; rank < all.size() && !fake; ++rank) {
    TORCH_CHECK_VALUE(all[rank] == all[0], "set_halo: ranks 0 and ", rank, " want different settings\n  have  rank 0: ", all[0],
                      "; rank ", rank, ": ", all[rank], "\n  fix   give every rank the same");
  }
}

}  // namespace

const char* name(HaloBackend backend) {
  return backend == HaloBackend::kP2p ? "p2p" : "all_to_all";
}

HaloOptions set_halo(const HaloOptions& options, Communicator* world) {
  if (world != nullptr && world->size() > 1) check_alike(options, *world);
  return std::exchange(options_of_thread, options);
}

const HaloOptions& halo_options() { return options_of_thread; }

HaloTimes& halo_times() { return times_of_thread; }

void note_halo(const char* event) {
  if (events_of_thread != nullptr) events_of_thread->emplace_back(event);
}

RecordHalo::RecordHalo(HaloEvents* events) : before_(std::exchange(events_of_thread, events)) {}

RecordHalo::~RecordHalo() { events_of_thread = before_; }

}  // namespace moonhalo
