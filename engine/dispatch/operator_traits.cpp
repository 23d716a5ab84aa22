// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/operator_traits.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

bool starts_with(const std::string& text, std::string_view prefix) { return text.rfind(prefix, 0) == 0; }

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// All overloads of one name. Libraries that are loaded later bring names of their own, so a name that is missing is
// looked for again.
std::vector<c10::OperatorName> overloads_of(const std::string& name) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
  const std::lock_guard lock(mutex);
  if (known->find(name) == known->end()) {
    known->clear();
    for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) (*known)[op.name].push_back(op);
  }
  const auto found = known->find(name);
  return found == known->end() ? std::vector<c10::OperatorName>{} : found->second;
}

bool tensor_free(const c10::TypePtr& type) {
  const auto inner = type->containedTypes();
  return type->kind() != c10::TypeKind::TensorType && std::all_of(inner.begin(), inner.end(), tensor_free);
}

// Factories take these beyond the arguments of their out= form: they say how the tensor is made.
bool tells_how_to_make(const c10::Argument& argument) {
  static constexpr std::array<std::string_view, 5> kNames = {"dtype", "layout", "device", "pin_memory",
                                                             "memory_format"};
  return argument.kwarg_only() && argument.default_value() &&
         std::find(kNames.begin(), kNames.end(), argument.name()) != kNames.end();
}

// These factor the transposed matrix where that is stored row by row; their derivatives ask the whole tensor which
// it was.
constexpr std::array<std::string_view, 3> kReadOrder = {"aten::_linalg_det", "aten::_linalg_slogdet",
                                                        "aten::_linalg_solve_ex"};

// Composite kernels that only call other operators, beside those of _foreach_ and _fused_.
constexpr std::array<std::string_view, 13> kMadeOfOthers = {"aten::_pack_padded_sequence",
                                                            "aten::affine_grid_generator",
                                                            "aten::block_diag",
                                                            "aten::dist",
                                                            "aten::embedding_renorm",
                                                            "aten::linspace",
                                                            "aten::logspace",
                                                            "aten::masked_scatter_backward",
                                                            "aten::normal",
                                                            "aten::normal_functional",
                                                            "aten::rand",
                                                            "aten::randint",
                                                            "aten::randn"};

template <size_t kCount>
bool contains(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The place of a tensor argument, or -1.
int tensor_argument(const c10::FunctionSchema& schema, const char* name) {
  const auto index = schema.argumentIndexWithName(name);
  return index && *schema.arguments()[*index].type() == *c10::TensorType::get() ? *index : -1;
}

}  // namespace

std::optional<c10::OperatorHandle> functional_variant(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  if (std::none_of(arguments.begin(), arguments.end(), writes)) return std::nullopt;
  const bool out = std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); });
  std::string name = op.operator_name().name;
  std::vector<const c10::Argument*> required;
  for (const auto& argument : arguments) {
    if (!out || !argument.is_out()) required.push_back(&argument);
  }
  if (!out) {
    if (name.back() != '_') return std::nullopt;
    name.pop_back();
  }
  std::optional<c10::OperatorHandle> factory;
  for (const auto& candidate : overloads_of(name)) {
    const auto other = c10::Dispatcher::singleton().findSchema(candidate);
    if (!other) continue;
    const auto& others = other->schema().arguments();
    size_t found = 0;
    const bool fits = std::all_of(others.begin(), others.end(), [&](const c10::Argument& a) {
      const bool same = found < required.size() && !writes(a) && a.name() == required[found]->name() &&
                        *a.type() == *required[found]->type();
      if (same) ++found;
      return same || (out && tells_how_to_make(a));
    });
    if (!fits || found < required.size()) continue;
    if (found == others.size()) return other;
    factory = other;
  }
  return factory;
}

void to_host(c10::IValue& numbers) {
  if (is_shard_tensor(numbers.toTensor())) numbers = full_tensor(numbers.toTensor().detach()).contiguous();
}

OperatorFacts::OperatorFacts(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& name = op.operator_name().name;
  rule = find_rule(op.operator_name());
  gives_out =
      std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) { return a.is_out(); });
  // A rule named without an overload describes results that are made, not of out= tensors that are given.
  if (rule && gives_out && std::count(rule->op.begin(), rule->op.end(), name) > 0) rule = nullptr;
  pointwise = op.hasTag(at::Tag::pointwise);
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  reads_order = contains(kReadOrder, name);
  composite_implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  find_decomposition(op);
  find_aliases(schema);
  const bool has_rule = rule || decomposes || (!gives_out && (pointwise || composite_implicit));
  if (!has_rule) find_functional(op);
}

void OperatorFacts::find_decomposition(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  const bool made_of_others =
      contains(kMadeOfOthers, name) || starts_with(name, "aten::_foreach_") || starts_with(name, "aten::_fused_");
  decomposes = made_of_others && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  if (!decomposes) return;
  host_argument = tensor_argument(op.schema(), "lengths");
  if (starts_with(name, "aten::_foreach_addc"))
    host_argument = std::max(host_argument, tensor_argument(op.schema(), "scalars"));
}

void OperatorFacts::find_aliases(const c10::FunctionSchema& schema) {
  // LibTorch's composites write through this one (kron.out).
  view = schema.name() == "aten::_unsafe_view";
  arguments = schema.arguments().size();
  for (const auto& argument : schema.arguments()) written.push_back(writes(argument));
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
    returns_written |= same >= 0;
  }
}

void OperatorFacts::find_functional(const c10::OperatorHandle& op) {
  functional = functional_variant(op);
  if (!functional) return;
  bool takes_tensors = false;
  for (const auto& argument : functional->schema().arguments()) {
    const auto index = op.schema().argumentIndexWithName(argument.name());
    functional_from.push_back(index ? *index : -1);
    takes_tensors |= !tensor_free(argument.type());
  }
  // Numbers that are drawn for no element would be different on each rank.
  if (random && !takes_tensors) functional.reset();
}

}  // namespace moonhalo
