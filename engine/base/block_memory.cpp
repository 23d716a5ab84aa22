// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/block_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <sys/mman.h>

#include "moonhalo/engine/base/fake_key.h"

namespace moonhalo {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
constexpr size_t kLargeBytes = size_t{4} << 20;

}  // namespace

at::Tensor empty_block(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (!options.device().is_cpu() || makes_fakes()) return at::empty(shape, options);
  // Does what at::empty comes to, without a way through the dispatcher.
  at::Tensor block = at::detail::empty_cpu(shape, options);
  if (block.nbytes() < kLargeBytes) return block;
  const auto address = reinterpret_cast<uintptr_t>(block.mutable_data_ptr());
  const uintptr_t begin = (address + kHugePage - 1) & ~(kHugePage - 1),
                  end = (address + block.nbytes()) & ~(kHugePage - 1);
  // Advice: where it is not taken, pages are small.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return block;
}

at::Tensor copied_block(const at::Tensor& source) {
  at::Tensor block = empty_block(source.sizes(), source.options());
  block.copy_(source);
  return block;
}

std::vector<at::Tensor> split_block(const at::Tensor& block, at::IntArrayRef sizes, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::DisableRecordFunctionGuard unseen;
  const ComputedValues views;  // of a fake tensor they are fake
  return block.split_with_sizes(sizes, dim);
}

}  // namespace moonhalo
