// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/call_trace.h"

#include <utility>

namespace moonhalo {
namespace {

std::string placements_of(const SpecPtr& spec) {
  if (!spec) return "none";
  std::string text;
  for (const Placement& placement : spec->placements()) text += (text.empty() ? "" : ", ") + placement.to_string();
  return text;
}

}  // namespace

std::string inputs_text(const Decision& decision) {
  std::string text;
  for (const Decision::Move& move : decision.moves) {
    if (move.given) text += (text.empty() ? "" : "; ") + move.given->to_string();
  }
  return text;
}

TraceRecord TracedCall::record(const c10::OperatorHandle& op, const Decision& decision, int64_t bytes) {
  TraceRecord record{c10::toString(op.operator_name()),
                     {},
                     {},
                     bytes,
                     decision.plan.gathered,
                     notes_.seen(),
                     std::move(events_),
                     halo_times() - before_};
  for (const Decision::Move& move : decision.moves) {
    std::string text = placements_of(move.given);
    if (move.is_moved()) text += " -> " + placements_of(move.required);
    record.inputs.push_back(std::move(text));
  }
  for (const SpecPtr& output : decision.plan.outputs) record.outputs.push_back(placements_of(output));
  return record;
}

}  // namespace moonhalo
