// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/fake_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/fill.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/dispatch_context.h"
#include "moonhalo/engine/forecast/window_memory.h"

namespace moonhalo {
namespace {

c10::Storage make_storage(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  if (bytes > static_cast<size_t>(kSmallFakeBytes)) {
    c10::Allocator* allocator = &window_allocator();
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator->allocate(bytes),
                                                 allocator, /*resizable=*/true);
  }
  const c10::impl::ExcludeDispatchKeyGuard plain(kFakeKey);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::DisableRecordFunctionGuard unseen;
  const at::Tensor ones = at::detail::empty_strided_cpu(sizes, strides, dtype);
  if (ones.numel() > 0) ones.fill_(1);
  return ones.storage();
}

}  // namespace

at::Tensor make_fake(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  at::Tensor fake = at::detail::make_tensor<c10::TensorImpl>(make_storage(sizes, strides, dtype),
                                                             c10::DispatchKeySet({c10::DispatchKey::CPU, kFakeKey}),
                                                             c10::scalarTypeToTypeMeta(dtype));
  fake.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return fake;
}

at::Tensor make_fake_in(int64_t storage_bytes, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  at::Tensor fake = make_fake(sizes, strides, dtype);
  const int64_t more = storage_bytes - static_cast<int64_t>(fake.storage().nbytes());
  if (more <= kSmallFakeBytes) return fake;
  // Its values, and the memory behind them.
  using Parts = std::pair<c10::Storage, c10::DataPtr>;
  auto parts = std::make_unique<Parts>(fake.storage(), window_allocator().allocate(static_cast<size_t>(more)));
  void* const values = parts->first.mutable_data();
  c10::DataPtr data(
      values, parts.release(), [](void* held) { delete static_cast<Parts*>(held); }, c10::kCPU);
  fake.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(storage_bytes),
                                            std::move(data), nullptr, /*resizable=*/false));
  return fake;
}

at::Tensor make_fake(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return make_fake(sizes, strides, dtype);
}

at::Tensor fake_like(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                    "fake_like: only dense tensors of the CPU can be fake\n  have  ", tensor.layout(), " on ",
                    tensor.device());
  return make_fake(tensor.sizes(), tensor.strides(), tensor.scalar_type()).requires_grad_(tensor.requires_grad());
}

void check_computed(const at::Tensor& tensor, const std::string& what) {
  TORCH_CHECK(!is_fake(tensor), what, " has no values, because it was not computed\n  have  a fake tensor ",
              shape_string(tensor.sizes()), "\n  fix   write files in a run that computes");
}

void refuse_fakes() { dispatch_context->refuses_fakes = true; }

FakeResults::FakeResults() : before_(c10::impl::tls_is_dispatch_key_included(kFakeKey)) {
  c10::impl::tls_set_dispatch_key_included(kFakeKey, true);
}

FakeResults::~FakeResults() { c10::impl::tls_set_dispatch_key_included(kFakeKey, before_); }

AssumedCount::AssumedCount(int64_t count) : outer_(dispatch_context->assumed_count) {
  TORCH_CHECK_VALUE(count >= 0, "AssumedCount: a count is at least 0\n  have  ", count);
  dispatch_context->assumed_count = count;
}

AssumedCount::~AssumedCount() { dispatch_context->assumed_count = outer_; }

std::optional<int64_t> AssumedCount::current() { return dispatch_context->assumed_count; }

}  // namespace moonhalo
