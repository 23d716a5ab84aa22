// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/halo_options.h"

#include <utility>

#include "moonhalo/engine/comm/agreement.h"

namespace moonhalo {
namespace {

thread_local HaloOptions options_of_thread;
thread_local int64_t setting_of_thread = 0;
thread_local HaloTimes times_of_thread;
thread_local HaloEvents* events_of_thread = nullptr;

std::string text_of(const HaloOptions& options) {
  return std::string("overlap = ") + (options.overlap ? "true" : "false") + ", exchange = " + name(options.backend) +
         ", keep = " + (options.keep ? "true" : "false");
}

}  // namespace

const char* name(HaloBackend backend) { return backend == HaloBackend::kP2p ? "p2p" : "all_to_all"; }

HaloOptions set_halo(const HaloOptions& options, Communicator* world) {
  if (world != nullptr) check_alike(*world, "set_halo", "settings", text_of(options));
  if (options.keep != options_of_thread.keep) ++setting_of_thread;
  return std::exchange(options_of_thread, options);
}

const HaloOptions& halo_options() { return options_of_thread; }

int64_t halo_setting() { return setting_of_thread; }

HaloTimes& halo_times() { return times_of_thread; }

void note_halo(const char* event) {
  if (events_of_thread != nullptr) events_of_thread->emplace_back(event);
}

RecordHalo::RecordHalo(HaloEvents* events) : before_(std::exchange(events_of_thread, events)) {}

RecordHalo::~RecordHalo() { events_of_thread = before_; }

}  // namespace moonhalo
