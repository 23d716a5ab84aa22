// SPDX-License-Identifier: Apache-2.0
// Running sums and products. Every block is scanned by itself, then what all blocks before it come
// to is put in front.
#include <ATen/ATen.h>

#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

enum class Scan : uint8_t { kSum, kProduct, kLogSumExp };

// Totals of all blocks along `dim`, [blocks, slice...]. Every rank fills in its own and the sum of
// all is the table.
at::Tensor totals_of_blocks(const at::Tensor& total, const SpecPtr& spec, int64_t dim) {
  std::vector<int64_t> shape = total.sizes().vec();
  shape.insert(shape.begin(), static_cast<int64_t>(spec->cut(dim).sizes.size()));
  at::Tensor table = at::zeros(shape, total.options());
  table.select(0, spec->block_index(dim, spec->mesh()->rank())).copy_(total);
  return CutGroup(spec, dim).all_reduce(table);
}

template <Scan kScan>
at::Tensor scan(const at::Tensor& x, int64_t dim) {
  if constexpr (kScan == Scan::kSum) return at::cumsum(x, dim);
  if constexpr (kScan == Scan::kProduct) return at::cumprod(x, dim);
  if constexpr (kScan == Scan::kLogSumExp) return at::logcumsumexp(x, dim);
}

template <Scan kScan>
std::optional<Plan> plan_scan(const OpCall& call) {
  // Only a running sum of numbers that stay what they are is linear.
  const bool linear =
      kScan == Scan::kSum && !at::isIntegralType(call.tensor("self").dtype, true) && !call.given("dtype");
  const SpecPtr from = linear ? resolve_nonlinear(call.spec("self")) : without_partial(call.spec("self"));
  const int64_t dim = call.dim("dim", from->ndim());
  Plan plan{.inputs = {from}, .outputs = {from}};
  if (from->ndim() == 0 || CutGroup(from, dim).alone()) return plan;
  // LibTorch adds float16 and bfloat16 in float32 and rounds the results. Blocks are put together before that.
  const at::ScalarType type =
      call.has("dtype") && call.given("dtype") ? call.value("dtype").toScalarType() : call.tensor("self").dtype;
  const bool is_rounded = at::isReducedFloatingType(type);
  plan.run = [=, self = call.arg("self")](LocalCall& call) {
    at::Tensor scanned;
    if (is_rounded) {
      scanned = scan<kScan>(call.tensor(self).to(type).to(at::kFloat), dim);
    } else {
      call.run();
      scanned = call.result();
    }
    const double nothing = kScan == Scan::kSum ? 0 : kScan == Scan::kProduct ? 1 : -INFINITY;
    const at::Tensor total = scanned.size(dim) > 0 ? scanned.select(dim, -1) : at::sum(scanned, dim).fill_(nothing);
    const at::Tensor before =
        totals_of_blocks(total, from, dim).narrow(0, 0, from->block_index(dim, from->mesh()->rank()));
    if (before.size(0) > 0) {
      if constexpr (kScan == Scan::kSum) scanned.add_(before.sum(0).unsqueeze(dim));
      if constexpr (kScan == Scan::kProduct) scanned.mul_(before.prod(0).unsqueeze(dim));
      if constexpr (kScan == Scan::kLogSumExp) scanned = at::logaddexp(scanned, before.logsumexp(0).unsqueeze(dim));
    }
    call.give(is_rounded ? scanned.to(type) : scanned);
  };
  return plan;
}

constexpr auto* kScanSupports = "any cut";

const Register scan_rules{
    {.op = "aten::cumsum", .plan = plan_scan<Scan::kSum>, .supports = kScanSupports, .traffic = Traffic::kAllReduce},
    {.op = "aten::cumprod",
     .plan = plan_scan<Scan::kProduct>,
     .supports = kScanSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::logcumsumexp",
     .plan = plan_scan<Scan::kLogSumExp>,
     .supports = kScanSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
