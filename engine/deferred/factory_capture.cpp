// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/deferred/factory_capture.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/deferred/deferred_context.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

std::optional<int> find_argument(const c10::FunctionSchema& schema, const char* name) {
  const auto index = schema.argumentIndexWithName(name);
  return index ? std::optional(*index) : std::nullopt;
}

SpecPtr spec_for(const MeshPtr& mesh, at::IntArrayRef shape, const std::vector<Placement>& placements,
                 const std::string& name) {
  for (const Placement& placement : placements) {
    const auto ndim = static_cast<int64_t>(shape.size());
    TORCH_CHECK_VALUE(!placement.is_shard() || (placement.dim >= -ndim && placement.dim < ndim), name,
                      ": the tensor cannot be ", placement.to_string(), ", as the factory plan says\n  have  shape ",
                      shape_string(shape), "\n  fix   plan Replicate for ", name,
                      ", and redistribute those that are to be cut");
  }
  return make_spec(mesh, shape, placements);
}

at::Tensor block_of(at::Tensor full, const ShardSpec& spec) {
  for (int64_t d = 0; d < spec.ndim(); ++d) full = full.narrow(d, spec.offsets()[d], spec.local_shape()[d]);
  return spec.has_cut() ? full.clone() : full;
}

// Fills with what the factory of this name draws, elementwise, so that all cuts give the same numbers.
void draw(const std::string& name, at::Tensor& tensor, const c10::FunctionSchema& schema, const Stack& arguments) {
  if (name == "rand") {
    tensor.uniform_(0, 1);
  } else if (name == "randn") {
    tensor.normal_(0, 1);
  } else {
    const auto low = find_argument(schema, "low");
    tensor.random_(low ? arguments[*low].toInt() : 0, arguments[*find_argument(schema, "high")].toInt());
  }
}

}  // namespace

struct Captured {
  static void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const std::string name = op.operator_name().name.substr(std::string("aten::").size());
    const auto plan = deferred_context->innermost_capture->plan_.find(name);
    const bool deferred = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::DeferredInit);
    const auto redispatch = [&] {
      op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCaptureKey), stack);
    };
    if (deferred || plan == deferred_context->innermost_capture->plan_.end()) return redispatch();
    const SuspendCapture inside;
    const MeshPtr& mesh = deferred_context->innermost_capture->mesh_;
    const auto& schema = op.schema();
    const size_t base = stack->size() - schema.arguments().size();
    const auto size = find_argument(schema, "size");
    if (!size) {  // arange, eye, linspace
      redispatch();
      at::Tensor full = stack->back().toTensor();
      const SpecPtr spec = spec_for(mesh, full.sizes(), plan->second, name);
      stack->back() = wrap(block_of(std::move(full), *spec), spec);
      return;
    }
    const std::vector<int64_t> shape = (*stack)[base + *size].toIntVector();
    const SpecPtr spec = spec_for(mesh, shape, plan->second, name);
    const bool random = name.rfind("rand", 0) == 0;
    if (!random) {
      (*stack)[base + *size] = spec->local_shape();
      redispatch();
      stack->back() = wrap(stack->back().toTensor(), spec);
      return;
    }
    const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size()), stack->end());
    const c10::IValue& dtype = arguments[*find_argument(schema, "dtype")];
    const c10::IValue& device = arguments[*find_argument(schema, "device")];
    at::TensorOptions options = name == "randint" ? at::TensorOptions(at::kLong) : at::TensorOptions();
    if (!dtype.isNone()) options = options.dtype(dtype.toScalarType());
    if (!device.isNone()) options = options.device(device.toDevice());
    at::Tensor drawn = wrap(at::empty(spec->local_shape(), options), spec);
    {
      const at::NoGradGuard no_grad;
      draw(name, drawn, schema, arguments);
    }
    LocalCall(op, *stack).give(std::move(drawn));
  }
};

namespace {

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  static_assert(kCaptureKey == c10::DispatchKey::TESTING_ONLY_GenericWrapper,
                "the kernels are registered for another key");
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  for (const char* name : {"arange", "arange.start", "arange.start_step", "eye", "eye.m", "full", "linspace", "ones",
                           "rand", "randint", "randint.low", "randn", "zeros"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&Captured::kernel>());
  }
}

}  // namespace

const std::vector<std::string>& known_factories() {
  static const std::vector<std::string> names = {"arange", "eye",     "full",  "linspace", "ones",
                                                 "rand",   "randint", "randn", "zeros"};
  return names;
}

FactoryPlan replicated_factories(const DeviceMesh& mesh) {
  FactoryPlan plan;
  for (const std::string& name : known_factories()) plan[name] = std::vector<Placement>(mesh.ndim(), replicate());
  return plan;
}

void check_factories(const FactoryPlan& plan, const DeviceMesh& mesh) {
  for (const auto& [name, placements] : plan) {
    const auto& known = known_factories();
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), name) != known.end(), "factory: '", name,
                      "' cannot be captured", did_you_mean(name, known), "\n  have  ", c10::Join(", ", known));
    TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh.ndim(), "factory: '", name, "' has ",
                      placements.size(), " placements for ", mesh.to_string(), ", which has ", mesh.ndim(),
                      " dimensions");
    for (const Placement& placement : placements) {
      TORCH_CHECK_VALUE(!placement.is_partial(), "factory: '", name, "' cannot be ", placement.to_string(),
                        "\n  fix   use Shard or Replicate");
    }
  }
}

CaptureFactories::CaptureFactories(MeshPtr mesh, FactoryPlan plan)
    : mesh_(std::move(mesh)),
      plan_(std::move(plan)),
      current_(deferred_context->innermost_capture, this),
      before_(c10::impl::tls_is_dispatch_key_included(kCaptureKey)) {
  check_factories(plan_, *mesh_);
  c10::impl::tls_set_dispatch_key_included(kCaptureKey, true);
}

CaptureFactories::~CaptureFactories() { c10::impl::tls_set_dispatch_key_included(kCaptureKey, before_); }

}  // namespace moonhalo
