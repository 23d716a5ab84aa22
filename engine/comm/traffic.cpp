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

void note_traffic(Traffic traffic) {
  auto& mine = comm_context->traffic;
  mine.seen = mine.seen | (mine.scope == Traffic::kNone ? traffic : mine.scope);
}

}  // namespace moonhalo
