// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/rules.h"

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/add_rule.h"
#include "moonhalo/engine/tensor/host_halos.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

std::map<std::string, const Rule*, std::less<>>& registry() {
  static std::map<std::string, const Rule*, std::less<>> rules;
  return rules;
}

// Rules may be added while ranks that are threads look some up.
std::mutex& registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

// The operators whose rule was looked up: what they do is decided.
std::set<std::string>& looked_up() {
  static std::set<std::string> names;
  return names;
}

std::deque<Rule>& kept_rules() {
  static std::deque<Rule> rules;
  return rules;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool holds_tensors(const c10::IValue& value) { return value.isTensorList() || value.isOptionalTensorList(); }

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  if (value.isTensorList()) return value.toTensorVector();
  for (const auto& item : value.toOptionalTensorVector()) tensors.push_back(item.value_or(at::Tensor()));
  return tensors;
}

at::Tensor on_meta(const TensorArgument& slot) {
  if (!slot.spec) return {};
  return at::empty(slot.spec->global_shape(), at::TensorOptions().dtype(slot.dtype).device(at::kMeta));
}

}  // namespace

Register::Register(std::initializer_list<Rule> rules) {
  const std::lock_guard lock(registry_mutex());
  for (const Rule& rule : rules) {
    kept_rules().push_back(rule);
    for (const std::string_view op : rule.op) {
      const auto [known, added] = registry().emplace(std::string(op), &kept_rules().back());
      TORCH_INTERNAL_ASSERT(added, "two rules claim ", op, ": in ", known->second->file, " and in ", rule.file);
    }
  }
}

void add_rule(const c10::OperatorName& name, std::function<std::optional<Plan>(const OpCall& call)> plan,
              const std::string& supports) {
  static std::deque<std::string> texts;
  const std::lock_guard lock(registry_mutex());
  const std::string op = full_name(name);
  TORCH_CHECK_VALUE(registry().count(op) + registry().count(name.name) == 0, op, ": there is a rule already");
  TORCH_CHECK_VALUE(looked_up().count(op) == 0, op, ": its rule comes too late\n  have  a call of ", op,
                    " with a ShardTensor before\n  fix   register the rule before the first call");
  const std::string_view kept_op = texts.emplace_back(op), kept_supports = texts.emplace_back(supports);
  kept_rules().push_back(
      {.op = kept_op, .plan = std::move(plan), .source = "added at run time", .supports = kept_supports});
  registry().emplace(op, &kept_rules().back());
}

const Rule* find_rule(const c10::OperatorName& name) {
  const std::lock_guard lock(registry_mutex());
  looked_up().insert(full_name(name));
  auto found = registry().find(full_name(name));
  if (found == registry().end()) found = registry().find(name.name);
  return found == registry().end() ? nullptr : found->second;
}

const std::map<std::string, const Rule*, std::less<>>& all_rules() { return registry(); }

const at::Tensor& LocalCall::tensor(Arg arg) {
  static const at::Tensor undefined;
  return !arg || value(arg).isNone() ? undefined : value(arg).toTensor();
}

at::Tensor LocalCall::given(Arg arg, int item) const {
  if (given_ == nullptr || given_->arguments.empty() || !arg) return {};
  const c10::IValue& value = given_->arguments.at(arg.index);
  if (item < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  return value.toOptionalTensorVector().at(item).value_or(at::Tensor());
}

HaloSource LocalCall::halo_source(Arg arg) const {
  if (given_ == nullptr) return {};
  for (const auto& [own, tensor] : given_->not_moved) {
    if (own == arg) return ghosts_of(tensor, op.operator_name().name);
  }
  return {};
}

Stack LocalCall::run_with(std::initializer_list<std::pair<Arg, c10::IValue>> values) const {
  Stack stack(stack_.begin() + static_cast<std::ptrdiff_t>(base_), stack_.end());
  for (const auto& [arg, value] : values) stack[arg.index] = value;
  op.callBoxed(stack);
  return stack;
}

namespace {

/// Describes how tensors of two meshes can be combined: redistribute serves meshes of the same ranks alone.
std::string way_to_one_mesh(const DeviceMesh& a, const DeviceMesh& b) {
  if (a.root() == b.root()) {
    const DeviceMesh& slice = a.ndim() < b.ndim() ? a : b;
    return "fully_shard or replicate the module over the dims that " + slice.to_string() +
           " lacks, or lift the tensor to the whole mesh";
  }
  if (a.size() == b.size() && !a.ranks_of(b).empty())
    return "redistribute one of them to the other's mesh, or use full_tensor(), which then counts as replicated";
  const std::string whole =
      a.size() == b.size() ? "the mesh that these are slices of" : (a.size() < b.size() ? b : a).to_string();
  return "place both on " + whole +
         ", with a placement for each of its dims (parameters by a plan of placements, not " +
         "of styles), or use full_tensor() of one, which then counts as replicated";
}

}  // namespace

OpCall::OpCall(const c10::OperatorHandle& handle, const Stack& stack) : op(handle), stack_(stack) {
  const size_t count = op.schema().arguments().size();
  const size_t base = stack.size() - count;
  struct Found {
    int arg, item;
    at::Tensor tensor;
  };
  std::vector<Found> found;
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[base + i];
    values_.push_back(value.isTensor() || holds_tensors(value) ? c10::IValue() : value);
    if (value.isTensor()) {
      found.push_back({static_cast<int>(i), -1, value.toTensor()});
    } else if (holds_tensors(value)) {
      int item = 0;
      for (const at::Tensor& tensor : tensors_of(value)) found.push_back({static_cast<int>(i), item++, tensor});
    }
  }
  for (const Found& f : found) {
    const ShardTensorImpl* impl = f.tensor.defined() ? shard_impl(f.tensor) : nullptr;
    if (impl == nullptr) continue;
    if (!mesh_) mesh_ = impl->spec()->mesh();
    TORCH_CHECK_VALUE(mesh_ == impl->spec()->mesh(), name(), ": the tensors live on different meshes\n  have  ",
                      mesh_->to_string(), " and ", impl->spec()->mesh()->to_string(), "\n  fix   ",
                      way_to_one_mesh(*mesh_, *impl->spec()->mesh()));
  }
  TORCH_INTERNAL_ASSERT(mesh_, name(), " has no ShardTensor");
  for (const Found& f : found) {
    TensorArgument slot{Arg{f.arg}, f.item, nullptr, false, at::ScalarType::Undefined};
    if (f.tensor.defined()) {
      const ShardTensorImpl* impl = shard_impl(f.tensor);
      slot.plain = impl == nullptr;
      slot.spec = impl ? impl->spec() : replicated(mesh_, f.tensor.sizes());
      slot.dtype = f.tensor.scalar_type();
    }
    slots_.push_back(std::move(slot));
  }
}

std::string OpCall::name() const { return full_name(op.operator_name()); }

Arg OpCall::find(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    if (const auto index = op.schema().argumentIndexWithName(name)) return Arg{*index};
  }
  return {};
}

Arg OpCall::arg(std::string_view argument) const { return arg({argument}); }

Arg OpCall::arg(std::initializer_list<std::string_view> names) const {
  const Arg found = find(names);
  TORCH_INTERNAL_ASSERT(found, name(), " has no argument ", *names.begin());
  return found;
}

bool OpCall::writes(Arg arg) const {
  const auto* alias = op.schema().arguments()[arg.index].alias_info();
  return alias != nullptr && alias->isWrite();
}

int OpCall::slot(Arg arg, int item) const {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].arg == arg && slots_[s].item == item) return static_cast<int>(s);
  }
  return -1;
}

SpecPtr OpCall::spec(Arg arg, int item) const {
  const int s = slot(arg, item);
  return s < 0 ? nullptr : slots_[s].spec;
}

std::vector<int64_t> OpCall::integers(std::string_view argument) const {
  const c10::IValue& v = value(argument);
  if (v.isNone()) return {};
  if (v.isInt()) return {v.toInt()};
  if (v.isIntList()) return v.toIntVector();
  std::vector<int64_t> result;
  for (const auto& item : v.toListRef()) {
    result.push_back(item.isSymInt() ? item.toSymInt().guard_int(__FILE__, __LINE__) : item.toInt());
  }
  return result;
}

int64_t OpCall::dim(std::string_view argument, int64_t ndim) const {
  return at::maybe_wrap_dim(integer(argument), ndim);
}

std::vector<int64_t> OpCall::dims(std::string_view argument, int64_t ndim) const {
  std::vector<int64_t> dims = integers(argument);
  if (dims.empty()) {
    for (int64_t d = 0; d < ndim; ++d) dims.push_back(d);
  }
  for (int64_t& d : dims) d = at::maybe_wrap_dim(d, ndim);
  std::sort(dims.begin(), dims.end());
  return dims;
}

std::vector<std::optional<std::vector<int64_t>>> OpCall::output_shapes() const {
  const size_t count = op.schema().arguments().size();
  Stack stack(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
  for (size_t i = 0; i < count; ++i) {
    if (stack[i].isTensor()) {
      stack[i] = on_meta(slots_[slot(Arg{static_cast<int>(i)})]);
    } else if (stack[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const TensorArgument& s : slots_) {
        if (s.arg.index == static_cast<int>(i)) list.push_back(on_meta(s));
      }
      stack[i] = std::move(list);
    } else if (stack[i].isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const TensorArgument& s : slots_) {
        if (s.arg.index == static_cast<int>(i)) list.push_back(s.spec ? std::optional(on_meta(s)) : std::nullopt);
      }
      stack[i] = std::move(list);
    } else if (stack[i].isDevice()) {
      stack[i] = c10::Device(at::kMeta);
    }
  }
  op.callBoxed(stack);
  std::vector<std::optional<std::vector<int64_t>>> shapes;
  const auto add = [&](const at::Tensor& tensor) {
    shapes.push_back(tensor.defined() ? std::optional(tensor.sizes().vec()) : std::nullopt);
  };
  for (const c10::IValue& result : stack) {
    if (result.isTensor()) add(result.toTensor());
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) add(tensor);
    }
  }
  return shapes;
}

std::string OpCall::describe() const {
  std::ostringstream out;
  out << name() << "(";
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    out << (i ? ", " : "") << arguments[i].name() << " = ";
    bool tensors = false;
    for (const TensorArgument& s : slots_) {
      if (s.arg.index != static_cast<int>(i)) continue;
      out << (tensors ? "; " : "");
      tensors = true;
      if (!s.spec) {
        out << "undefined";
      } else {
        out << (s.plain ? "plain " + shape_string(s.spec->global_shape()) : s.spec->to_string());
      }
    }
    if (!tensors) out << values_[i];
  }
  out << ")";
  return out.str();
}

}  // namespace moonhalo
