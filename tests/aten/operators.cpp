// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/operators.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::testing {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

bool contains_any(const std::string& text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](auto part) { return contains(text, part); });
}

bool holds_tensors(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType ||
         std::any_of(type->containedTypes().begin(), type->containedTypes().end(), holds_tensors);
}

// Underscored names that users call, since LibTorch has no other name for what they do.
bool public_underscored(const std::string& base) {
  static const std::set<std::string> kNames = {
      "_unique", "_unique2", "_weight_norm", "_standard_gamma", "_sample_dirichlet", "_pack_padded_sequence",
      "_pad_packed_sequence", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_softmax", "_log_softmax",
      // The C++ operators & | ^ << >> call these.
      "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__iand__", "__ior__", "__ixor__", "__ilshift__",
      "__irshift__"};
  return kNames.contains(base) || base.starts_with("_foreach_") ||
         (base.starts_with("_fused_") && contains_any(base, {"adam", "sgd", "adagrad"}));
}

bool runs_on_cpu(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const auto keys = {DispatchKey::CPU, DispatchKey::CompositeImplicitAutograd, DispatchKey::CompositeExplicitAutograd,
                     DispatchKey::CompositeExplicitAutogradNonFunctional};
  return std::any_of(keys.begin(), keys.end(), [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

// The reason why users do not call it on tensors, or "".
std::string why_outside(const Operator& op) {
  const auto& schema = op.handle.schema();
  const std::string& overload = op.handle.operator_name().overload_name;

  if (std::none_of(schema.arguments().begin(), schema.arguments().end(),
                   [](const auto& a) { return holds_tensors(a.type()); }))
    return "takes no tensor";
  if (contains(op.base, "backward")) return "derivative of another, reached through it";
  if (contains_any(op.base, {"_jvp", "_double_back", "slice_inverse"}))
    return "derivative of another, reached through it";
  if (contains_any(op.base, {"quant", "fbgemm", "choose_qparams"}) || op.base == "dequantize" ||
      op.base == "int_repr" || op.base.starts_with("q_"))
    return "quantised tensors";
  if (contains_any(op.base, {"sparse", "crow_indices", "ccol_indices", "col_indices", "row_indices", "coalesce", "csr",
                             "to_dense", "sspaddmm", "hspmm"}) ||
      op.base == "smm" || op.base == "indices" || op.base == "values" || op.base == "indices_copy" ||
      op.base == "values_copy" || op.base == "dense_dim" || op.base == "copy_sparse_to_sparse")
    return "sparse tensors";
  if (contains(op.base, "nested")) return "nested tensors";
  if (contains_any(op.base, {"mkldnn", "cudnn", "miopen", "mps_", "xla", "vulkan"}))
    return "kernels or layouts of one library";
  if (contains_any(op.base, {"pin_memory", "is_pinned", "record_stream"}) || op.base == "cpu" || op.base == "cuda")
    return "devices and streams";
  if (contains_any(overload, {"name", "Dimname"}) || contains_any(op.base, {"align_", "rename", "refine_names"}))
    return "named tensors";
  if (op.base.starts_with("set") && (op.base == "set" || op.base == "set_data"))
    return "shares storage, which a ShardTensor does not have";
  if (op.base == "resize" || op.base == "resize_as" || op.base == "data" || op.base == "convolution_overrideable" ||
      op.base.starts_with("lift") || op.base == "_fw_primal")
    return "LibTorch's own machinery";
  // Facts about a tensor, not operations on one; those that read values stay.
  static const std::set<std::string> kReadsValues = {"allclose", "equal", "item", "is_nonzero"};
  const bool writes = std::any_of(schema.arguments().begin(), schema.arguments().end(),
                                  [](const auto& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); });
  if (!writes && !kReadsValues.contains(op.base) &&
      std::none_of(schema.returns().begin(), schema.returns().end(),
                   [](const auto& r) { return holds_tensors(r.type()); }))
    return "asks for a fact, returns no tensor";
  if (op.base == "requires_grad" || op.base == "retain_grad") return "asks for a fact, returns no tensor";
  if (op.base.starts_with("_") && !public_underscored(op.base)) return "internal (leading underscore)";
  if (!runs_on_cpu(op.handle)) return "no kernel for CPU";
  // out= forms that LibTorch generates call the functional one.
  const auto functional = op.out ? functional_variant(op.handle) : std::nullopt;
  if (!op.handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) && functional && !runs_on_cpu(*functional))
    return "no kernel for CPU";
  return "";
}

std::vector<Operator> list_operators() {
  std::vector<Operator> all;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle) continue;
    Operator op{.handle = *handle, .name = c10::toString(name), .base = name.name.substr(6)};
    const auto& arguments = handle->schema().arguments();
    op.out = std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); });
    op.in_place = !op.out && op.base.ends_with("_") && !op.base.ends_with("__") && !arguments.empty() &&
                  arguments[0].alias_info() != nullptr && arguments[0].alias_info()->isWrite();
    if (op.in_place) op.base.pop_back();
    op.outside = why_outside(op);
    all.push_back(std::move(op));
  }
  std::sort(all.begin(), all.end(), [](const Operator& a, const Operator& b) { return a.name < b.name; });
  return all;
}

}  // namespace

const std::vector<Operator>& all_operators() {
  static const std::vector<Operator> all = list_operators();
  return all;
}

std::vector<Operator> callable_operators() {
  std::vector<Operator> callable;
  for (const Operator& op : all_operators()) {
    if (op.outside.empty()) callable.push_back(op);
  }
  return callable;
}

const Operator& find_operator(const std::string& name) {
  std::vector<std::string> names;
  for (const Operator& op : all_operators()) {
    if (op.name == name || op.name == "aten::" + name) return op;
    names.push_back(op.name);
  }
  TORCH_CHECK_VALUE(false, "no such operator: ", name, did_you_mean(name, names), "\n  have  ", names.size(),
                    " operators of namespace aten", "\n  fix   give name and overload, as in aten::sum.dim_IntList");
}

}  // namespace moonhalo::testing
