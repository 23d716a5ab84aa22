// SPDX-License-Identifier: Apache-2.0
// The median of a whole tensor, without gathering it: eight rounds fix the value byte by byte, from the highest on. In
// each the ranks count their remaining elements by that byte and add the 256 counts up.
#include <ATen/ATen.h>

#include <limits>

#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

constexpr int64_t kSign = std::numeric_limits<int64_t>::min();

// Integers in the order of the values. The bits of a positive double grow with it, those of a negative one the other
// way round.
at::Tensor keys_of(const at::Tensor& x) {
  if (!x.is_floating_point()) return x.to(at::kLong);
  const at::Tensor bits = x.to(at::kDouble).contiguous().view(at::kLong);
  return at::where(bits.lt(0), bits.bitwise_xor(~kSign), bits);
}

at::Tensor value_of(int64_t key, const at::Tensor& like) {
  at::Tensor value = at::full({}, key, like.options().dtype(at::kLong));
  if (like.is_floating_point()) {
    value = at::where(value.lt(0), value.bitwise_xor(~kSign), value).view(at::kDouble);
  }
  return value.to(like.scalar_type());
}

// The element of rank `place` (from 0) among all ranks' `keys`.
int64_t select(at::Tensor keys, int64_t place, const CutGroup& group) {
  keys = keys.bitwise_xor(kSign);  // now ordered as unsigned numbers
  uint64_t found = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    const at::Tensor byte = keys.bitwise_right_shift(shift).bitwise_and(255);
    const at::Tensor counts = group.all_reduce(at::bincount(byte, {}, 256)).cpu();
    const auto* count = counts.const_data_ptr<int64_t>();
    int64_t digit = 0;
    for (; place >= count[digit]; ++digit) place -= count[digit];
    keys = keys.masked_select(byte.eq(digit));
    found = found << 8 | static_cast<uint64_t>(digit);
  }
  return static_cast<int64_t>(found) ^ kSign;
}

template <bool kSkipNan>
std::optional<Plan> plan_median(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const auto dims = all_dims(from->ndim());
  const CutGroup group(from, dims);
  Plan plan{.inputs = {from}, .outputs = {replicated(call.mesh(), {})}};
  if (group.alone() || from->global_numel() == 0) return plan;
  plan.run = [group, total = from->global_numel(), at_self = call.arg("self")](LocalCall& call) {
    at::Tensor x = call.tensor(at_self).flatten();
    int64_t count = total;
    if (x.is_floating_point()) {
      const at::Tensor nan = x.isnan();
      count -= group.all_reduce(nan.sum()).item<int64_t>();
      if (count == 0 || (count < total && !kSkipNan)) return call.give(at::full({}, NAN, x.options()));
      x = x.masked_select(nan.logical_not());
    }
    call.give(value_of(select(keys_of(x), (count - 1) / 2, group), x));
  };
  return plan;
}

constexpr auto* kOrderStatisticsSupports = "any cut";

const Register order_statistics_rules{
    {.op = "aten::median",
     .plan = plan_median<false>,
     .supports = kOrderStatisticsSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::nanmedian",
     .plan = plan_median<true>,
     .supports = kOrderStatisticsSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
