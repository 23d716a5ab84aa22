// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/unrecorded.h"

#include <utility>

#include "moonhalo/engine/sharding/spec_table.h"

namespace moonhalo {

Unrecorded::Unrecorded()
    : profile_(std::exchange(*profile_context, ProfileContext{.memory = profile_context->memory})),
      observer_(set_comm_observer(nullptr)),
      listener_(listen_to_work(nullptr)),
      spec_watch_(watch_specs(nullptr)),
      shares_watch_(watch_shares(nullptr)) {}

Unrecorded::~Unrecorded() {
  *profile_context = std::move(profile_);
  set_comm_observer(observer_);
  listen_to_work(listener_);
  watch_specs(std::move(spec_watch_));
  watch_shares(std::move(shares_watch_));
}

}  // namespace moonhalo
