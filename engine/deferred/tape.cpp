// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/deferred/tape.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

using Stack = torch::jit::Stack;

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// Puts `tensor` where a recorded argument, or an item of a recorded list, stood.
void put(c10::IValue& argument, int item, at::Tensor tensor) {
  if (item < 0) {
    argument = std::move(tensor);
  } else if (argument.isTensorList()) {
    argument.toTensorList().set(item, std::move(tensor));
  } else {
    argument.toList().set(item, std::move(tensor));
  }
}

c10::IValue copied(const c10::IValue& value) {
  return value.isTensorList() || value.isOptionalTensorList() ? c10::IValue(value.toList().copy()) : value;
}

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

}  // namespace

int64_t DeferredTape::add(const at::Tensor& meta) {
  metas_.push_back(meta);
  return static_cast<int64_t>(metas_.size()) - 1;
}

std::vector<DeferredTape::Result> DeferredTape::record(const c10::OperatorHandle& op,
                                                       at::ArrayRef<c10::IValue> arguments, bool factory,
                                                       const std::function<int64_t(const at::Tensor&)>& value_of) {
  Step step{op, {}, {}, {}, {}, std::nullopt, factory};
  for (int arg = 0; arg < static_cast<int>(arguments.size()); ++arg) {
    step.arguments.push_back(copied(arguments[arg]));
    c10::IValue& kept = step.arguments.back();
    const auto* alias = op.schema().arguments()[arg].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const auto take = [&](int item, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (const int64_t value = value_of(tensor); value >= 0) {
        step.uses.push_back({arg, item, value, written});
        put(kept, item, at::Tensor());
      } else {
        step.captured.push_back({tensor, version_of(tensor)});
      }
    };
    if (arguments[arg].isTensor()) {
      take(-1, arguments[arg].toTensor());
    } else if (kept.isTensorList() || kept.isOptionalTensorList()) {
      int item = 0;
      for (const auto& one : arguments[arg].toListRef()) {
        if (one.isTensor()) take(item, one.toTensor());
        ++item;
      }
    }
  }
  step.results = shapes_of(step);
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    const auto generator = op.schema().argumentIndexWithName("generator");
    const bool given = generator && !step.arguments[*generator].isNone();
    step.key = ElementRandom::draw_key(given ? std::optional(step.arguments[*generator].toGenerator()) : std::nullopt);
  }
  steps_.push_back(std::move(step));
  return steps_.back().results;
}

// Runs the call on meta tensors.
std::vector<DeferredTape::Result> DeferredTape::shapes_of(const Step& step) {
  const auto& schema = step.op.schema();
  const bool in_place_random = step.op.hasTag(at::Tag::nondeterministic_seeded) && schema.returns().size() == 1 &&
                               schema.returns()[0].alias_info() != nullptr && !step.uses.empty() &&
                               step.uses[0].written;
  if (in_place_random) return {{false, {step.uses[0].value}}};

  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard real(
      c10::DispatchKeySet({kDeferredKey, c10::DispatchKey::TESTING_ONLY_GenericMode}));
  Stack stack;
  for (const c10::IValue& argument : step.arguments) {
    stack.push_back(copied(argument));
    c10::IValue& value = stack.back();
    if (value.isTensor() && value.toTensor().defined()) {
      value = meta_like(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorList();
      for (size_t i = 0; i < list.size(); ++i) {
        const at::Tensor item = list.get(i);
        if (item.defined()) list.set(i, meta_like(item));
      }
    } else if (value.isDevice()) {
      value = c10::Device(c10::kMeta);
    }
  }
  for (const Use& use : step.uses) put(stack[use.arg], use.item, metas_[use.value]);
  const auto device = schema.argumentIndexWithName("device");
  if (step.factory && device) stack[*device] = c10::Device(c10::kMeta);
  step.op.callBoxed(stack);

  const auto value_of = [&](const at::Tensor& meta) -> int64_t {
    if (!meta.defined()) return -1;
    for (const Use& use : step.uses) {
      if (metas_[use.value].is_same(meta)) return use.value;
    }
    return add(meta);
  };
  std::vector<Result> results;
  for (const c10::IValue& value : stack) {
    Result result{value.isTensorList(), {}};
    if (result.list) {
      for (const at::Tensor& item : value.toTensorVector()) result.values.push_back(value_of(item));
    } else {
      result.values.push_back(value_of(value.toTensor()));
    }
    results.push_back(std::move(result));
  }
  return results;
}

// Backwards: a step counts if it made or wrote memory that a later step of those, or the value itself, reads.
std::vector<size_t> DeferredTape::needed_for(int64_t value) const {
  std::unordered_set<const void*> required = {storage_of(value)};
  std::vector<size_t> needed;
  for (size_t i = steps_.size(); i-- > 0;) {
    const Step& step = steps_[i];
    const auto counts = [&](int64_t v) { return v >= 0 && required.count(storage_of(v)) > 0; };
    bool needs =
        std::any_of(step.uses.begin(), step.uses.end(), [&](const Use& u) { return u.written && counts(u.value); });
    for (const Result& result : step.results) needs |= std::any_of(result.values.begin(), result.values.end(), counts);
    if (!needs) continue;
    needed.push_back(i);
    for (const Use& use : step.uses) required.insert(storage_of(use.value));
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

bool DeferredTape::written_through_views(const std::vector<size_t>& needed) const {
  std::unordered_map<const void*, int64_t> first;
  for (const size_t i : needed) {
    for (const Result& result : steps_[i].results) {
      for (const int64_t v : result.values) {
        if (v >= 0) first.emplace(storage_of(v), v);
      }
    }
    for (const Use& use : steps_[i].uses) {
      if (use.written && !same_geometry(metas_[use.value], metas_[first.at(storage_of(use.value))])) return true;
    }
  }
  return false;
}

at::Tensor DeferredTape::replay(int64_t value, const SpecPtr& spec) const {
  const std::vector<size_t> needed = needed_for(value);
  const bool whole = spec && written_through_views(needed);
  std::unordered_map<int64_t, size_t> last;
  for (const size_t i : needed) {
    for (const Use& use : steps_[i].uses) last[use.value] = i;
    for (const Result& result : steps_[i].results) {
      for (const int64_t v : result.values) last[v] = std::max(last[v], i);
    }
  }
  last.erase(value);
  const ElementwiseRandom random;
  std::vector<at::Tensor> values(metas_.size());
  for (const size_t i : needed) {
    run(steps_[i], spec, whole, values);
    for (auto it = last.begin(); it != last.end();) {
      if (it->second > i) {
        ++it;
        continue;
      }
      if (it->first >= 0) values[it->first].reset();
      it = last.erase(it);
    }
  }
  at::Tensor result = values[value];
  if (!spec) return result;
  values.clear();
  if (!is_shard_tensor(result)) result = from_local(result, replicated(spec->mesh(), result.sizes()));
  return redistribute(result, spec);
}

// Returns what a factory makes: the block of this rank, or without `spec` the whole tensor, as it is read.
at::Tensor DeferredTape::make(const Step& step, const SpecPtr& spec, bool whole) const {
  const auto given = [&](const char* argument) {
    return step.arguments[*step.op.schema().argumentIndexWithName(argument)];
  };
  const auto size = given("size").toIntVector();
  const auto device = given("device");
  if (!spec) {
    Box box;
    for (const int64_t rows : size) box.push_back({0, rows});
    const at::Tensor values = step.read(box);
    return device.isNone() ? values : values.to(device.toDevice());
  }
  const SpecPtr made = whole || spec->global_shape() != size ? replicated(spec->mesh(), size) : spec;
  const bool planned = spec->mesh()->group().is_fake();
  const c10::Device place = planned && !device.isNone() ? device.toDevice() : device_of(*spec->mesh());
  if (step.read && !planned) return wrap(step.read(block_box(*made, made->mesh()->rank())).to(place), made);
  at::TensorOptions options(place);
  if (const auto dtype = given("dtype"); !dtype.isNone()) options = options.dtype(dtype.toScalarType());
  return wrap(at::empty(made->local_shape(), options), made);
}

void DeferredTape::run(const Step& step, const SpecPtr& spec, bool whole, std::vector<at::Tensor>& values) const {
  const std::string& name = step.op.operator_name().name;
  for (const Captured& one : step.captured) {
    TORCH_CHECK_VALUE(version_of(one.tensor) == one.version, name,
                      ": a plain tensor that a deferred one was made from has been ",
                      "written since\n  have  a tensor of shape ", shape_string(one.tensor.sizes()),
                      "\n  fix   materialize before writing to it, or give a clone");
  }
  Stack stack;
  for (const c10::IValue& argument : step.arguments) stack.push_back(copied(argument));
  for (const Use& use : step.uses) put(stack[use.arg], use.item, values[use.value]);
  if (step.factory && (spec || step.read)) {
    values[step.results[0].values[0]] = make(step, spec, whole);
    return;
  }
  const std::optional<ReplayedKey> key = step.key ? std::optional<ReplayedKey>(std::in_place, *step.key) : std::nullopt;
  step.op.callBoxed(stack);
  for (size_t r = 0; r < step.results.size(); ++r) {
    const Result& result = step.results[r];
    if (!result.list) {
      if (result.values[0] >= 0) values[result.values[0]] = stack[r].toTensor();
      continue;
    }
    const auto list = stack[r].toTensorVector();
    for (size_t item = 0; item < list.size(); ++item) values[result.values[item]] = list[item];
  }
}

}  // namespace moonhalo
