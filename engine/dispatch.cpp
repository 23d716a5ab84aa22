// SPDX-License-Identifier: Apache-2.0
#include "engine/dispatch.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/boundary.h"

namespace moonhalo {
namespace {

constexpr const char* kGathered = "gathered";  // the note of plans of the fallback
constexpr int64_t kMaxDecisions = 16384;  // per thread; then all are forgotten, so memory stays bounded

uint64_t hash_of(const std::vector<int64_t>& key) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const int64_t word : key) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 29;
  }
  return hash;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Views share the counter of what they were made from; in inference mode nobody counts.
uint32_t version_of(const ShardTensorImpl& impl) {
  return impl.version_counter().enabled() ? impl.version_counter().current_version() : 0;
}

}  // namespace

struct Dispatch::Entry {
  explicit Entry(const c10::OperatorHandle& op) : facts(op) {}
  OperatorFacts facts;
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<const Decision>>> decisions;
  const Decision* last = nullptr;  // a program repeats itself: tried before the table
};

OperatorFacts::OperatorFacts(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& name = op.operator_name().name;
  rule = find_rule(op.operator_name());
  // A rule named without an overload speaks of results that are made, not of out= tensors that are given.
  const bool out = std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) { return a.is_out(); });
  if (rule && out && rule->op == name) rule = nullptr;
  pointwise = op.hasTag(at::Tag::pointwise);
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  composite_implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  static constexpr std::array<const char*, 3> kMadeOfOthers = {"aten::affine_grid_generator", "aten::block_diag",
                                                               "aten::dist"};
  const bool made_of_others = std::find(kMadeOfOthers.begin(), kMadeOfOthers.end(), name) != kMadeOfOthers.end();
  decomposes = (made_of_others || starts_with(name, "aten::_foreach_") || starts_with(name, "aten::_fused_")) &&
               op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  arguments = schema.arguments().size();
  for (const auto& argument : schema.arguments()) {
    written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  for (const auto& result : schema.returns()) {
    int same = -1;
    const auto* alias = result.alias_info();
    for (size_t i = 0; alias != nullptr && i < arguments; ++i) {
      const auto* other = schema.arguments()[i].alias_info();
      if (other == nullptr || other->beforeSets() != alias->beforeSets()) continue;
      if (written[i]) {
        same = static_cast<int>(i);
      } else {
        view = true;
      }
    }
    // A list result aliases its argument through its elements.
    if (result.type()->kind() == c10::TypeKind::ListType && schema.arguments()[0].alias_info() && !written[0]) {
      view = true;
    }
    returns_argument.push_back(same);
  }
}

Dispatch& Dispatch::of_this_thread() {
  static thread_local Dispatch dispatch;
  return dispatch;
}

void Dispatch::clear() {
  for (auto& [name, entry] : entries_) {
    entry->decisions.clear();
    entry->last = nullptr;
  }
  decisions_ = 0;
}

Dispatch::Entry& Dispatch::entry(const c10::OperatorHandle& op) {
  auto& entry = entries_[&op.operator_name()];
  if (!entry) entry = std::make_unique<Entry>(op);
  return *entry;
}

void Dispatch::run(const c10::OperatorHandle& op, Stack& stack) {
  ++counts.calls;
  Entry& e = entry(op);
  const OperatorFacts& facts = e.facts;
  if (!facts.rule && ((facts.composite_implicit && !facts.pointwise) || facts.decomposes)) {
    ++counts.decomposed;
    op.callBoxedForDispatchKey(facts.decomposes ? c10::DispatchKey::CompositeExplicitAutograd
                                                : c10::DispatchKey::CompositeImplicitAutograd,
                               stack);
    return;
  }
  if (trace != nullptr) trace->push_back(c10::toString(op.operator_name()));
  if (facts.view) {
    // View + in-place is replayed through the view operators themselves: as_strided means nothing on a block.
    c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  }
  const bool cacheable = write_key(facts, stack);
  if (const Decision* known = cacheable ? find(e) : nullptr) return execute(facts, *known, op, stack);
  const std::shared_ptr<const Decision> made = decide(facts, op, stack);
  if (cacheable) remember(e, made);
  execute(facts, *made, op, stack);
}

// The facts that a plan may depend on, as words. False when an argument cannot be written down.
bool Dispatch::write_key(const OperatorFacts& facts, const Stack& stack) {
  key_.clear();
  const auto tensor = [&](const at::Tensor& t) {
    if (!t.defined()) return key_.push_back(-1);
    const auto dtype = static_cast<int64_t>(t.scalar_type()) << 56;
    if (const ShardTensorImpl* impl = shard_impl(t)) {
      key_.push_back(reinterpret_cast<int64_t>(impl->spec().get()) ^ dtype);
    } else {
      key_.push_back((int64_t{1} << 55) ^ dtype ^ t.dim());
      key_.insert(key_.end(), t.sizes().begin(), t.sizes().end());
    }
  };
  const size_t base = stack.size() - facts.arguments;
  for (size_t i = 0; i < facts.arguments; ++i) {
    const c10::IValue& v = stack[base + i];
    if (v.isTensor()) {
      tensor(v.toTensor());
      continue;
    }
    if (v.isTensorList()) {
      const auto list = v.toListRef();
      key_.push_back(static_cast<int64_t>(list.size()));
      for (const auto& item : list) tensor(item.toTensor());
      continue;
    }
    if (v.isOptionalTensorList()) {
      const auto list = v.toListRef();
      key_.push_back(static_cast<int64_t>(list.size()));
      for (const auto& item : list) item.isNone() ? key_.push_back(-2) : tensor(item.toTensor());
      continue;
    }
    if (facts.pointwise && !facts.rule) continue;  // its plan reads shapes alone
    if (v.isNone()) {
      key_.push_back(-3);
    } else if (v.isInt()) {
      key_.push_back(v.toInt());
    } else if (v.isBool()) {
      key_.push_back(v.toBool());
    } else if (v.isDouble()) {
      const double value = v.toDouble();
      int64_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      key_.push_back(bits);
    } else if (v.isIntList() || v.isBoolList() || v.isDoubleList()) {
      const auto list = v.toListRef();
      key_.push_back(static_cast<int64_t>(list.size()));
      for (const auto& item : list) {
        int64_t bits = 0;
        if (item.isDouble()) {
          const double value = item.toDouble();
          std::memcpy(&bits, &value, sizeof bits);
        } else {
          bits = item.isBool() ? item.toBool() : item.toInt();
        }
        key_.push_back(bits);
      }
    } else if (v.isString()) {
      const std::string& text = v.toStringRef();
      key_.push_back(static_cast<int64_t>(text.size()));
      for (size_t at = 0; at < text.size(); at += 8) {
        int64_t word = 0;
        std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
        key_.push_back(word);
      }
    } else if (v.isDevice() || v.isGenerator()) {
      key_.push_back(-4);
    } else {
      return false;
    }
  }
  return true;
}

const Decision* Dispatch::find(Entry& entry) {
  if (entry.last != nullptr && entry.last->key == key_) return entry.last;
  const auto found = entry.decisions.find(hash_of(key_));
  if (found == entry.decisions.end()) return nullptr;
  for (const auto& decision : found->second) {
    if (decision->key == key_) return entry.last = decision.get();
  }
  return nullptr;
}

std::shared_ptr<Decision> Dispatch::decide(const OperatorFacts& facts, const c10::OperatorHandle& op, const Stack& stack) {
  ++counts.planned;
  auto decision = std::make_shared<Decision>();
  decision->key = key_;
  const OpCall call(op, stack);
  for (const Slot& slot : call.slots()) {
    if (slot.spec) decision->alive.push_back(slot.spec);
  }
  decision->plan = plan(facts, call);
  const Plan& made = decision->plan;
  TORCH_INTERNAL_ASSERT(made.inputs.size() == call.slots().size(), call.name(), ": the plan names ",
                        made.inputs.size(), " inputs of ", call.slots().size());
  for (size_t s = 0; s < call.slots().size(); ++s) {
    const Slot& slot = call.slots()[s];
    Decision::Move move{slot.arg, slot.item, made.inputs[s], nullptr, false, facts.written[slot.arg]};
    if (slot.spec && move.wanted && move.wanted != slot.spec) {
      move.redistribution = std::make_unique<Redistribution>(slot.spec, move.wanted);
      move.resolves = !slot.plain && slot.spec->has_partial() && move.wanted == without_partial(slot.spec);
      TORCH_INTERNAL_ASSERT(!move.written || move.resolves, call.name(), ": the plan moves a tensor that is written");
    }
    decision->moves.push_back(std::move(move));
  }
  return decision;
}

void Dispatch::remember(Entry& entry, std::shared_ptr<const Decision> decision) {
  if (decisions_ >= kMaxDecisions) clear();
  ++decisions_;
  entry.last = decision.get();
  entry.decisions[hash_of(decision->key)].push_back(std::move(decision));
}

Plan Dispatch::plan(const OperatorFacts& facts, const OpCall& call) {
  if (facts.rule) {
    if (auto made = facts.rule->plan(call)) return std::move(*made);
  } else if (facts.pointwise && !facts.random) {
    const Rule* pointwise = find_rule({"moonhalo::pointwise", ""});
    if (auto made = pointwise->plan(call)) return std::move(*made);
  }
  // No rule: gather, or refuse.
  TORCH_CHECK_NOT_IMPLEMENTED(!facts.random, call.name(),
                              ": no rule for this random operator; gathered, ranks would draw different values\n  have  ",
                              call.describe(), "\n  fix   use dropout, rand_like, randn_like, bernoulli or an in-place "
                              "initialiser, or draw a plain tensor from a seeded generator and distribute it");
  TORCH_CHECK_NOT_IMPLEMENTED(fallback == Fallback::kReplicate, call.name(), ": no rule for these placements\n  have  ",
                              call.describe(), "\n  fix   redistribute the cut dims first, or set_fallback(replicate) to ",
                              "gather its tensors");
  const std::string name = call.name();
  if (gathered.find(name) == gathered.end() && call.mesh()->rank() == 0) {
    TORCH_WARN(name, ": no rule for these placements, its tensors are gathered to every rank (told once)\n  have  ",
               call.describe());
  }
  Plan gather;
  for (const Slot& slot : call.slots()) {
    gather.inputs.push_back(!slot.spec ? nullptr
                            : facts.written[slot.arg] ? without_partial(slot.spec)
                                                      : replicated(call.mesh(), slot.spec->global_shape()));
  }
  gather.copies_view = facts.view;
  gather.note = kGathered;
  // What is written is gathered into a copy, and the owned block of the outcome put back.
  std::vector<std::pair<int, SpecPtr>> targets;
  for (const Slot& slot : call.slots()) {
    if (!facts.written[slot.arg] || !slot.spec) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(slot.item < 0, name, ": no rule for writing to a list of ShardTensors");
    targets.emplace_back(slot.arg, without_partial(slot.spec));
  }
  if (!targets.empty()) {
    gather.run = [targets](const c10::OperatorHandle& op, Stack& stack) {
      std::vector<std::pair<at::Tensor, at::Tensor>> written;  // block, gathered copy
      for (const auto& [arg, spec] : targets) {
        c10::IValue& value = argument(op, stack, arg);
        at::Tensor block = value.toTensor();
        at::Tensor full = redistribute_local(block, spec, replicated(spec->mesh(), spec->global_shape()));
        if (full.is_alias_of(block)) full = full.clone();
        value = full;
        written.emplace_back(std::move(block), std::move(full));
      }
      op.callBoxed(stack);
      for (size_t i = 0; i < written.size(); ++i) {
        const auto& [arg, spec] = targets[i];
        auto& [block, full] = written[i];
        TORCH_CHECK_NOT_IMPLEMENTED(full.sizes() == at::IntArrayRef(spec->global_shape()), op.operator_name().name,
                                    ": a ShardTensor cannot be resized in place\n  have  ", spec->to_string(),
                                    "\n  fix   use the operator that returns a new tensor");
        block.copy_(redistribute_local(full, replicated(spec->mesh(), spec->global_shape()), spec));
      }
    };
  }
  return gather;
}

void Dispatch::execute(const OperatorFacts& facts, const Decision& decision, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - facts.arguments;
  if (!decision.plan.note.empty() && decision.plan.note == kGathered) {
    ++counts.gathered;
    ++gathered[c10::toString(op.operator_name())];
  }
  const bool records = c10::GradMode::is_enabled();
  const MeshPtr* mesh = nullptr;
  c10::SmallVector<at::Tensor, 2> kept(facts.returns_argument.size());
  for (size_t r = 0; r < kept.size(); ++r) {
    const int arg = facts.returns_argument[r];
    if (arg >= 0 && stack[base + arg].isTensor()) kept[r] = stack[base + arg].toTensor();
  }
  // A view must share memory with what it was made from; it may be a copy by plan, of a copy, or because a narrowed
  // block has gaps.
  c10::Storage viewed;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> copied_from;
  uint32_t copied_at = 0;
  const auto view_of = [&](const ShardTensorImpl& impl) {
    if (!facts.view || !impl.local().has_storage()) return;
    viewed = impl.local().storage();
    if (impl.copied_view()) copied_from = impl.copied_from;
    copied_at = version_of(impl);
  };
  const auto localize = [&](const Decision::Move& move, const at::Tensor& tensor) -> at::Tensor {
    if (!tensor.defined()) return tensor;
    ShardTensorImpl* impl = shard_impl(tensor);
    if (records && tensor.requires_grad() && (impl == nullptr || !impl->guarded)) guard_gradient(tensor);
    if (impl == nullptr) return move.redistribution ? move.redistribution->apply(tensor) : tensor;
    mesh = &impl->spec()->mesh();
    if (move.written) {
      TORCH_CHECK_NOT_IMPLEMENTED(!impl->copied_view(), op.operator_name().name,
                                  ": this view of a ShardTensor had to be copied, so writing to it in place would be lost",
                                  "\n  have  ", impl->spec()->to_string(), "\n  fix   clone() it first, or write to the tensor it was made from");
    }
    TORCH_CHECK_NOT_IMPLEMENTED(!impl->copied_view() || version_of(*impl) <= impl->copied_at, op.operator_name().name,
                                ": this view of a ShardTensor had to be copied, and what it was made from has been ",
                                "written in place since\n  have  ", impl->spec()->to_string(),
                                "\n  fix   make the view again after writing");
    // The same tensor may stand twice in a call, and have been resolved the first time.
    if (!move.redistribution || impl->spec() == move.wanted) {
      view_of(*impl);
      return impl->local();
    }
    // A Partial that shares its addends with a view cannot part from it.
    const bool shared = move.resolves && impl->local().storage().use_count() > 1;
    TORCH_CHECK_NOT_IMPLEMENTED(!move.written || !shared, op.operator_name().name,
                                ": a Partial ShardTensor that shares memory with another cannot be written in place",
                                "\n  have  ", impl->spec()->to_string(), "\n  fix   redistribute or clone() it first");
    at::Tensor local = move.redistribution->apply(impl->local());
    if (move.resolves && !shared) impl->replace(local, move.wanted);
    view_of(*impl);
    return local;
  };
  for (size_t m = 0; m < decision.moves.size(); ++m) {
    const Decision::Move& move = decision.moves[m];
    c10::IValue& value = stack[base + move.arg];
    if (move.item < 0) {
      value = localize(move, value.toTensor());
      continue;
    }
    // Lists are shared with the caller: build a new one.
    if (value.isTensorList()) {
      const auto items = value.toTensorVector();
      c10::List<at::Tensor> list;
      list.reserve(items.size());
      for (const at::Tensor& item : items) list.push_back(localize(decision.moves[m++], item));
      value = std::move(list);
    } else {
      const auto items = value.toOptionalTensorVector();
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(items.size());
      for (const auto& item : items) {
        const auto& list_move = decision.moves[m++];
        list.push_back(item ? std::optional(localize(list_move, *item)) : std::nullopt);
      }
      value = std::move(list);
    }
    --m;
  }
  for (const auto& [arg, value] : decision.plan.edits) stack[base + arg] = value;

  if (decision.plan.run) {
    decision.plan.run(op, stack);
  } else {
    op.callBoxed(stack);
  }

  const auto& outputs = decision.plan.outputs;
  size_t next = 0;
  const auto globalize = [&](const at::Tensor& local) -> at::Tensor {
    const size_t index = next++;
    if (!local.defined()) return local;
    if (outputs.empty()) return wrap(local, replicated(*mesh, local.sizes()));
    TORCH_INTERNAL_ASSERT(index < outputs.size(), op.operator_name().name, " gave more results than planned");
    return outputs[index] ? wrap(local, outputs[index]) : local;
  };
  const auto mark = [&](const at::Tensor& result) {
    if (!viewed || !result.defined()) return;
    ShardTensorImpl* impl = shard_impl(result);
    if (impl == nullptr) return;
    const bool shares = impl->local().has_storage() && impl->local().storage().is_alias_of(viewed);
    if (!copied_from && shares && !decision.plan.copies_view) return;
    impl->copied_from = copied_from ? copied_from : viewed.getWeakStorageImpl();
    impl->copied_at = copied_at;
  };
  const size_t results = stack.size() - base;
  for (size_t r = 0; r < results; ++r) {
    c10::IValue& value = stack[base + r];
    if (r < kept.size() && kept[r].defined()) {
      value = std::move(kept[r]);
      ++next;
    } else if (value.isTensor()) {
      at::Tensor result = globalize(value.toTensor());
      mark(result);
      value = std::move(result);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) {
        at::Tensor result = globalize(item);
        mark(result);
        list.push_back(std::move(result));
      }
      value = std::move(list);
    }
  }
}

Fallback set_fallback(Fallback fallback) {
  Dispatch& dispatch = Dispatch::of_this_thread();
  dispatch.clear();
  return std::exchange(dispatch.fallback, fallback);
}

}  // namespace moonhalo
