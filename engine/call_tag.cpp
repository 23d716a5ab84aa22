// SPDX-License-Identifier: Apache-2.0
#include "engine/call_tag.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <sstream>
#include <unordered_set>

#include "engine/check_calls.h"
#include "engine/communicator.h"
#include "engine/shard_tensor.h"
#include "engine/spec_table.h"

namespace moonhalo {
namespace {

constexpr uint64_t kStart = 0x9e3779b97f4a7c15ULL;

struct Position {
  const void* owner = nullptr;
  std::function<std::string()> text;
};
thread_local Position position_of_thread;

uint64_t with_list(uint64_t tag, at::IntArrayRef list) {
  tag = combine_tag(tag, list.size());
  for (const int64_t word : list) tag = combine_tag(tag, static_cast<uint64_t>(word));
  return tag;
}

uint64_t with_tensor(uint64_t tag, const at::Tensor& tensor) {
  if (!tensor.defined()) return combine_tag(tag, 1);
  tag = combine_tag(tag, static_cast<uint64_t>(tensor.scalar_type()) + 2);
  if (const ShardTensorImpl* impl = shard_impl(tensor)) return combine_tag(tag, tag_of(*impl->spec()));
  return with_list(tag, tensor.sizes());
}

uint64_t with_value(uint64_t tag, const c10::IValue& value, bool tensors_only) {
  if (value.isTensor()) return with_tensor(tag, value.toTensor());
  if (value.isList()) {
    const auto list = value.toListRef();
    tag = combine_tag(tag, list.size());
    for (const c10::IValue& item : list) tag = with_value(tag, item, tensors_only);
    return tag;
  }
  if (tensors_only) return tag;
  if (value.isInt()) return combine_tag(tag, static_cast<uint64_t>(value.toInt()) + 3);
  if (value.isBool()) return combine_tag(tag, value.toBool() ? 5 : 4);
  if (value.isDouble()) return combine_tag(tag, c10::bit_cast<uint64_t>(value.toDouble()) + 7);
  if (value.isString()) return combine_tag(tag, tag_of(value.toStringRef()));
  return combine_tag(tag, value.isNone() ? 8 : 9);
}

}  // namespace

uint64_t tag_of(const std::string& text) {
  uint64_t tag = combine_tag(kStart, text.size());
  for (const char c : text) tag = combine_tag(tag, static_cast<unsigned char>(c));
  return tag;
}

uint64_t tag_of(const ShardSpec& spec) {
  const Layout& layout = spec.layout();
  uint64_t tag = with_list(with_list(kStart, layout.mesh->shape()), layout.global_shape);
  for (const auto& op : layout.partials) tag = combine_tag(tag, op ? static_cast<uint64_t>(*op) + 1 : 0);
  for (const Cut& cut : layout.cuts) tag = with_list(with_list(tag, cut.mesh_dims), cut.sizes);
  return tag;
}

bool keeps_value(const std::string& op) {
  static const std::unordered_set<std::string> all = {"aten::_reshape_alias", "aten::_reshape_copy", "aten::_to_copy",
                                                      "aten::_unsafe_view",   "aten::alias",         "aten::clone",
                                                      "aten::contiguous",     "aten::copy_",         "aten::detach",
                                                      "aten::lift_fresh",     "aten::reshape",       "aten::view"};
  return all.count(op) > 0;
}

uint64_t tag_of(const std::string& op, at::ArrayRef<c10::IValue> arguments, bool tensors_only) {
  uint64_t tag = tag_of(op.ends_with('_') ? op.substr(0, op.size() - 1) : op);
  for (const c10::IValue& value : arguments) tag = with_value(tag, value, tensors_only);
  return tag;
}

void set_new_origin(const at::Tensor& made, uint64_t tag) {
  ShardTensorImpl* impl = shard_impl(made);
  if (impl != nullptr) impl->origin = combine_tag(tag, ++impl->spec()->mesh()->specs().made);
}

CallScope*& CallScope::innermost_of_thread() {
  static thread_local CallScope* innermost = nullptr;
  return innermost;
}

CallScope::CallScope(uint64_t tag, const char* what, Describe describe)
    : tag_(tag), result_tag_(tag), what_(what), describe_(describe), outer_(innermost_of_thread()) {
  innermost_of_thread() = this;
}

CallMark CallMark::now() {
  const CallScope* scope = CallScope::innermost();
  return scope == nullptr ? CallMark{} : CallMark{scope->tag(), scope->what()};
}

void set_program_position(const void* owner, std::function<std::string()> position) {
  position_of_thread = {owner, std::move(position)};
}

void clear_program_position(const void* owner) {
  if (position_of_thread.owner == owner) position_of_thread = {};
}

const char* VerbCall::verb() const {
  static_assert(kSplit == CommStats::kKinds);
  return kind == kSplit ? "split" : CommStats::name(static_cast<CommStats::Kind>(kind));
}

std::string VerbCall::text() const {
  std::ostringstream out;
  out << verb();
  const bool has_data = kind != kSplit && kind != CommStats::kBarrier && kind != CommStats::kExchange;
  if (has_data) {
    out << " of " << static_cast<at::ScalarType>(dtype);
    if (elements > 0) out << ", " << elements << " elements";
    if (!counts.empty()) out << ", counts " << counts;
    if (kind == CommStats::kAllToAll) out << ", send_counts " << send_counts << ", receive_counts " << receive_counts;
    if (kind == CommStats::kAllReduce || kind == CommStats::kReduceScatter)
      out << ", op " << name(static_cast<ReduceOp>(op));
    if (kind == CommStats::kBroadcast) out << ", root " << root;
  }
  out << " (call " << number << " of this group)";
  return out.str();
}

std::string VerbCall::describe() const {
  std::string result = text();
  const CallScope* scope = CallScope::innermost();
  if (mark.what != nullptr) {
    // An exchange may be waited for when the operator that started it is over.
    const bool still = scope != nullptr && scope->tag() == mark.tag;
    result += std::string(", in ") + mark.what + (still ? " of " + scope->describe() : "");
  }
  if (!position_of_thread.text) return result;
  const std::string where = position_of_thread.text();
  return where.empty() ? result : result + ", at " + where;
}

std::string how_ranks_part() {
  return "\n  fix   every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look "
         "for a branch on "
         "the rank, an order that differs (`next` over a table), a random number, the time or a file that differs; "
         "mh.op_trace, printed on every rank, shows where they part";
}

std::string different_calls(const std::string& verb, int rank, const std::string& call, int other,
                            const std::string& other_call) {
  std::ostringstream out;
  out << verb << ": ranks " << rank << " and " << other << " of this group make different calls\n  have  rank " << rank
      << ": " << call << "\n        rank " << other << ": " << other_call;
  if (call == other_call)
    out << "\n        these look alike, but work on tensors that earlier calls made differently, or with other numbers";
  out << how_ranks_part();
  return out.str();
}

bool set_check_calls(Communicator& world, bool on) {
  auto* checks = dynamic_cast<ChecksCalls*>(&world);
  return checks == nullptr || checks->set_check_calls(on);
}

}  // namespace moonhalo
