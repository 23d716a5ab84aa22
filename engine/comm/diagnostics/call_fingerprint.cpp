// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <sstream>

#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/diagnostics/check_calls.h"

namespace moonhalo {

uint64_t fingerprint_of(const std::string& text) {
  uint64_t tag = combine_fingerprint(kFirstFingerprint, text.size());
  for (const char c : text) tag = combine_fingerprint(tag, static_cast<unsigned char>(c));
  return tag;
}

CallScope*& CallScope::innermost_of_thread() { return comm_context->innermost_call; }

CallScope::CallScope(uint64_t tag, const char* what, Describe describe)
    : tag_(tag), result_tag_(tag), what_(what), describe_(describe), outer_(innermost_of_thread()) {
  innermost_of_thread() = this;
}

CallMark CallMark::now() {
  const CallScope* scope = CallScope::innermost();
  return scope == nullptr ? CallMark{} : CallMark{scope->tag(), scope->what()};
}

void set_program_position(const void* owner, std::function<std::string()> position) {
  comm_context->position = {owner, std::move(position)};
}

void clear_program_position(const void* owner) {
  if (comm_context->position.owner == owner) comm_context->position = {};
}

const char* CollectiveCall::verb() const {
  static_assert(kSplit == CommStats::kKinds);
  return kind == kSplit ? "split" : CommStats::name(static_cast<CommStats::Kind>(kind));
}

std::string CollectiveCall::text() const {
  std::ostringstream out;
  out << verb();
  const bool has_data = kind != kSplit && kind != CommStats::kBarrier && kind != CommStats::kExchange;
  if (has_data) {
    out << " of " << static_cast<at::ScalarType>(dtype);
    const char* const of_parts = kind == CommStats::kAllToAll ? " elements a part at most" : " elements";
    if (elements > 0) out << ", " << elements << of_parts;
    if (!counts.empty()) out << ", counts " << counts;
    if (kind == CommStats::kAllToAll) out << ", send_counts " << send_counts << ", receive_counts " << receive_counts;
    if (kind == CommStats::kAllReduce || kind == CommStats::kReduceScatter)
      out << ", op " << name(static_cast<ReduceOp>(op));
    if (kind == CommStats::kBroadcast) out << ", root " << root;
  }
  out << " (call " << number << " of this group)";
  return out.str();
}

std::string CollectiveCall::describe() const {
  std::string result = text();
  const CallScope* scope = CallScope::innermost();
  if (mark.what != nullptr) {
    // An exchange may be waited for when the operator that started it is over.
    const bool still = scope != nullptr && scope->tag() == mark.tag;
    result += std::string(", in ") + mark.what + (still ? " of " + scope->describe() : "");
  }
  if (!comm_context->position.text) return result;
  const std::string where = comm_context->position.text();
  return where.empty() ? result : result + ", at " + where;
}

std::string divergence_remedy() { return fix(Remedy::kSameCalls); }

std::string different_calls(const std::string& verb, int rank, const std::string& call, int other,
                            const std::string& other_call) {
  std::ostringstream out;
  out << verb << ": ranks " << rank << " and " << other << " of this group make different calls\n  have  rank " << rank
      << ": " << call << "\n        rank " << other << ": " << other_call;
  if (call == other_call)
    out << "\n        these look the same, but work on tensors that earlier calls made differently, or with other "
           "numbers";
  out << divergence_remedy();
  return out.str();
}

bool set_check_calls(Communicator& world, bool on) { return backend_of(world).set_check_calls(on); }

}  // namespace moonhalo
