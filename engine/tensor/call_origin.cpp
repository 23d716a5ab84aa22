// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/call_origin.h"

#include <c10/util/bit_cast.h>

#include <unordered_set>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/sharding/spec_table.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/tensor_context.h"

namespace moonhalo {
namespace {

uint64_t with_list(uint64_t tag, at::IntArrayRef list) {
  tag = combine_fingerprint(tag, list.size());
  for (const int64_t word : list) tag = combine_fingerprint(tag, static_cast<uint64_t>(word));
  return tag;
}

uint64_t with_tensor(uint64_t tag, const at::Tensor& tensor) {
  if (!tensor.defined()) return combine_fingerprint(tag, 1);
  tag = combine_fingerprint(tag, static_cast<uint64_t>(tensor.scalar_type()) + 2);
  if (const ShardTensorImpl* impl = shard_impl(tensor)) return combine_fingerprint(tag, fingerprint_of(*impl->spec()));
  return with_list(tag, tensor.sizes());
}

uint64_t with_value(uint64_t tag, const c10::IValue& value, bool tensors_only) {
  if (value.isTensor()) return with_tensor(tag, value.toTensor());
  if (value.isList()) {
    const auto list = value.toListRef();
    tag = combine_fingerprint(tag, list.size());
    for (const c10::IValue& item : list) tag = with_value(tag, item, tensors_only);
    return tag;
  }
  if (tensors_only) return tag;
  if (value.isInt()) return combine_fingerprint(tag, static_cast<uint64_t>(value.toInt()) + 3);
  if (value.isBool()) return combine_fingerprint(tag, value.toBool() ? 5 : 4);
  if (value.isDouble()) return combine_fingerprint(tag, c10::bit_cast<uint64_t>(value.toDouble()) + 7);
  if (value.isString()) return combine_fingerprint(tag, fingerprint_of(value.toStringRef()));
  return combine_fingerprint(tag, value.isNone() ? 8 : 9);
}

}  // namespace

uint64_t fingerprint_of(const ShardSpec& spec) {
  const Layout& layout = spec.layout();
  uint64_t tag = with_list(with_list(kFirstFingerprint, layout.mesh->shape()), layout.global_shape);
  for (const auto& op : layout.partials) tag = combine_fingerprint(tag, op ? static_cast<uint64_t>(*op) + 1 : 0);
  for (const Cut& cut : layout.cuts) tag = with_list(with_list(tag, cut.mesh_dims), cut.sizes);
  return tag;
}

uint64_t fingerprint_of(at::TensorList tensors) {
  uint64_t tag = 0;
  for (const at::Tensor& tensor : tensors) {
    const ShardTensorImpl* impl = shard_impl(tensor);
    tag = combine_fingerprint(combine_fingerprint(tag, fingerprint_of(*impl->spec())),
                              CallLog::of_this_thread().shared_origin(impl->origin));
  }
  return tag;
}

std::string specs_of(at::TensorList tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += (text.empty() ? "" : "; ") + shard_impl(tensor)->spec()->to_string();
  return text;
}

bool keeps_value(const std::string& op) {
  static const std::unordered_set<std::string> all = {"aten::_reshape_alias", "aten::_reshape_copy", "aten::_to_copy",
                                                      "aten::_unsafe_view",   "aten::alias",         "aten::clone",
                                                      "aten::contiguous",     "aten::copy_",         "aten::detach",
                                                      "aten::lift_fresh",     "aten::reshape",       "aten::view"};
  return all.count(op) > 0;
}

uint64_t fingerprint_of(const std::string& op, at::ArrayRef<c10::IValue> arguments, bool tensors_only) {
  uint64_t tag = fingerprint_of(op.ends_with('_') ? op.substr(0, op.size() - 1) : op);
  for (const c10::IValue& value : arguments) tag = with_value(tag, value, tensors_only);
  return tag;
}

void set_new_origin(const at::Tensor& made, uint64_t tag) {
  ShardTensorImpl* impl = shard_impl(made);
  if (impl != nullptr) impl->origin = combine_fingerprint(tag, ++impl->spec()->mesh()->specs().made);
}

CallLog& CallLog::of_this_thread() { return *tensor_context->calls; }

uint64_t CallLog::origin_of_values(uint64_t origin) const {
  if (forward_mode_) return 0;
  for (;;) {
    const Made& made = made_[origin % made_.size()];
    if (made.op == nullptr || made.origin != origin || made.op->name != "aten::unsqueeze") return origin;
    origin = made.first;
  }
}

std::string CallLog::made_by(uint64_t origin) const {
  constexpr int kMost = 6;
  std::string text;
  for (int i = 0; i < kMost; ++i) {
    const Made& made = made_[origin % made_.size()];
    if (made.op == nullptr || made.origin != origin) break;
    text += (i == 0 ? ", made by " : " <- ") + made.op->name;
    origin = made.first;
  }
  return text;
}

}  // namespace moonhalo
