// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/dispatch.h"

#include <ATen/Functions.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/last_draw.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/dispatch/call_trace.h"
#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/dispatch/dispatch_context.h"
#include "moonhalo/engine/dispatch/foreign_call.h"
#include "moonhalo/engine/dispatch/out_argument.h"
#include "moonhalo/engine/dispatch/out_of_memory.h"
#include "moonhalo/engine/exchange/redistribution_cache.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/host_halos.h"
#include "moonhalo/engine/tensor/memory_order.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/stored_views.h"
#include "moonhalo/engine/tensor/unsharded_cache.h"
#include "moonhalo/engine/tensor/view_tracking.h"

namespace moonhalo {
namespace {

// Per thread; then all are forgotten, so memory stays bounded.
constexpr int64_t kMaxDecisions = 16384;

uint64_t hash_of(at::ArrayRef<int64_t> key) {
  uint64_t hash = kFirstFingerprint;
  for (const int64_t word : key) hash = combine_fingerprint(hash, static_cast<uint64_t>(word));
  return hash;
}

// One call under way.
struct CallState : Sharing {
  uint64_t tag = 0;
  bool found_more = false;  // the tag holds what was found out on the way, such as the key of random numbers
  std::shared_ptr<const CallOnStored> of_stored;  // of a call that views a parameter stored in blocks
};

void set_origin(const at::Tensor& tensor, uint64_t tag) {
  if (ShardTensorImpl* impl = shard_impl(tensor)) impl->origin = tag;
}

// A written tensor is a result of this call, and filled ghosts may be out of date.
void note_write(ShardTensorImpl& impl, const CallState& call) {
  impl.origin = call.tag;
  invalidate_host_halos();
}

// A block that is shared with another ShardTensor cannot be replaced by one of another spec.
void check_may_be_written(const Decision::Move& move, const ShardTensorImpl& impl, bool shared,
                          const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(!move.written || !shared, op.operator_name().name, ": a ",
                              impl.spec()->has_partial() ? "Partial" : "whole",
                              " ShardTensor that shares memory with another cannot be written in place", "\n  have  ",
                              impl.spec()->to_string(), "\n  fix   redistribute or clone() it first");
}

// The reason for which a tensor that a call is given moves.
Traffic traffic_of(const ShardSpec& given) { return given.has_stored() ? Traffic::kParameters : Traffic::kInputs; }

// Sums a Partial tensor that a view is made from, so that both can be kept equal, and moves the sum.
at::Tensor sum_and_move(const Decision::Move& move, ShardTensorImpl& impl) {
  const SpecPtr summed = without_partial(impl.spec());
  impl.replace(redistribute_local(impl.local(), impl.spec(), summed, Traffic::kInputs), summed);
  return redistribute_local(impl.local(), summed, move.required, Traffic::kInputs);
}

// Moves a block to the planned spec. Where the plan resolves the tensor, that block becomes its own.
at::Tensor move_block(const Decision::Move& move, const at::Tensor& tensor, ShardTensorImpl& impl,
                      const c10::OperatorHandle& op, const CallState& call) {
  const bool shared = move.resolves && impl.shares_block();
  check_may_be_written(move, impl, shared, op);
  if (move.written) block_was_written(impl.local());
  const bool stored = impl.spec()->has_stored();
  at::Tensor moved;
  if (stored && !call.views) moved = reusable_block(tensor, move.required);
  if (!moved.defined()) moved = move.redistribution->apply(impl.local(), traffic_of(*impl.spec()));
  // A slice would keep the whole tensor alive.
  if (move.resolves && impl.spec()->is_replicate()) moved = moved.clone();
  // Kernels add up in the order of memory, so a stored matrix is fetched as it would be stored whole.
  if ((stored || move.resolves) && !tensor.is_contiguous()) moved = laid_as(moved, tensor.strides());
  if (move.resolves && !shared) impl.replace(moved, move.required);
  return moved;
}

// The block with the planned spec; undefined if that is the tensor's own.
at::Tensor planned_block(const Decision::Move& move, const at::Tensor& tensor, ShardTensorImpl& impl,
                         const c10::OperatorHandle& op, const CallState& call) {
  if (impl.spec() != move.given) {
    // The same tensor stands twice in a call, and has been resolved the first time.
    const SpecPtr& required = move.required ? move.required : move.given;
    if (impl.spec() == required) return {};
    return redistribute_local(impl.local(), impl.spec(), required, traffic_of(*impl.spec()));
  }
  if (!move.redistribution) return {};
  if (call.views && !move.resolves && impl.spec()->has_partial() && !impl.shares_block())
    return sum_and_move(move, impl);
  return move_block(move, tensor, impl, op, call);
}

// Records for the views of this call what their base is read as. A block that another tensor has, too, is copied.
void read_for_views(const Decision::Move& move, const at::Tensor& tensor, const ShardTensorImpl& impl, CallState& call,
                    at::Tensor& moved) {
  const bool cut_again = moved.defined() && impl.spec() != move.required;
  // This rank alone may have had nothing to move.
  if (cut_again && moved.is_alias_of(impl.local())) moved = copied_block(moved);
  call.views->read(tensor, cut_again ? moved : at::Tensor(), move.required);
}

// The block that the local call is given for one tensor.
at::Tensor localize(const Decision::Move& move, const at::Tensor& tensor, const c10::OperatorHandle& op,
                    const c10::IValue* arguments, CallState& call) {
  if (!tensor.defined()) return tensor;
  ShardTensorImpl* impl = shard_impl(tensor);
  if ((impl == nullptr || !impl->guarded) && tensor.requires_grad() && c10::GradMode::is_enabled())
    install_gradient_hook(tensor);
  if (impl == nullptr) {
    if (is_lazy(tensor) && !move.written) [[unlikely]]
      return localize(move, materialize_lazy_bits(tensor), op, arguments, call);
    used_with_shard_tensors(tensor, move.given->mesh(), op, move.arg, move.item, arguments);
    return move.redistribution ? move.redistribution->apply(tensor, Traffic::kInputs) : tensor;
  }
  if (impl->get_backend_meta() != nullptr || (move.written && writes_are_counted())) [[unlikely]]
    call.prepare(tensor, move.written, op);
  if (move.written) note_write(*impl, call);
  at::Tensor moved = planned_block(move, tensor, *impl, op, call);
  if (call.views) read_for_views(move, tensor, *impl, call, moved);
  return moved.defined() ? moved : impl->local();
}

// The short way of localize for most tensors: a block that is read or written in place, and that nothing else
// depends on. Null where there is more to do.
inline const at::Tensor* block_as_it_is(const Decision::Move& move, const at::Tensor& tensor,
                                        const CallState& sharing) {
  if (move.redistribution || sharing.views || !tensor.unsafeGetTensorImpl()->key_set().has(kShardKey)) return nullptr;
  // Planning has looked at the type.
  auto& impl = static_cast<ShardTensorImpl&>(*tensor.unsafeGetTensorImpl());
  if (impl.spec() != move.given || impl.get_backend_meta() != nullptr || (!impl.guarded && impl.requires_grad()))
    return nullptr;
  if (move.written) {
    if (writes_are_counted() || ghosts_are_filled()) [[unlikely]]
      return nullptr;
    impl.origin = sharing.tag;
  }
  return &impl.local();
}

// Replaces the tensors of a call by the blocks that were planned. Lists are shared with the caller: new ones are built.
void move_inputs(const Decision& decision, const c10::OperatorHandle& op, Stack& stack, size_t base,
                 CallState& sharing) {
  c10::IValue* const arguments = stack.data() + base;
  for (auto move = decision.moves.begin(); move != decision.moves.end(); ++move) {
    c10::IValue& value = arguments[move->arg];
    if (move->item < 0) {
      at::Tensor& tensor = value.toTensor();
      const at::Tensor* block = block_as_it_is(*move, tensor, sharing);
      if (block != nullptr) [[likely]] {
        tensor = at::Tensor(*block);  // the block may die with what it replaces
      } else {
        value = localize(*move, tensor, op, arguments, sharing);
      }
      continue;
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector())
        list.push_back(localize(*move++, item, op, arguments, sharing));
      value = std::move(list);
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : value.toOptionalTensorVector()) {
        const auto& its = *move++;
        list.push_back(item ? std::optional(localize(its, *item, op, arguments, sharing)) : std::nullopt);
      }
      value = std::move(list);
    }
    --move;
  }
}

// Only what the run function can ask for. Ghosts are not read in inference mode and of inference tensors, which count
// no versions: a block that was written without the ShardTensor would not be found.
GivenTensors given_tensors(const Decision& decision, const Stack& stack, size_t base) {
  GivenTensors given;
  if (decision.plan.asks_for_tensors) [[unlikely]]
    given.arguments = at::ArrayRef(stack).slice(base).vec();
  if (!decision.plan.run || !ghosts_are_filled() || c10::InferenceMode::is_enabled()) [[likely]]
    return given;
  for (const Decision::Move& move : decision.moves) {
    if (move.item >= 0 || !move.given || move.is_moved()) continue;
    const at::Tensor& tensor = stack[base + move.arg].toTensor();
    if (is_shard_tensor(tensor) && tensor.unsafeGetTensorImpl()->version_counter().enabled())
      given.not_moved.emplace_back(Arg{move.arg}, tensor);
  }
  return given;
}

const MeshPtr& mesh_of(const Decision& decision) {
  const auto defined = std::ranges::find_if(decision.moves, [](const auto& move) { return move.given != nullptr; });
  return defined->given->mesh();
}

// By result: the tensor of the caller that it is, undefined where it is a new one. Empty where none is.
using WrittenTensors = c10::SmallVector<at::Tensor, 2>;
WrittenTensors written_tensors(const OperatorFacts& facts, const Stack& stack, size_t base) {
  WrittenTensors written;
  if (!facts.returns_written) return written;
  for (const int arg : facts.returns_argument) {
    const bool known = arg >= 0 && stack[base + arg].isTensor();
    written.push_back(known ? stack[base + arg].toTensor() : at::Tensor());
  }
  return written;
}

void run_locally(const Decision& decision, const c10::OperatorHandle& op, Stack& stack, const GivenTensors& given) try {
  if (decision.plan.run) {
    LocalCall call(op, stack, &given);
    decision.plan.run(call);
  } else {
    op.callBoxed(stack);
  }
} catch (const c10::OutOfMemoryError& error) {
  std::vector<SpecPtr> tensors = decision.plan.outputs;
  for (const Decision::Move& move : decision.moves) tensors.push_back(move.required ? move.required : move.given);
  throw_with_blocks(error, op.operator_name().name, tensors);
}

// One block of the results as a ShardTensor; `index` counts results, lists flattened.
at::Tensor wrap_result(const Decision& decision, size_t index, at::Tensor local, const c10::OperatorHandle& op,
                       CallState& call) {
  if (!local.defined()) return local;
  const auto& outputs = decision.plan.outputs;
  TORCH_INTERNAL_ASSERT(outputs.empty() || index < outputs.size(), op.operator_name().name,
                        " gave more results than planned");
  if (!outputs.empty() && !outputs[index]) return local;
  if (!call.views && local.numel() == 0) [[unlikely]]
    local = canonical_empty_strides(local, op.operator_name().name);
  at::Tensor result = outputs.empty() ? wrap(local, replicated(mesh_of(decision), local.sizes()))
                                      : wrap(std::move(local), outputs[index]);
  auto& impl = static_cast<ShardTensorImpl&>(*result.unsafeGetTensorImpl());
  impl.origin = index == 0 ? call.tag : combine_fingerprint(call.tag, index);
  if (call.views) {
    call.views->mark(impl, decision.plan.breaks_alias);
  } else if (!decision.strides.empty() || !impl.local().is_contiguous()) [[unlikely]] {
    lay_as_declared(decision.strides, index, decision.any_order, impl);
  }
  if (decision.any_order) [[unlikely]]
    make_notes(impl).any_order = true;
  if (call.of_stored) [[unlikely]]
    note_view(result, call.of_stored, index);
  return result;
}

// Makes the results of the call of what the local call left on the stack.
void wrap_results(const Decision& decision, const c10::OperatorHandle& op, Stack& stack, size_t base,
                  WrittenTensors& written, CallState& call) {
  size_t next = 0;
  for (size_t r = 0; r < stack.size() - base; ++r) {
    c10::IValue& value = stack[base + r];
    if (r < written.size() && written[r].defined()) {
      if (call.found_more) [[unlikely]]
        set_origin(written[r], call.tag);
      value = std::move(written[r]);
      ++next;
    } else if (value.isTensor()) {
      value = wrap_result(decision, next++, std::move(value).toTensor(), op, call);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector())
        list.push_back(wrap_result(decision, next++, item, op, call));
      value = std::move(list);
    }
  }
}

}  // namespace

struct Dispatch::Entry {
  explicit Entry(const c10::OperatorHandle& op) : facts(op) {}
  OperatorFacts facts;
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<const Decision>>> decisions;
  OperatorCounts counts;
  const Decision* last = nullptr;  // a program repeats itself: tried before the table
};

Dispatch& Dispatch::of_this_thread() { return *dispatch_context->dispatch; }

void Dispatch::clear() {
  for (auto& [name, entry] : entries_) {
    entry->decisions.clear();
    entry->last = nullptr;
  }
  decisions_ = 0;
  clear_redistribution_cache();
}

Dispatch::Entry& Dispatch::entry(const c10::OperatorHandle& op) {
  const void* name = &op.operator_name();
  auto& [recent, found] = recent_[(reinterpret_cast<uintptr_t>(name) >> 4) % recent_.size()];
  if (recent == name) return *found;
  auto& entry = entries_[name];
  if (!entry) {
    entry = std::make_unique<Entry>(op);
    // Asked when a tangent is set, on all ranks.
    const std::string& name = op.operator_name().name;
    if (name == "aten::_make_dual" || name == "aten::_has_same_storage_numel") log_.forward_mode_begins();
  }
  recent = name;
  found = entry.get();
  return *entry;
}

void Dispatch::run(const c10::OperatorHandle& op, Stack& stack) {
  const SuspendCapture inside;
  ++counts.calls;
  Entry& e = entry(op);
  const OperatorFacts& facts = e.facts;
  if (facts.functional) return run_functional(facts, stack);
  if (!facts.rule && ((facts.composite_implicit && !facts.pointwise) || facts.decomposes)) {
    ++counts.decomposed;
    if (facts.host_argument >= 0) to_host(LocalCall(op, stack).value(Arg{facts.host_argument}));
    op.callBoxedForDispatchKey(
        facts.decomposes ? c10::DispatchKey::CompositeExplicitAutograd : c10::DispatchKey::CompositeImplicitAutograd,
        stack);
    return;
  }
  if (facts.view) {
    // View + in-place is replayed through the view operators themselves: as_strided means nothing on a block.
    c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  }
  const bool cacheable = write_key(facts, stack);
  if (const Decision* known = cacheable ? find(e) : nullptr) return run_decision(e, *known, op, stack);
  const std::shared_ptr<const Decision> made = decide(facts, op, stack);
  if (cacheable) remember(e, made);
  run_decision(e, *made, op, stack);
}

// The origin of the tensor whose value an operator passes on: what copy_ reads, the first of others.
uint64_t Dispatch::original_origin(const OperatorFacts& facts, const Stack& stack) const {
  if (!facts.written[0]) return first_origin_;
  const c10::IValue& source = stack[stack.size() - facts.arguments + 1];
  const ShardTensorImpl* impl =
      source.isTensor() && source.toTensor().defined() ? shard_impl(source.toTensor()) : nullptr;
  return impl != nullptr ? impl->origin : combine_fingerprint(origins_, 1);
}

void Dispatch::run_decision(Entry& entry, const Decision& decision, const c10::OperatorHandle& op, Stack& stack) {
  const int64_t before = decision.may_send ? bytes_sent_by_this_thread() : 0;
  std::optional<TracedCall> traced;
  if (trace != nullptr) traced.emplace();
  const size_t base = stack.size() - entry.facts.arguments;
  const uint64_t tag = combine_fingerprint(log_.shared_origin(origins_), decision.tag);
  const uint64_t origin = decision.keeps_value ? original_origin(entry.facts, stack) : tag;
  if (!decision.keeps_value) log_.add(tag, first_origin_, op.operator_name());
  if (decision.may_send) {
    const auto describe = [this, &decision, first = first_origin_] {
      return inputs_text(decision) + log_.made_by(first);
    };
    CallScope scope(tag, op.operator_name().name.c_str(), describe);
    execute(entry.facts, decision, op, stack, origin, &scope);
  } else {
    execute(entry.facts, decision, op, stack, origin, nullptr);
  }
  if (!decision.strides.empty()) declare_strides(decision.strides, stack, base);
  const int64_t sent = decision.may_send ? bytes_sent_by_this_thread() - before : 0;
  ++entry.counts.calls;
  entry.counts.bytes += sent;
  if (decision.plan.gathered) {
    ++counts.gathered;
    ++entry.counts.gathered;
    ++gathered[c10::toString(op.operator_name())];
  }
  if (traced) trace->push_back(traced->record(op, decision, sent));
}

std::map<std::string, OperatorCounts> Dispatch::operator_counts() const {
  std::map<std::string, OperatorCounts> all;
  for (const auto& [name, entry] : entries_) {
    if (entry->counts.calls > 0)
      all.emplace(c10::toString(*static_cast<const c10::OperatorName*>(name)), entry->counts);
  }
  return all;
}

void Dispatch::reset_operator_counts() {
  for (auto& [name, entry] : entries_) entry->counts = {};
}

// A tensor that is written does not take part where it is not read, so results may be cut in any way: each is put where
// it belongs.
const Decision* Dispatch::find(Entry& entry) {
  const auto key = key_.get();
  if (entry.last != nullptr && key == at::IntArrayRef(entry.last->key)) return entry.last;
  const auto found = entry.decisions.find(hash_of(key));
  if (found == entry.decisions.end()) return nullptr;
  for (const auto& decision : found->second) {
    if (key == at::IntArrayRef(decision->key)) return entry.last = decision.get();
  }
  return nullptr;
}

void Dispatch::remember(Entry& entry, std::shared_ptr<const Decision> decision) {
  if (decisions_ >= kMaxDecisions) clear();
  ++decisions_;
  entry.last = decision.get();
  entry.decisions[hash_of(decision->key)].push_back(std::move(decision));
}

void Dispatch::execute(const OperatorFacts& facts, const Decision& decision, const c10::OperatorHandle& op,
                       Stack& stack, uint64_t origin, const CallScope* scope) {
  const size_t base = stack.size() - facts.arguments;
  WrittenTensors written = written_tensors(facts, stack, base);
  CallState sharing;
  sharing.tag = origin;
  if (facts.view) {
    sharing.views.emplace();
    sharing.of_stored = call_on_stored(op, at::ArrayRef(stack).slice(base));
  }
  const GivenTensors given = given_tensors(decision, stack, base);
  const bool in_rows = !facts.reads_order || stack[base].toTensor().is_contiguous();
  std::optional<ForeignCall> foreign;
  if (decision.foreign) [[unlikely]]
    foreign.emplace(decision, stack, base);
  move_inputs(decision, op, stack, base, sharing);
  if (foreign) [[unlikely]]
    foreign->lay(stack, base);
  if (facts.reads_order) [[unlikely]]
    stack[base] = match_layout(stack[base].toTensor(), in_rows);
  for (const auto& [arg, value] : decision.plan.argument_overrides) stack[base + arg.index] = value;
  const uint64_t draws = facts.random ? last_draw().count : 0;
  if (c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset)) {
    run_locally(decision, op, stack, given);
  } else {
    // The casts of autocast are done: what follows runs in the types that came.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    run_locally(decision, op, stack, given);
  }
  if (foreign) [[unlikely]]
    foreign->put_back();
  sharing.after_writing();
  if (facts.random && last_draw().count != draws) draws_beside_others(mesh_of(decision), op);
  if (scope != nullptr) {
    sharing.found_more = scope->result_tag() != scope->tag();
    if (sharing.found_more) sharing.tag = scope->result_tag();
  }
  wrap_results(decision, op, stack, base, written, sharing);
}

Fallback set_fallback(Fallback fallback) {
  Dispatch::of_this_thread().clear();
  return std::exchange(base_context->settings.fallback, fallback);
}

}  // namespace moonhalo
