// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/halo_options.h"

#include <utility>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/comm/agreement.h"

namespace moonhalo {
namespace {

struct HaloState {
  HaloOptions options;
  int64_t setting = 0;
  HaloTimes times;
  HaloEvents* events = nullptr;
};
const RankLocal<HaloState> state_of_rank;

std::string text_of(const HaloOptions& options) {
  return std::string("overlap = ") + (options.overlap ? "true" : "false") + ", exchange = " + name(options.backend) +
         ", keep = " + (options.keep ? "true" : "false");
}

}  // namespace

const char* name(HaloBackend backend) { return backend == HaloBackend::kP2p ? "p2p" : "all_to_all"; }

HaloOptions set_halo(const HaloOptions& options, Communicator* world) {
  if (world != nullptr) check_same_on_all_ranks(*world, "set_halo", "settings", text_of(options));
  if (options.keep != state_of_rank->options.keep) ++state_of_rank->setting;
  return std::exchange(state_of_rank->options, options);
}

const HaloOptions& halo_options() { return state_of_rank->options; }

int64_t halo_setting() { return state_of_rank->setting; }

HaloTimes& halo_times() { return state_of_rank->times; }

void note_halo(const char* event) {
  if (state_of_rank->events != nullptr) state_of_rank->events->emplace_back(event);
}

RecordHalo::RecordHalo(HaloEvents* events) : before_(std::exchange(state_of_rank->events, events)) {}

RecordHalo::~RecordHalo() { state_of_rank->events = before_; }

}  // namespace moonhalo
