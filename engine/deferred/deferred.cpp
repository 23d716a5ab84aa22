// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/deferred/deferred.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/deferred/deferred_context.h"
#include "moonhalo/engine/deferred/deferred_read.h"
#include "moonhalo/engine/deferred/tape.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

// One for all scopes of a thread, so that tensors of two scopes may be combined; it lives as long as a deferred
// tensor.
std::shared_ptr<DeferredTape> current_tape() {
  auto tape = deferred_context->tape.lock();
  if (!tape) deferred_context->tape = tape = std::make_shared<DeferredTape>();
  return tape;
}

struct DeferredImpl final : public c10::TensorImpl {
  DeferredImpl(std::shared_ptr<DeferredTape> tape, int64_t value, c10::Device device)
      : c10::TensorImpl(
            c10::DispatchKeySet({kDeferredKey, c10::computeDispatchKey(std::nullopt, std::nullopt, device)}),
            tape->meta(value).dtype(), device),
        tape(std::move(tape)),
        value(value) {
    set_storage_access_should_throw();
    take_geometry();
  }

  void take_geometry() {
    const at::Tensor& meta = tape->meta(value);
    set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  }

  const char* tensorimpl_type_name() const override { return "DeferredImpl"; }

  template <typename Version>
  c10::intrusive_ptr<c10::TensorImpl> copied(Version&& version, bool allow_change) const {
    if (!tape) return c10::TensorImpl::shallow_copy_and_detach(std::forward<Version>(version), allow_change);
    auto copy = c10::make_intrusive<DeferredImpl>(tape, value, device());
    copy_tensor_metadata(this, copy.get(), std::forward<Version>(version), allow_change);
    return copy;
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override {
    return copied(version, allow_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_change) const override {
    return copied(std::move(version), allow_change);
  }

  // set_data: with real values this becomes an ordinary tensor, since the key goes with the metadata.
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override {
    TORCH_CHECK_TYPE(!other->key_set().has(kShardKey),
                     "set_data: a deferred tensor cannot take the data of a ShardTensor",
                     "\n  fix   replace the tensor itself (parallelize_module does)");
    copy_tensor_metadata(other.get(), this, version_counter(), allow_tensor_metadata_change());
    const bool deferred = other->key_set().has(kDeferredKey);
    tape = deferred ? static_cast<const DeferredImpl*>(other.get())->tape : nullptr;
    value = deferred ? static_cast<const DeferredImpl*>(other.get())->value : -1;
  }

  std::shared_ptr<DeferredTape> tape;  // null once it is an ordinary tensor
  int64_t value;
};

DeferredImpl* deferred_impl(const at::Tensor& tensor) {
  return is_deferred(tensor) ? static_cast<DeferredImpl*>(tensor.unsafeGetTensorImpl()) : nullptr;
}

at::Tensor make_deferred(const std::shared_ptr<DeferredTape>& tape, int64_t value, c10::Device device) {
  return at::detail::make_tensor<DeferredImpl>(tape, value, device);
}

// Recording

// Visits every tensor of the arguments: visit(argument, item of its list or -1, tensor).
template <typename Visit>
void for_each_tensor(const Stack& stack, size_t base, const Visit& visit) {
  for (size_t i = base; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    const int arg = static_cast<int>(i - base);
    if (value.isTensor()) {
      visit(arg, -1, value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      int item = 0;
      for (const auto& one : value.toListRef()) {
        if (one.isTensor()) visit(arg, item, one.toTensor());
        ++item;
      }
    }
  }
}

// Made of factories that are deferred, or deferred themselves.
bool is_deferrable_factory(const c10::OperatorHandle& op) {
  static constexpr std::array<const char*, 9> kNames = {"aten::empty", "aten::empty_strided", "aten::zeros",
                                                        "aten::ones",  "aten::full",          "aten::rand",
                                                        "aten::randn", "aten::randint",       "aten::normal"};
  const auto& name = op.operator_name();
  return std::find(kNames.begin(), kNames.end(), name.name) != kNames.end() &&
         name.overload_name.find("out") == std::string::npos && name.overload_name.find("names") == std::string::npos;
}

bool starts_deferred(const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  const std::string& name = op.operator_name().name;
  if (name != "aten::empty_strided" && (name != "aten::empty" || op.operator_name().overload_name != "memory_format"))
    return false;
  const auto given = [&](const char* argument) { return stack[base + *op.schema().argumentIndexWithName(argument)]; };
  const auto size = given("size").toIntVector();
  const c10::IValue device = given("device"), layout = given("layout"), pinned = given("pin_memory");
  return !size.empty() && c10::multiply_integers(size) >= std::max<int64_t>(deferred_context->recording_from, 2) &&
         (device.isNone() || device.toDevice().is_cpu() || at::isAccelerator(device.toDevice().type())) &&
         (layout.isNone() || layout.toLayout() == at::kStrided) && (pinned.isNone() || !pinned.toBool());
}

[[noreturn]] void refuse(const c10::OperatorHandle& op, const char* why, const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name().name, ": ", why, "\n  have  a deferred tensor of shape ",
                              shape_string(tensor.sizes()),
                              "\n  fix   give it values first: parallelize_module, materialize_module or materialize");
}

void check_recordable(const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  at::Tensor some, trained;
  for_each_tensor(stack, base, [&](int, int, const at::Tensor& tensor) {
    if (!is_deferred(tensor)) return;
    some = tensor;
    if (tensor.requires_grad()) trained = tensor;
  });
  for (const auto& result : op.schema().returns()) {
    const auto kind = result.type()->kind();
    const bool list =
        kind == c10::TypeKind::ListType && result.type()->containedType(0)->kind() == c10::TypeKind::TensorType;
    if (kind != c10::TypeKind::TensorType && !list) refuse(op, "asks for values that are not there yet", some);
  }
  const std::string& name = op.operator_name().name;
  // Initialisers ask views for their sizes, and Module::to converts: neither result is trained.
  const auto* alias = op.schema().returns().empty() ? nullptr : op.schema().returns()[0].alias_info();
  const bool view = alias != nullptr && !alias->isWrite();
  if (trained.defined() && c10::GradMode::is_enabled() && !view && name != "aten::_to_copy") {
    refuse(op, "a gradient would have to be recorded through a tensor without values (initialise under NoGradGuard)",
           trained);
  }
  for_each_tensor(stack, base, [&](int arg, int, const at::Tensor& tensor) {
    const auto* alias = op.schema().arguments()[arg].alias_info();
    if (alias && alias->isWrite() && tensor.defined() && !is_deferred(tensor)) {
      refuse(op, "writes values that are not there yet to a plain tensor", some);
    }
  });
}

void record(const c10::OperatorHandle& op, Stack& stack, size_t base) {
  std::shared_ptr<DeferredTape> tape;
  c10::Device device(c10::kCPU);
  for_each_tensor(stack, base, [&](int, int, const at::Tensor& tensor) {
    const DeferredImpl* impl = deferred_impl(tensor);
    if (!impl || tape == impl->tape) return;
    TORCH_CHECK_VALUE(!tape, op.operator_name().name,
                      ": deferred tensors of two threads are combined\n  fix   build a model on one thread");
    tape = impl->tape;
    device = impl->device();
  });
  const bool factory = !tape;
  if (factory) tape = current_tape();
  const auto where = op.schema().argumentIndexWithName("device");
  if (where && !stack[base + *where].isNone()) device = stack[base + *where].toDevice();

  const auto step = tape->record(op, at::ArrayRef<c10::IValue>(stack).slice(base), factory,
                                 [](const at::Tensor& t) { return is_deferred(t) ? deferred_impl(t)->value : -1; });
  // A written argument stands for its new value too; its geometry may have changed (unsqueeze_).
  std::vector<std::pair<int64_t, at::Tensor>> arguments;
  for_each_tensor(stack, base, [&](int, int, const at::Tensor& tensor) {
    if (DeferredImpl* impl = deferred_impl(tensor)) arguments.emplace_back(impl->value, tensor);
  });
  const auto tensor_of = [&](int64_t value) {
    if (value < 0) return at::Tensor();
    const auto same = std::find_if(arguments.begin(), arguments.end(), [&](const auto& a) { return a.first == value; });
    if (same == arguments.end()) return make_deferred(tape, value, device);
    deferred_impl(same->second)->take_geometry();
    return same->second;
  };
  torch::jit::drop(stack, op.schema().arguments().size());
  for (const auto& result : step) {
    if (!result.list) {
      stack.emplace_back(tensor_of(result.values.at(0)));
      continue;
    }
    c10::List<at::Tensor> list;
    for (const int64_t value : result.values) list.push_back(tensor_of(value));
    stack.emplace_back(std::move(list));
  }
}

void deferred_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDeferredKey);
  bool any = false;
  for_each_tensor(*stack, base, [&](int, int, const at::Tensor& tensor) { any |= is_deferred(tensor); });
  if (!any && is_deferrable_factory(op)) {
    if (starts_deferred(op, *stack, base)) return record(op, *stack, base);
    return op.redispatchBoxed(below, stack);  // what it calls comes back here
  }
  if (!any) {
    const c10::impl::ExcludeDispatchKeyGuard plain(kDeferredKey);
    return op.redispatchBoxed(below, stack);
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return op.redispatchBoxed(below, stack);
  check_recordable(op, *stack, base);
  record(op, *stack, base);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  static_assert(kDeferredKey == c10::DispatchKey::DeferredInit, "the fallback is registered for another key");
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&deferred_kernel>());
}

at::Tensor made_real(const at::Tensor& tensor, const SpecPtr& spec) {
  const DeferredImpl* impl = deferred_impl(tensor);
  const c10::AutoGradMode no_grad(false);
  const c10::impl::ExcludeDispatchKeyGuard plain(kDeferredKey);
  return impl->tape->replay(impl->value, spec).detach();
}

}  // namespace

DeferredInit::DeferredInit(int64_t min_numel) : before_(deferred_context->recording_from), tape_(current_tape()) {
  deferred_context->recording_from = std::max<int64_t>(0, min_numel);
  c10::impl::tls_set_dispatch_key_included(kDeferredKey, true);
}
DeferredInit::~DeferredInit() {
  deferred_context->recording_from = before_;
  c10::impl::tls_set_dispatch_key_included(kDeferredKey, before_ >= 0);
}

std::optional<int64_t> smallest_deferred() {
  if (deferred_context->recording_from < 0) return std::nullopt;
  return std::max<int64_t>(deferred_context->recording_from, 2);
}

at::Tensor deferred_read(at::IntArrayRef shape, const at::TensorOptions& options, ReadBox read) {
  const auto empty = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
  const std::vector<c10::IValue> arguments = {shape.vec(),   at::typeMetaToScalarType(options.dtype()),
                                              c10::IValue(), options.device(),
                                              c10::IValue(), c10::IValue()};
  const std::shared_ptr<DeferredTape> tape = current_tape();
  const auto results = tape->record(empty, arguments, /*factory=*/true, [](const at::Tensor&) { return int64_t{-1}; });
  tape->read_last(std::move(read));
  return make_deferred(tape, results.at(0).values.at(0), options.device());
}

at::Tensor materialize(const at::Tensor& tensor) {
  return is_deferred(tensor) ? made_real(tensor, nullptr).requires_grad_(tensor.requires_grad()) : tensor;
}

at::Tensor materialize(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  TORCH_CHECK_VALUE(mesh != nullptr, "materialize: no mesh given");
  if (is_shard_tensor(tensor)) return tensor;
  const SpecPtr spec = make_spec(mesh, tensor.sizes(), placements);
  TORCH_CHECK_VALUE(!spec->has_partial(), "materialize: a tensor cannot start as a Partial\n  have  ",
                    spec->to_string());
  const bool trained = tensor.requires_grad();
  if (is_deferred(tensor)) return made_real(tensor, spec).requires_grad_(trained);
  const c10::AutoGradMode no_grad(false);
  return redistribute(from_local(tensor.detach(), replicated(mesh, tensor.sizes())), spec)
      .detach()
      .requires_grad_(trained);
}

void materialize_in_place(at::Tensor& tensor) {
  if (is_deferred(tensor)) tensor.set_data(made_real(tensor, nullptr));
}

}  // namespace moonhalo
