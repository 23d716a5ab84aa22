// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/result_strides.h"

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/tensor/memory_order.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"

namespace moonhalo {
namespace {

at::Tensor without_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

c10::IValue without_memory(const c10::IValue& value) {
  if (value.isTensor()) return without_memory(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(without_memory(item));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toOptionalTensorVector())
      list.push_back(item ? std::optional(without_memory(*item)) : std::nullopt);
    return list;
  }
  return value;
}

// Asked first, because LibTorch's answer for an operator without such a kernel is an error, which takes ten times as
// long to make and catch as all else of a first call.
bool has_kernel_without_memory(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::Meta) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Runs the operator on tensors of these strides; empty if LibTorch cannot tell.
torch::jit::Stack results_without_memory(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                         size_t arguments) {
  if (!has_kernel_without_memory(op)) return {};
  torch::jit::Stack call;
  for (const c10::IValue& value : at::ArrayRef(stack).slice(stack.size() - arguments))
    call.push_back(without_memory(value));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::DisableRecordFunctionGuard unprofiled;
  try {
    op.callBoxed(call);
  } catch (const std::exception&) {
    // Parts without such a kernel, shapes that depend on values, or arguments that the call itself refuses and says
    // why.
    call.clear();
  }
  return call;
}

// LibTorch's rule for pointwise operators, as kernels that have no twin without data follow it.
at::Tensor pointwise_without_memory(const torch::jit::Stack& stack, size_t arguments) {
  at::TensorIteratorConfig config;
  config.add_owned_output(at::Tensor())
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(at::kFloat, c10::kMeta);
  for (const c10::IValue& value : at::ArrayRef(stack).slice(stack.size() - arguments)) {
    if (value.isTensor() && value.toTensor().defined()) config.add_owned_const_input(without_memory(value.toTensor()));
  }
  return config.build().output();
}

// Channels last where those of the input or the weight are, for which LibTorch has no kernel without data either
// (thnn_conv_use_channels_last and mkldnn_conv_use_channels_last, ATen/native/ConvUtils.h: not for volumes of doubles).
torch::jit::Stack convolution_without_memory(const at::Tensor& input, const at::Tensor& weight, const SpecPtr& output) {
  const auto format = input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  const bool images = input.dim() == 4 || (input.dim() == 5 && input.scalar_type() != at::kDouble);
  if (!images || (input.suggest_memory_format() != format && weight.suggest_memory_format() != format)) return {};
  return {at::Tensor(at::detail::empty_meta(output->global_shape(), input.scalar_type(), format))};
}

template <typename Each>
void for_each_tensor(at::ArrayRef<c10::IValue> values, const Each& each) {
  for (size_t r = 0; r < values.size(); ++r) {
    if (values[r].isTensor()) each(r, values[r].toTensor());
    if (!values[r].isTensorList()) continue;
    for (const at::Tensor& item : values[r].toTensorVector()) each(r, item);
  }
}

// A regrouping of dims that one plain tensor could not view is a copy here.
bool copies(const std::string& name, const at::Tensor& base, const c10::IValue& shape) {
  if ((name != "aten::view" && name != "aten::_unsafe_view") || !shape.isIntList()) return false;
  return !at::detail::computeStride(base.sizes(), base.strides(), at::infer_size(shape.toIntVector(), base.numel()));
}

ResultStrides planned_strides(const Plan& plan) {
  ResultStrides found(plan.memory_order.size());
  bool any = false;
  for (size_t r = 0; r < found.size(); ++r) {
    const std::vector<int64_t>& order = plan.memory_order[r];
    if (std::is_sorted(order.begin(), order.end())) continue;
    const auto& shape = plan.outputs[r]->global_shape();
    at::DimVector ranks(order.size());
    for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<int64_t>(order.size() - i);
    found[r] = dense_strides(shape, ranks);
    any = true;
  }
  return any ? found : ResultStrides();
}

}  // namespace

ResultStrides result_strides(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const OperatorFacts& facts,
                             const Plan& plan) {
  if (!plan.memory_order.empty()) return planned_strides(plan);
  const std::string& name = op.operator_name().name;
  const c10::IValue* given = &stack[stack.size() - facts.arguments];
  const bool is_strided = name == "aten::as_strided" || name == "aten::as_strided_copy";
  if (is_strided && given[0].isTensor() && is_shard_tensor(given[0].toTensor())) {
    const at::Tensor& base = given[0].toTensor();
    TORCH_CHECK_NOT_IMPLEMENTED(base.is_contiguous(),
                                "as_strided: the rows of this view of a ShardTensor are not one behind ",
                                "the other\n  have  ", spec(base)->to_string(), ", strides ", base.strides(),
                                "\n  fix   clone() it first, or use view, slice, select, transpose, expand or unfold");
    if (name == "aten::as_strided") return {at::DimVector(given[2].toIntVector())};
  }
  if (facts.view && given[0].isTensor() && is_shard_tensor(given[0].toTensor())) {
    const at::Tensor& base = given[0].toTensor();
    if (copies(name, base, given[1])) return {};
  }
  torch::jit::Stack results;
  if (name == "aten::convolution" && !plan.outputs.empty()) {
    results = convolution_without_memory(given[0].toTensor(), given[1].toTensor(), plan.outputs[0]);
  } else if (name == "aten::convolution_backward" && plan.outputs.size() == 3 && plan.outputs[0]) {
    results = convolution_without_memory(given[1].toTensor(), given[2].toTensor(), plan.outputs[0]);
    if (!results.empty()) results.insert(results.end(), 2, at::Tensor());
  } else {
    results = results_without_memory(op, stack, facts.arguments);
    const bool one = facts.returns_argument.size() == 1;
    if (results.empty() && one && (facts.pointwise || name == "aten::flip"))
      results = {pointwise_without_memory(stack, facts.arguments)};
  }
  ResultStrides found;
  bool any = false;
  for_each_tensor(results, [&](size_t r, const at::Tensor& result) {
    found.emplace_back();
    const bool is_argument = r < facts.returns_argument.size() && facts.returns_argument[r] >= 0;
    if (is_argument || !result.defined() || result.layout() != at::kStrided || result.is_contiguous()) return;
    found.back().emplace(result.strides());
    any = true;
  });
  return any ? found : ResultStrides();
}

bool layout_is_unspecified(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const OperatorFacts& facts,
                           const ResultStrides& found) {
  if (facts.view || facts.returns_written || !found.empty() || has_kernel_without_memory(op)) return false;
  const std::string& name = op.operator_name().name;
  static constexpr std::array<std::string_view, 7> kOtherwise = {
      "fft_", "linalg_", "cholesky", "geqrf", "ormqr", "nonzero", "flash_attention_for_cpu"};
  if (std::any_of(kOtherwise.begin(), kOtherwise.end(),
                  [&](std::string_view part) { return name.find(part) != std::string::npos; }))
    return true;
  const auto arguments = at::ArrayRef(stack).slice(stack.size() - facts.arguments);
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().layout() == at::kStrided &&
           !value.toTensor().is_contiguous();
  });
}

at::Tensor match_layout(const at::Tensor& block, bool in_rows) {
  if (block.is_contiguous() == in_rows) return block;
  return in_rows ? block.contiguous() : block.mT().contiguous().mT();
}

void lay_as_declared(const ResultStrides& strides, size_t index, bool any_order, ShardTensorImpl& impl) {
  if (!strides.empty() && strides.at(index)) {
    if (!has_layout(impl.local(), *strides[index])) impl.replace(laid_as(impl.local(), *strides[index]), impl.spec());
  } else if (!impl.local().is_contiguous() && impl.is_contiguous()) {  // else its dims are declared as expanded
    impl.replace(copied_block(impl.local()), impl.spec());
    if (any_order) make_notes(impl).has_new_layout = true;
  }
}

at::Tensor canonical_empty_strides(const at::Tensor& empty, const std::string& op) {
  if (op == "aten::div") return empty;
  return empty.has_storage() ? at::empty_like(empty, at::MemoryFormat::Contiguous) : empty;
}

void declare_strides(const ResultStrides& strides, const torch::jit::Stack& stack, size_t base) {
  size_t next = 0;
  for_each_tensor(at::ArrayRef(stack).slice(base), [&](size_t, const at::Tensor& result) {
    const auto& own = strides.at(next++);
    if (!own || !is_shard_tensor(result)) return;
    TORCH_INTERNAL_ASSERT(own->size() == static_cast<size_t>(result.dim()), "strides ", at::IntArrayRef(*own), " for ",
                          spec(result)->to_string());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), *own);
  });
}

}  // namespace moonhalo
