// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/several_ranks.h"

#include "moonhalo/engine/comm/comm_context.h"

namespace moonhalo {
namespace {

const SteadyTime loaded_at = std::chrono::steady_clock::now();

}  // namespace

std::optional<SteadyTime> several_ranks_since() { return comm_context->several_ranks_since; }

void note_several_ranks(SteadyTime since) { comm_context->several_ranks_since = since; }

SteadyTime library_loaded_at() { return loaded_at; }

}  // namespace moonhalo
