// SPDX-License-Identifier: Apache-2.0
// A sparse tensor in one call with a ShardTensor. LibTorch's kernels for sparse tensors come before ours and read a
// ShardTensor's memory, which has none; so operators that have such kernels are intercepted further up, where the
// keys distinguish both kinds of tensor.
#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr DispatchKeySet kSparse = c10::sparse_ks | c10::sparse_csr_ks;
constexpr DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, kSparseCheckKey);

bool are_mixed(DispatchKeySet keys) { return keys.has_any(kSparse) && keys.has(kShardKey); }

template <typename... Arguments>
[[noreturn]] void refuse(const char* name, const Arguments&... arguments) {
  const auto check = [name](const auto& argument) {
    if constexpr (std::is_same_v<decltype(argument), const at::Tensor&>) {
      if (argument.defined()) check_strided(argument, name);
    }
  };
  (check(arguments), ...);
  TORCH_INTERNAL_ASSERT(false, name, ": no sparse tensor among the arguments");
}

// The operators that are called most: nothing is boxed.
template <typename Op, typename Schema = typename Op::schema>
struct Typed;
template <typename Op, typename Return, typename... Arguments>
struct Typed<Op, Return(Arguments...)> {
  static Return call(DispatchKeySet keys, Arguments... arguments) {
    if (are_mixed(keys)) [[unlikely]]
      refuse(Op::name, arguments...);
    return Op::redispatch(keys & kBelow, arguments...);
  }
  static void add_to(torch::Library& library) {
    library.impl(c10::str(Op::name, *Op::overload_name == '\0' ? "" : ".", Op::overload_name).c_str(),
                 TORCH_FN((&Typed::call)));
  }
};

void boxed(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  if (are_mixed(keys)) {
    const char* name = op.operator_name().name.c_str();
    for (const c10::IValue& value : at::ArrayRef(*stack).slice(stack->size() - op.schema().arguments().size())) {
      if (value.isTensor() && value.toTensor().defined()) check_strided(value.toTensor(), name);
      if (!value.isTensorList()) continue;
      for (const at::Tensor& item : value.toTensorVector()) check_strided(item, name);
    }
  }
  op.redispatchBoxed(keys & kBelow, stack);
}

// Each rank would make another sparse tensor of its block of indices or values.
void refuse_to_make(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  if (keys.has(kShardKey)) refuse_layout(at::kSparse, {}, op.operator_name().name.c_str());
  op.redispatchBoxed(keys & kBelow, stack);
}

template <typename... Ops>
void add_typed(torch::Library& library) {
  (Typed<Ops>::add_to(library), ...);
}

bool makes_sparse(const std::string& name) {
  const std::string_view plain = std::string_view(name).substr(name.find_first_not_of('_', name.find("::") + 2));
  return plain.rfind("sparse_", 0) == 0 && plain.find("_tensor") != std::string_view::npos;
}

bool has_sparse_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::SparseCPU) || op.hasKernelForDispatchKey(DispatchKey::SparseCsrCPU);
}

bool takes_two_tensors(const c10::FunctionSchema& schema) {
  return std::count_if(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
           return !argument.is_out() && (argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
                                         argument.type()->isSubtypeOf(*c10::ListType::ofTensors()));
         }) > 1;
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  static_assert(kSparseCheckKey == DispatchKey::TESTING_ONLY_GenericWrapper,
                "factory_capture.cpp registers the fallthrough of this key");
  using namespace at::_ops;
  add_typed<add_Tensor, add__Tensor, sub_Tensor, sub__Tensor, mul_Tensor, mul__Tensor, div_Tensor, div__Tensor, mm, mv,
            bmm, addmm, addmm_, copy_, threshold_backward>(library);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(kSparseCheckKey))
      continue;
    if (name.name == "aten::index_select") continue;  // ops/indexing/row_gradients.cpp has a kernel
    if (makes_sparse(name.name)) {
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_to_make>());
    } else if (has_sparse_kernel(*op) && takes_two_tensors(op->schema())) {
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    }
  }
}

}  // namespace
}  // namespace moonhalo
