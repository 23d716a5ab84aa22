// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/halo_options.h"

#include <utility>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/exchange/exchange_context.h"

namespace moonhalo {
namespace {

std::string text_of(const HaloOptions& options) {
  return std::string("overlap = ") + (options.overlap ? "true" : "false") + ", exchange = " + name(options.backend) +
         ", keep = " + (options.keep ? "true" : "false");
}

}  // namespace

const char* name(HaloBackend backend) { return backend == HaloBackend::kP2p ? "p2p" : "all_to_all"; }

HaloOptions set_halo(const HaloOptions& options, Communicator* world) {
  if (world != nullptr) check_same_on_all_ranks(*world, "set_halo", "settings", text_of(options));
  return std::exchange(base_context->settings.halo, options);
}

const HaloOptions& halo_options() { return base_context->settings.halo; }

HaloTimes& halo_times() { return exchange_context->halo_times; }

void note_halo(const char* event) {
  if (HaloEvents* const events = exchange_context->halo_events) events->emplace_back(event);
}

RecordHalo::RecordHalo(HaloEvents* events) : current_(exchange_context->halo_events, events) {}

}  // namespace moonhalo
