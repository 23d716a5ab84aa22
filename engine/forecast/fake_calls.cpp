// SPDX-License-Identifier: Apache-2.0
// Every call with a fake tensor among its arguments arrives here, and while FakeResults exists every call.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/dispatch/dispatch_context.h"
#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/forecast/fake_call_time.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/shape_rules.h"
#include "moonhalo/engine/forecast/window_memory.h"
#include "moonhalo/engine/forecast/work_space.h"
#include "moonhalo/engine/profile/profile_context.h"

namespace moonhalo {
namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kFakeKey);

// The ways to find the shapes of an operator's results.
enum class Way {
  kRedispatch,  // views, and operators that read no values: LibTorch's own kernel
  kCompose,     // the operator only calls others, which arrive here
  kRule,        // shape_rules.h
  kMeta,        // LibTorch's kernel for meta tensors
  kArguments,   // it returns nothing, or what it wrote
  kItem,
  kEqual,
  kCheck,  // of all values, by LibTorch itself: those that are not computed pass
  kNone,
};

struct KnownOperator {
  explicit KnownOperator(const c10::OperatorHandle& op) : facts(op) {
    const auto& schema = op.schema();
    const auto& returns = schema.returns();
    gives_tensors = std::any_of(returns.begin(), returns.end(), [](const auto& r) { return holds_tensors(r.type()); });
    writes = std::any_of(facts.written.begin(), facts.written.end(), [](bool w) { return w; });
    const auto device_argument = schema.argumentIndexWithName("device");
    device = device_argument ? *device_argument : -1;
    outs =
        std::count_if(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) { return a.is_out(); });
    const auto functional = writes ? functional_variant(op) : std::nullopt;
    rule_name = c10::toString(functional ? functional->operator_name() : op.operator_name());
    rule = find_shape_rule(rule_name);
    work_space = find_work_space_rule(op.operator_name().name);
    way = find_way(op);
  }

  static bool holds_tensors(const c10::TypePtr& type) {
    const auto inner = type->containedTypes();
    return type->kind() == c10::TypeKind::TensorType || std::any_of(inner.begin(), inner.end(), holds_tensors);
  }

  Way find_way(const c10::OperatorHandle& op) const {
    const std::string& name = op.operator_name().name;
    if (name == "aten::_local_scalar_dense") return Way::kItem;
    if (name == "aten::equal") return Way::kEqual;
    if (name == "aten::_is_any_true" || name == "aten::_is_all_true") return Way::kCheck;
    if (name == "aten::_linalg_check_errors") return Way::kArguments;  // reads a code that is not computed
    const bool for_all = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
                         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    const bool same_memory = op.hasTag(at::Tag::inplace_view) && name != "aten::resize_" && name != "aten::resize_as_";
    if (facts.view || same_memory) return Way::kRedispatch;
    if (rule != nullptr) return Way::kRule;
    if (op.hasKernelForDispatchKey(DispatchKey::Meta)) return Way::kMeta;
    if (name == "aten::copy_") return Way::kMeta;  // a kernel of every backend, which calls no other operator
    if (for_all && !op.hasKernelForDispatchKey(DispatchKey::CPU)) return Way::kCompose;
    if (!gives_tensors && !writes) return op.hasTag(at::Tag::data_dependent_output) ? Way::kNone : Way::kRedispatch;
    if (for_all) return Way::kMeta;
    const bool new_results = std::any_of(facts.returns_argument.begin(), facts.returns_argument.end(),
                                         [](int argument) { return argument < 0; });
    return writes && !new_results && !facts.gives_out ? Way::kArguments : Way::kNone;
  }

  OperatorFacts facts;
  std::string rule_name;
  const ShapeRule* rule = nullptr;
  WorkSpaceRule work_space = nullptr;
  Way way = Way::kNone;
  bool gives_tensors = false, writes = false;
  int device = -1;
  std::ptrdiff_t outs = 0;  ///< out= arguments, which are the last
};

const KnownOperator& known(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* all = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<KnownOperator>>;
  const std::lock_guard lock(mutex);
  auto& entry = (*all)[&op.schema()];
  if (!entry) entry = std::make_unique<KnownOperator>(op);
  return *entry;
}

// Calls `visit` with every defined tensor of an argument.
template <typename Visit>
void for_each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      if (!element.isTensor()) {
        if (!element.isNone()) return;
        continue;
      }
      if (element.toTensor().defined()) visit(element.toTensor());
    }
  }
}

void check_dense(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, op.operator_name(),
                              ": only dense tensors can be beside fake tensors\n  have  layout ", tensor.layout());
}

at::Tensor meta_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// Masks among the indices whose values are known become the positions that they select.
void expand_masks(c10::List<std::optional<at::Tensor>>& indices, const c10::OperatorHandle& op) {
  c10::List<std::optional<at::Tensor>> expanded;
  for (const std::optional<at::Tensor>& index : indices) {
    const bool mask =
        index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
    if (!mask) {
      expanded.push_back(index);
    } else if (!is_fake(*index)) {
      for (const at::Tensor& positions : at::nonzero(*index).unbind(1)) expanded.push_back(positions);
    } else {
      const Stack arguments{meta_of(*index)};
      const int64_t count = ShapeCall(op.operator_name().name, arguments, std::nullopt).count();
      for (int64_t d = 0; d < index->dim(); ++d) expanded.push_back(make_fake({count}, at::kLong));
    }
  }
  indices = std::move(expanded);
}

IValue meta_argument(const IValue& value, const c10::OperatorHandle& op) {
  if (value.isTensor()) return meta_of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta_of(tensor));
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> given = value.toOptionalTensorList(), list;
  expand_masks(given, op);
  for (const std::optional<at::Tensor>& tensor : given)
    list.push_back(tensor ? std::optional(meta_of(*tensor)) : std::nullopt);
  return list;
}

class FakeCall {
 public:
  FakeCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack)
      : op_(op), known_(known(op)), keys_(keys & kBelow), stack_(stack), count_(op.schema().arguments().size()) {
    for (size_t i = 0; i < count_; ++i) {
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
        fake_ |= is_fake(tensor);
        sharded_ |= tensor.key_set().has(kShardKey);
        plain_ &= tensor.is_cpu() && tensor.layout() == at::kStrided;
      });
    }
  }

  void run() {
    if (sharded_) return redispatch();
    const bool forced = c10::impl::tls_is_dispatch_key_included(kFakeKey);
    if (!fake_ && !(forced && plain_)) return redispatch();
    if (!forced && dispatch_context->refuses_fakes) refuse();
    switch (fake_ || known_.way == Way::kCompose || known_.way == Way::kMeta || known_.way == Way::kRule
                ? known_.way
                : Way::kRedispatch) {
      case Way::kRedispatch:
        return redispatch();
      case Way::kCompose:
        return compose();
      case Way::kItem:
        return give(one_as(argument(0).toTensor()));
      case Way::kEqual:
        return give(true);
      case Way::kCheck:
        return give(at::scalar_tensor(known_.rule_name == "aten::_is_all_true", at::kBool));
      case Way::kArguments:
        return finish(Stack(op_.schema().returns().size()), Stack());
      case Way::kMeta:
      case Way::kRule:
        return timed_by_shapes();
      case Way::kNone:
        break;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, op_.operator_name(), ": nothing tells the shapes of its results without computing them\n  have  a fake ",
        "tensor among its arguments", data_dependent() ? "; the results depend on values that are not computed" : "",
        "\n  fix   call other operators instead, or compute: moonhalo run --backend fake without --fake-tensors");
  }

 private:
  const IValue& argument(size_t i) const { return stack_[stack_.size() - count_ + i]; }
  bool data_dependent() const {
    return op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape);
  }
  void refuse() const {
    TORCH_CHECK_VALUE(
        false, op_.operator_name(), ": a dry run of a search has made this tensor, and not computed it\n",
        "  have  a fake tensor that the module kept, such as in a cache\n  fix   empty its caches behind the ",
        "search, or load the plan that the search has stored (gen_savedir)");
  }
  void redispatch() { op_.redispatchBoxed(keys_, &stack_); }
  void compose() {
    const Stack given = fake_ ? Stack(stack_.end() - static_cast<std::ptrdiff_t>(count_), stack_.end()) : Stack();
    {
      const c10::impl::IncludeDispatchKeyGuard inner_calls_too(kFakeKey);
      redispatch();
    }
    if (!fake_) return;
    for (size_t i = 0; i < count_; ++i) {
      if (known_.facts.written[i])
        for_each_tensor(given[i], [](const at::Tensor& tensor) { become_fake(tensor, tensor); });
    }
    // Results that such a kernel made with a factory alone (`empty_like`) have no computed values either.
    for (size_t r = 0; r < op_.schema().returns().size(); ++r) {
      for_each_tensor(stack_[stack_.size() - 1 - r], [&](const at::Tensor& result) {
        bool is_given = false;
        for (const IValue& argument : given)
          for_each_tensor(argument, [&](const at::Tensor& tensor) { is_given |= tensor.is_same(result); });
        if (!is_given && result.is_cpu()) become_fake(result, result);
      });
    }
  }
  void give(IValue value) {
    torch::jit::drop(stack_, count_);
    stack_.push_back(std::move(value));
  }

  // The result of `item()`.
  static c10::Scalar one_as(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.numel() == 1, "a Tensor with ", tensor.numel(), " elements cannot be converted to Scalar");
    const at::ScalarType dtype = tensor.scalar_type();
    if (dtype == at::kBool) return c10::Scalar(true);
    if (c10::isComplexType(dtype)) return c10::Scalar(c10::complex<double>(1, 0));
    return c10::isFloatingType(dtype) ? c10::Scalar(1.0) : c10::Scalar(int64_t{1});
  }

  void timed_by_shapes() {
    FakeCallTime* const time = profile_context->fake_call_time;
    if (time == nullptr) return by_shapes();
    const double begin = seconds_of(ClockOf::kThread), before = time->seconds();
    int64_t bytes = 0;
    const auto add_bytes = [&](const at::Tensor& tensor) {
      if (tensor.layout() == at::kStrided) bytes += static_cast<int64_t>(tensor.nbytes());
    };
    for (size_t i = 0; i < count_; ++i) for_each_tensor(argument(i), add_bytes);
    by_shapes();
    for (size_t r = 0; r < op_.schema().returns().size(); ++r)
      for_each_tensor(stack_[stack_.size() - 1 - r], add_bytes);
    time->use_memory(bytes);
    time->set(before + seconds_of(ClockOf::kThread) - begin);
  }

  void by_shapes() {
    if (!fake_ && op_.hasTag(at::Tag::dynamic_output_shape)) return redispatch();
    Stack arguments;
    arguments.reserve(count_);
    for (size_t i = 0; i < count_; ++i) {
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) { check_dense(tensor, op_); });
      arguments.push_back(static_cast<int>(i) == known_.device ? IValue(at::Device(at::kMeta))
                                                               : meta_argument(argument(i), op_));
    }
    if (!on_cpu()) return redispatch();
    Stack results = shapes_of(arguments);
    if (known_.way == Way::kRule) give_to_written(arguments, results);
    if (!fake_ && small(arguments, results)) return redispatch();
    finish(std::move(results), std::move(arguments));
  }

  // False for a factory of another device.
  bool on_cpu() const {
    if (known_.device < 0 || argument(known_.device).isNone()) return true;
    const at::Device device = argument(known_.device).toDevice();
    TORCH_CHECK_NOT_IMPLEMENTED(!fake_ || device.is_cpu(), op_.operator_name(), ": fake tensors are on the CPU",
                                "\n  have  device ", device);
    return device.is_cpu();
  }

  Stack shapes_of(const Stack& arguments) {
    const c10::impl::ExcludeDispatchKeyGuard real_calls(c10::DispatchKeySet({kFakeKey, kRandomKey, kCaptureKey}));
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::DisableRecordFunctionGuard unseen;  // it is not what the program does
    if (known_.way == Way::kRule) {
      const Stack given(arguments.begin(), arguments.end() - known_.outs);
      ShapeCall call(known_.rule_name, given, known_count());
      (*known_.rule)(call);
      work_space_ = call.work_space();
      return call.take_results();
    }
    Stack results = arguments;
    op_.callBoxed(results);
    if (known_.work_space != nullptr) work_space_ = known_.work_space(arguments, results);
    return results;
  }

  // The number of results that a mask whose values are known selects.
  std::optional<int64_t> known_count() const {
    if (known_.rule_name != "aten::masked_select" || is_fake(argument(1).toTensor())) return std::nullopt;
    const at::Tensor& mask = argument(1).toTensor();
    return mask.expand(at::infer_size(argument(0).toTensor().sizes(), mask.sizes())).sum().item<int64_t>();
  }

  // Rules give new results; those of an operator that writes are what it writes, in the order of its results.
  void give_to_written(Stack& arguments, Stack& results) const {
    if (!known_.writes) return;
    size_t next = 0;
    for (size_t i = 0; i < count_ && next < results.size(); ++i) {
      if (known_.facts.written[i]) arguments[i] = results[next++];
    }
    results.resize(op_.schema().returns().size());
  }

  // True if nothing larger than a small fake tensor is made.
  bool small(const Stack& arguments, const Stack& results) const {
    bool all = true;
    const auto look = [&](const at::Tensor& tensor) {
      all &= static_cast<int64_t>(tensor.numel() * tensor.element_size()) <= kSmallFakeBytes;
    };
    for (size_t r = 0; r < results.size(); ++r) {
      if (known_.facts.returns_argument[r] < 0) for_each_tensor(results[r], look);
    }
    for_each_written(arguments, [&](const at::Tensor& given, const at::Tensor& meta) {
      if (given.sizes() != meta.sizes()) look(meta);
    });
    return all;
  }

  template <typename Visit>
  void for_each_written(const Stack& arguments, const Visit& visit) const {
    for (size_t i = 0; i < count_; ++i) {
      if (!known_.facts.written[i]) continue;
      std::vector<at::Tensor> given, metas;
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) { given.push_back(tensor); });
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { metas.push_back(tensor); });
      for (size_t n = 0; n < given.size(); ++n) visit(given[n], metas.at(n));
    }
  }

  // Leaves the results on the stack: what was written as it was given, all else as fake tensors. `arguments`: the meta
  // tensors that the kernel wrote, or none if it ran no kernel.
  void finish(Stack results, Stack arguments) {
    const Stack given(stack_.end() - static_cast<std::ptrdiff_t>(count_), stack_.end());
    for_each_written(arguments.empty() ? given : arguments, become_fake);
    torch::jit::drop(stack_, count_);
    for (size_t r = 0; r < results.size(); ++r) {
      const int argument = known_.facts.returns_argument[r];
      stack_.push_back(argument >= 0 ? given[argument] : fake_result(results[r]));
    }
    if (work_space_ > 0) window_allocator().allocate(static_cast<size_t>(work_space_));  // for the peak
  }

  // A tensor that was written has no computed values any more, and the size that an out= tensor takes.
  static void become_fake(const at::Tensor& given, const at::Tensor& meta) {
    const bool resized = given.sizes() != meta.sizes();
    if (is_fake(given) && !resized) return;
    if (!resized) return forget_values(given);
    const at::Tensor fake = make_fake(meta.sizes(), meta.strides(), given.scalar_type());
    given.unsafeGetTensorImpl()->shallow_copy_from(fake.getIntrusivePtr());
  }

  static IValue fake_result(const IValue& result) {
    const auto fake = [](const at::Tensor& meta) {
      if (!meta.defined()) return meta;
      const auto held = static_cast<int64_t>(meta.storage().nbytes());  // more where a kernel has shrunk its result
      return make_fake_in(held, meta.sizes(), meta.strides(), meta.scalar_type());
    };
    if (result.isTensor()) return fake(result.toTensor());
    if (!result.isTensorList()) return result;
    c10::List<at::Tensor> list;
    for (const at::Tensor& meta : result.toTensorVector()) list.push_back(fake(meta));
    return list;
  }

  const c10::OperatorHandle& op_;
  const KnownOperator& known_;
  c10::DispatchKeySet keys_;
  Stack& stack_;
  size_t count_;
  int64_t work_space_ = 0;
  bool fake_ = false, sharded_ = false, plain_ = true;
};

void fake_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  FakeCall(op, keys, *stack).run();
}

TORCH_LIBRARY_IMPL(_, Fake, library) {
  static_assert(kFakeKey == c10::DispatchKey::Fake, "the fallback is registered for another key");
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fake_kernel>());
}

}  // namespace
}  // namespace moonhalo
