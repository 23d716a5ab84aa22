// SPDX-License-Identifier: Apache-2.0
// Discrete Fourier transforms, which all fft_* operators are made of. Uncut dims are transformed where they are, cut
// ones on pencils: see pencil_transposes.h. A transform is linear, so sums stay Partial.
#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/fourier/pencil_transposes.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

enum class Kind : uint8_t { kComplex, kFromReal, kToReal };

// The transforms of this rank's block, stage by stage.
struct LocalFft {
  struct Stage {
    std::shared_ptr<const Redistribution> move;  // null: held so already
    std::vector<int64_t> dims;                   // the special one last
    std::vector<int64_t> shape;                  // afterwards
    bool special = false;
  };
  Kind kind;
  int64_t norm = 0;
  bool forward = true;   // kComplex
  bool onesided = true;  // kFromReal
  int64_t extent = 0;    // kToReal: of the special dim afterwards
  std::vector<Stage> stages;

  at::Tensor apply(at::Tensor x) const {
    for (const Stage& stage : stages) {
      if (stage.move) x = stage.move->apply(x);
      if (!stage.dims.empty()) x = transformed(x, stage);
    }
    return x;
  }

 private:
  at::Tensor transformed(const at::Tensor& x, const Stage& stage) const {
    if (x.numel() == 0) {
      const auto complex = c10::toComplexType(c10::toRealValueType(x.scalar_type()));
      const bool real = kind == Kind::kToReal && stage.special;
      return at::empty(stage.shape, x.options().dtype(real ? c10::toRealValueType(complex) : complex));
    }
    if (!stage.special)
      return at::_fft_c2c(x, stage.dims, norm, kind == Kind::kComplex ? forward : kind == Kind::kFromReal);
    return kind == Kind::kFromReal ? at::_fft_r2c(x, stage.dims, norm, onesided)
                                   : at::_fft_c2r(x, stage.dims, norm, extent);
  }
};

Plan plan_fft(const OpCall& call, Kind kind) {
  const SpecPtr input = resolve_nonlinear(call.spec("self"));
  Transform transform;
  for (const int64_t d : call.integers("dim")) transform.dims.push_back(c10::maybe_wrap_dim(d, input->ndim()));
  LocalFft local{.kind = kind, .norm = call.integer("normalization")};
  SpecPtr output = input;
  if (kind == Kind::kComplex && transform.dims.empty()) return {.inputs = {input}, .outputs = {output}};
  if (kind == Kind::kComplex) {
    local.forward = call.flag("forward");
  } else {
    TORCH_CHECK_VALUE(!transform.dims.empty(), call.name(), ": no dims to transform along\n  have  ", call.describe(),
                      "\n  fix   name at least one");
    const int64_t last = transform.dims.back(), extent = input->global_shape()[last];
    const bool to_real = kind == Kind::kToReal;
    if (!to_real) local.onesided = call.flag("onesided");
    local.extent = to_real ? call.integer("last_dim_size") : local.onesided ? extent / 2 + 1 : extent;
    transform.special = last;
    transform.special_first = !to_real;
    (to_real ? transform.bytes_before : transform.bytes_after) = 2;
    Cut cut = input->cut(last);
    if (cut) cut.sizes = proportional_sizes(cut.sizes, local.extent);
    output = with_cut(input, last, std::move(cut), local.extent);
  }
  SpecPtr held = input;
  for (const PencilStage& stage : pencil_stages(transform, input, output)) {
    LocalFft::Stage step{.shape = stage.transformed->local_shape()};
    if (stage.held != held) step.move = std::make_shared<const Redistribution>(held, stage.held);
    for (const int64_t d : stage.dims) {
      if (d == transform.special) step.special = true;
      if (d != transform.special) step.dims.push_back(d);
    }
    if (step.special) step.dims.push_back(transform.special);
    local.stages.push_back(std::move(step));
    held = stage.transformed;
  }
  return {.inputs = {input},
          .outputs = {output},
          .run = [local = std::move(local), at_self = call.arg("self")](LocalCall& call) {
            at::Tensor result = local.apply(call.tensor(at_self));
            call.give(std::move(result));
          }};
}

template <Kind kKind>
std::optional<Plan> plan_of(const OpCall& call) {
  return plan_fft(call, kKind);
}

constexpr auto* kSupports =
    "any dims, norm and cut, which results keep; a dim whose extent changes with its blocks' boundaries at the same "
    "place of the domain";

const Register fft_rules{
    {.op = "aten::_fft_c2c", .plan = plan_of<Kind::kComplex>, .supports = kSupports, .traffic = Traffic::kRedistribute},
    {.op = "aten::_fft_r2c",
     .plan = plan_of<Kind::kFromReal>,
     .supports = kSupports,
     .traffic = Traffic::kRedistribute},
    {.op = "aten::_fft_c2r", .plan = plan_of<Kind::kToReal>, .supports = kSupports, .traffic = Traffic::kRedistribute},
};

}  // namespace
}  // namespace moonhalo
