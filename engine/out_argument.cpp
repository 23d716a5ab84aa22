// SPDX-License-Identifier: Apache-2.0
#include "engine/out_argument.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace moonhalo {

void write_result(const std::string& name, const at::Tensor& result, const at::Tensor& target, bool out) {
  if (!result.defined() || !target.defined()) return;
  TORCH_CHECK_TYPE(c10::canCast(result.scalar_type(), target.scalar_type()), name, ": a result of type ", result.scalar_type(),
                   " cannot be written to a tensor of type ", target.scalar_type(), "\n  have  a result of shape ", shape_string(result.sizes()),
                   "\n  fix   give a tensor of type ", result.scalar_type());
  if (out && target.numel() == 0 && target.sizes() != result.sizes()) {
    if (ShardTensorImpl* impl = shard_impl(target)) {
      const at::Tensor made =
          is_shard_tensor(result) ? result : from_local(result, replicated(impl->spec()->mesh(), result.sizes()));
      const at::Tensor cast = made.to(target.scalar_type());
      impl->shallow_copy_from(cast.getIntrusivePtr());
      return;
    }
    target.resize_(result.sizes());
  }
  TORCH_CHECK_VALUE(target.sizes() == result.sizes(), name, ": the result has shape ", shape_string(result.sizes()),
                    ", the tensor that it is written to ", shape_string(target.sizes()), "\n  have  ",
                    out ? "an out= tensor of " : "a tensor of ", target.numel(), " elements\n  fix   ",
                    out ? "give an out= tensor of the result's shape, or an empty one" : "use the operator that returns a new tensor");
  // Memory that was asked for without values holds any, others on each rank.
  if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) return;
  target.copy_(result);
}

void take_new_shape(ShardTensorImpl& impl) {
  if (impl.sizes() == at::IntArrayRef(impl.spec()->global_shape())) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor fresh =
      wrap(at::empty(impl.sizes(), impl.local().options()), replicated(impl.spec()->mesh(), impl.sizes()));
  impl.shallow_copy_from(fresh.getIntrusivePtr());
}

}  // namespace moonhalo
