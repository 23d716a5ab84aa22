// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorUtils.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/versions.h"

namespace moonhalo {
namespace {

c10::DispatchKeySet keys_of(const at::Tensor& local) {
  constexpr c10::DispatchKeySet kOnHost({kShardKey, kSparseCheckKey, c10::DispatchKey::CPU});
  if (local.is_cpu() || !at::isAccelerator(local.device().type())) return kOnHost;
  constexpr c10::DispatchKeySet kOnDevice({kShardKey, kSparseCheckKey, c10::DispatchKey::Dense});
  return kOnDevice | (local.key_set() & c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask));
}

}  // namespace

ShardTensorImpl::ShardTensorImpl(at::Tensor local, SpecPtr spec)
    : c10::TensorImpl(keys_of(local), local.dtype(), local.device()), local_(std::move(local)), spec_(std::move(spec)) {
  set_geometry();
  set_storage_access_should_throw();
}

// Dense, row-major global strides: the same on every rank, whatever the local block's memory looks like. (Results that
// would not be row-major on plain tensors are given their own afterwards: result_strides.h.) Dims that an expand made
// are stride 0, or autograd would accumulate into them. Every
// result passes here, so LibTorch's setters, which find numel and contiguity out again, are not used.
void ShardTensorImpl::set_geometry() {
  const auto& shape = spec_->global_shape();
  const at::IntArrayRef block = local_.strides();
  TORCH_INTERNAL_ASSERT(local_.sizes() == at::IntArrayRef(spec_->local_shape()), "a local block of shape ",
                        local_.sizes(), " for ", spec_->to_string());
  sizes_and_strides_.set_sizes(shape);
  numel_ = spec_->global_numel();
  int64_t* strides = sizes_and_strides_.strides_data();
  int64_t next = 1;
  bool expanded = false;
  for (size_t i = shape.size(); i-- > 0;) {
    const bool broadcast = block[i] == 0 && shape[i] > 1 && !spec_->is_cut(i);
    strides[i] = broadcast ? 0 : next;
    if (!broadcast) next *= std::max<int64_t>(shape[i], 1);
    expanded |= broadcast;
  }
  // A new impl is contiguous; images and volumes may be contiguous as channels-last too.
  if (expanded || shape.size() == 4 || shape.size() == 5) refresh_contiguous();
}

void ShardTensorImpl::replace(at::Tensor local, SpecPtr spec) {
  TORCH_INTERNAL_ASSERT(spec->global_shape() == spec_->global_shape() &&
                        local.sizes() == at::IntArrayRef(spec->local_shape()));
  local_ = std::move(local);
  spec_ = std::move(spec);
  sharers_.reset();
}

void ShardTensorImpl::share_block(const ShardTensorImpl& other) const {
  if (!spec_->has_partial()) return;
  if (!sharers_) sharers_ = other.sharers_ ? other.sharers_ : std::make_shared<Sharers>();
  other.sharers_ = sharers_;
  sharers_->collected |= collected_ || other.collected_;
}

void ShardTensorImpl::live_until_collected() {
  collected_ = true;
  if (!sharers_) return;
  if (shares_block()) {
    sharers_->collected = true;
  } else {
    sharers_.reset();
  }
}

void ShardTensorImpl::take_mode_of(const ShardTensorImpl& base) {
  const bool inference = !base.key_set().has(c10::DispatchKey::ADInplaceOrView);
  if (is_inference() == inference) return;
  key_set_ = base.key_set_;
  if (is_inference()) {
    set_version_counter(c10::VariableVersion(c10::VariableVersion::DISABLED));
  } else {
    set_version_counter(c10::VariableVersion(0));
  }
}

c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                             bool allow_change) const {
  auto copy = c10::make_intrusive<ShardTensorImpl>(local_, spec_);
  copy_tensor_metadata(this, copy.get(), version, allow_change);
  copy->origin = origin;
  share_block(*copy);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ShardTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                             bool allow_change) const {
  auto copy = c10::make_intrusive<ShardTensorImpl>(local_, spec_);
  copy_tensor_metadata(this, copy.get(), std::move(version), allow_change);
  copy->origin = origin;
  share_block(*copy);
  return copy;
}

void ShardTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) {
  TORCH_CHECK_TYPE(other->key_set().has(kShardKey),
                   "set_data: a ShardTensor cannot take the data of a plain tensor\n  have  a ShardTensor ",
                   spec_->to_string(), " and a plain tensor of shape ", shape_string(other->sizes()),
                   "\n  fix   cut the new data first: distribute_tensor(data, mesh, placements)");
  const auto* source = static_cast<const ShardTensorImpl*>(other.get());
  local_ = source->local_;
  spec_ = source->spec_;
  if (get_backend_meta() != nullptr) set_backend_meta(nullptr);
  origin = source->origin;
  copy_tensor_metadata(source, this, version_counter(), allow_tensor_metadata_change());
  sharers_.reset();
  share_block(*source);
}

void ShardTensorImpl::release_resources() {
  c10::TensorImpl::release_resources();
  local_.reset();
  spec_.reset();
  sharers_.reset();
}

const at::Storage& ShardTensorImpl::storage() const {
  TORCH_CHECK_TYPE(
      false,
      "storage: a ShardTensor has no storage of its own; what asks for one (torch::save, a backward pass on another ",
      "stream than its forward pass) needs a plain tensor\n  have  ", spec_->to_string(),
      "\n  fix   give it full_tensor(x) or this rank's to_local(x); use one stream for both passes");
}

void refuse_foreign_impl() {
  TORCH_CHECK_TYPE(
      false, "set_data: a plain tensor was given the data of a ShardTensor and holds none of its own",
      "\n  fix   replace the tensor itself (parallelize_module does), or use full_tensor() as the data; instead of ",
      "clone() of a divided model divide a second model by the same plan and copy_ the parameters");
}

at::Tensor wrap(at::Tensor local, const SpecPtr& spec) {
  if (is_lazy(local)) [[unlikely]]
    local = materialize_lazy_bits(local);
  check_strided(local, "ShardTensor");
  return at::detail::make_tensor<ShardTensorImpl>(std::move(local), spec);
}

at::Tensor wrap_new(at::Tensor local, const SpecPtr& spec) {
  return wrap(local.is_contiguous() ? std::move(local) : copied_block(local), spec);
}

bool is_shard_tensor(const at::Tensor& tensor) { return tensor.defined() && shard_impl(tensor) != nullptr; }

const SpecPtr& spec(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_shard_tensor(tensor),
                   "spec: the tensor is not a ShardTensor\n  fix   make one with from_local, "
                   "distribute_tensor or scatter_tensor");
  return shard_impl(tensor)->spec();
}

std::map<int64_t, std::vector<int64_t>> sharding_sizes(const at::Tensor& tensor) {
  std::map<int64_t, std::vector<int64_t>> sizes;
  const auto placements = spec(tensor)->placements();
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].is_shard()) sizes[static_cast<int64_t>(m)] = placements[m].sizes;
  }
  return sizes;
}

}  // namespace moonhalo
