// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/traffic.h"

#include <utility>

#include "moonhalo/engine/comm/comm_context.h"

namespace moonhalo {
namespace {

constexpr std::pair<Traffic, const char*> kNames[] = {
    {Traffic::kInputs, "inputs"},
    {Traffic::kHalo, "halo"},
    {Traffic::kAllReduce, "all_reduce"},
    {Traffic::kRedistribute, "redistribute"},
    {Traffic::kRing, "ring"},
    {Traffic::kDataDependent, "data_dependent"},
    {Traffic::kOther, "other"},
    {Traffic::kGradients, "gradients"},
    {Traffic::kParameters, "parameters"},
    {Traffic::kStages, "stages"},
    {Traffic::kDistribute, "distribute"},
};

}  // namespace

std::string to_string(Traffic traffic) {
  std::string text;
  for (const auto& [flag, name] : kNames) {
    if ((flag - traffic) == Traffic::kNone) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text.empty() ? "none" : text;
}

Traffic* TrafficScope::scope_of_rank() { return &comm_context->traffic.scope; }

TrafficNotes::TrafficNotes() : before_(std::exchange(comm_context->traffic.seen, Traffic::kNone)) {}
TrafficNotes::~TrafficNotes() { comm_context->traffic.seen = comm_context->traffic.seen | before_; }
Traffic TrafficNotes::seen() const { return comm_context->traffic.seen; }

Traffic traffic_now(Traffic otherwise) {
  const Traffic scope = comm_context->traffic.scope;
  return scope == Traffic::kNone ? otherwise : scope;
}

void note_traffic(Traffic traffic) { comm_context->traffic.seen = comm_context->traffic.seen | traffic; }

}  // namespace moonhalo
