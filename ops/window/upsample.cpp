// SPDX-License-Identifier: Apache-2.0
// Resampling to a given size. Every mode is a product of one-dim maps, each output row a weighted sum of one, two or
// four input rows, or with antialiasing of as many as its window covers. LibTorch's kernel resamples the dims that
// are not cut, cut dims are resampled here, from the owned rows and the few fetched ones.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "moonhalo/engine/base/device_constant.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/support/kernels/rows.h"
#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

enum class Interpolation : uint8_t { kNearest, kNearestExact, kLinear, kCubic, kSmoothLinear, kSmoothCubic };

bool is_smooth(Interpolation mode) {
  return mode == Interpolation::kSmoothLinear || mode == Interpolation::kSmoothCubic;
}

// One dim of a resampling, in global terms. Positions as in LibTorch's UpSample.h: with align_corners the end rows'
// centres coincide, otherwise the domain's ends do.
class Dim {
 public:
  Dim(Interpolation mode, int64_t in, int64_t out, bool align_corners, std::optional<double> factor,
      at::ScalarType dtype)
      : mode_(mode), in_(in), align_corners_(align_corners) {
    if (align_corners) {
      scale_ = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
    } else {
      scale_ = factor && *factor > 0 ? 1 / *factor : static_cast<double>(in) / static_cast<double>(out);
    }
    if (is_smooth(mode)) {
      if (in == out) scale_ = 1;  // left as it is, whatever the factor
      // A window of the filter, as wide as the rows that fall on one output are apart.
      const double half = mode == Interpolation::kSmoothCubic ? 2 : 1;
      support_ = half * std::max(scale_, 1.0);
      taps_ = 2 * static_cast<int64_t>(std::ceil(support_)) + 1;
      return;
    }
    taps_ = mode == Interpolation::kCubic ? 4 : mode == Interpolation::kLinear ? 2 : 1;
    if (taps_ > 1) return;
    // The choice of the nearest row hangs on rounding: ask LibTorch, in the precision it will use.
    const ComputedValues all_rows;
    const auto precision = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor ramp = at::arange(in, at::TensorOptions().dtype(precision)).view({1, 1, in});
    const at::Tensor rows = mode == Interpolation::kNearest ? at::upsample_nearest1d(ramp, {out}, factor)
                                                            : at::_upsample_nearest_exact1d(ramp, {out}, factor);
    const at::Tensor index = rows.to(at::kLong).contiguous();
    nearest_.assign(index.const_data_ptr<int64_t>(), index.const_data_ptr<int64_t>() + out);
  }

  int64_t taps() const { return taps_; }

  // Rows and weights of output `o`.
  void read(int64_t o, std::vector<int64_t>& rows, std::vector<double>& weights) const {
    const auto inside = [&](int64_t row) { return std::clamp<int64_t>(row, 0, in_ - 1); };
    if (taps() == 1) {
      rows.push_back(nearest_[o]);
      weights.push_back(1);
      return;
    }
    if (is_smooth(mode_)) return read_window(o, rows, weights);
    const auto at = static_cast<double>(o);
    double source = align_corners_ ? at * scale_ : (at + 0.5) * scale_ - 0.5;
    if (mode_ == Interpolation::kLinear) source = std::max(source, 0.0);
    int64_t row = static_cast<int64_t>(std::floor(source));
    if (mode_ == Interpolation::kLinear) row = std::min(row, in_ - 1);
    const double t = std::clamp(source - static_cast<double>(row), 0.0, 1.0);
    if (mode_ == Interpolation::kLinear) {
      rows.insert(rows.end(), {row, inside(row + 1)});
      weights.insert(weights.end(), {1 - t, t});
      return;
    }
    rows.insert(rows.end(), {inside(row - 1), inside(row), inside(row + 1), inside(row + 2)});
    weights.insert(weights.end(), {keys(t + 1, kA), keys(t, kA), keys(1 - t, kA), keys(2 - t, kA)});
  }

  Interval needed(const Interval& out) const {
    if (out.empty()) return {0, 0};
    std::vector<int64_t> rows;
    std::vector<double> weights;
    read(out.begin, rows, weights);
    read(out.end - 1, rows, weights);
    const auto [low, high] = std::minmax_element(rows.begin(), rows.end());
    return {*low, *high + 1};
  }

 private:
  // Parameter of Keys' cubic convolution in LibTorch, without and with antialiasing.
  static constexpr double kA = -0.75, kSmoothA = -0.5;

  // R. Keys, Cubic convolution interpolation for digital image processing, 1981; x >= 0.
  static double keys(double x, double a) {
    if (x >= 2) return 0;
    return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  }

  // The rows inside the window around output `o`; the filter's weights add up to one. Filled up with weights of zero.
  void read_window(int64_t o, std::vector<int64_t>& rows, std::vector<double>& weights) const {
    const double centre = scale_ * (static_cast<double>(o) + 0.5);
    const auto first = std::max<int64_t>(static_cast<int64_t>(centre - support_ + 0.5), 0);
    const auto end = std::min<int64_t>(static_cast<int64_t>(centre + support_ + 0.5), in_);
    const size_t begin = weights.size();
    double sum = 0;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      const int64_t row = first + tap;
      const double x = std::abs(static_cast<double>(row) - centre + 0.5) / std::max(scale_, 1.0);
      const double weight = row >= end                             ? 0
                            : mode_ == Interpolation::kSmoothCubic ? keys(x, kSmoothA)
                                                                   : std::max(1 - x, 0.0);
      rows.push_back(row < end ? row : std::min(first, in_ - 1));
      weights.push_back(weight);
      sum += weight;
    }
    for (size_t i = begin; sum != 0 && i < weights.size(); ++i) weights[i] /= sum;
  }

  Interpolation mode_;
  int64_t in_;
  bool align_corners_;
  double scale_ = 1, support_ = 0;
  int64_t taps_ = 1;
  std::vector<int64_t> nearest_;
};

// A cut dim on one rank: output row o is the sum over t of weights[o, t] * row rows[o, t] of the
// extended block.
struct RowTaps {
  int64_t dim = 0, taps = 1, extended = 0;
  std::vector<int64_t> rows;
  std::vector<double> weights;

  int64_t outputs() const { return static_cast<int64_t>(rows.size()) / taps; }

  at::Tensor apply(const at::Tensor& x) const {
    if (x.device().is_cpu() && x.scalar_type() == at::kFloat) return apply_rows<float>(x.contiguous());
    if (x.device().is_cpu() && x.scalar_type() == at::kDouble) return apply_rows<double>(x.contiguous());
    at::Tensor result = x.index_select(dim, row_index(x, 0));
    if (taps == 1) return result;
    result.mul_(weight(x, 0));
    for (int64_t t = 1; t < taps; ++t) result.addcmul_(x.index_select(dim, row_index(x, t)), weight(x, t));
    return result;
  }
  at::Tensor adjoint(const at::Tensor& grad) const {
    if (grad.device().is_cpu() && grad.scalar_type() == at::kFloat) return adjoint_rows<float>(grad.contiguous());
    if (grad.device().is_cpu() && grad.scalar_type() == at::kDouble) return adjoint_rows<double>(grad.contiguous());
    at::Tensor result = at::zeros(resized(grad, extended), grad.options());
    for (int64_t t = 0; t < taps; ++t) {
      result.index_add_(dim, row_index(grad, t), taps == 1 ? grad : grad * weight(grad, t));
    }
    return result;
  }

 private:
  std::vector<int64_t> resized(const at::Tensor& x, int64_t required_rows) const {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[dim] = required_rows;
    return shape;
  }
  at::Tensor row_index(const at::Tensor& like, int64_t tap) const {
    std::vector<int64_t> index;
    for (size_t i = tap; i < rows.size(); i += taps) index.push_back(rows[i]);
    return constant_on(like.options().dtype(at::kLong), index);
  }
  at::Tensor weight(const at::Tensor& like, int64_t tap) const {
    std::vector<double> values;
    for (size_t i = tap; i < weights.size(); i += taps) values.push_back(weights[i]);
    std::vector<int64_t> shape(like.dim(), 1);
    shape[dim] = -1;
    return constant_on(like.options(), values).view(shape);
  }

  // `work(slab)` for every index of the dims before `dim`; `slab` numbers have to be touched for each.
  template <typename Work>
  void each_slab(const at::Tensor& x, int64_t slab, const Work& work) const {
    const int64_t slabs = c10::multiply_integers(x.sizes().slice(0, dim));
    const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / std::max<int64_t>(slab, 1));
    parallel_for(0, slabs, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  }
  template <typename T>
  at::Tensor apply_rows(const at::Tensor& x) const {
    const std::vector<T> numbers(weights.begin(), weights.end());
    const rows::Taps<T> given{rows.data(), numbers.data(), outputs(), taps};
    const int64_t inner = c10::multiply_integers(x.sizes().slice(dim + 1));
    at::Tensor result = x.new_empty(resized(x, outputs()));
    note_work("upsample", result.numel() * taps, memory_bytes({x, result}));
    if (is_fake(x)) return result;
    const T* from = x.const_data_ptr<T>();
    T* to = result.mutable_data_ptr<T>();
    each_slab(x, outputs() * inner, [&](int64_t i) {
      rows::kernels<T>().resample(to + i * outputs() * inner, from + i * extended * inner, given, inner);
    });
    return result;
  }
  template <typename T>
  at::Tensor adjoint_rows(const at::Tensor& grad) const {
    const std::vector<T> numbers(weights.begin(), weights.end());
    const rows::Taps<T> given{rows.data(), numbers.data(), outputs(), taps};
    const int64_t inner = c10::multiply_integers(grad.sizes().slice(dim + 1));
    at::Tensor result = grad.new_empty(resized(grad, extended));
    note_work("upsample_backward", grad.numel() * taps, memory_bytes({grad, result}));
    if (is_fake(grad)) return result;
    const T* from = grad.const_data_ptr<T>();
    T* to = result.mutable_data_ptr<T>();
    each_slab(grad, outputs() * inner, [&](int64_t i) {
      T* slab = to + i * extended * inner;
      std::fill_n(slab, extended * inner, T{0});
      rows::kernels<T>().resample_back(slab, from + i * outputs() * inner, given, inner);
    });
    return result;
  }
};

struct Resampling {
  SpecPtr input, output;
  Arg given;                                // the tensor that is passed
  std::vector<RowTaps> taps;                // of the cut dims
  std::shared_ptr<const IntervalMap> halo;  // null: no dim is cut
  std::vector<int64_t> kernel_input;  // of the local kernel, which leaves the extended rows of cut dims as they are
  std::vector<std::pair<Arg, c10::IValue>> edits;

  // True if a dim is left for LibTorch's kernel, of a tensor whose first two dims are not resampled.
  bool kernel_runs(const at::Tensor& x) const { return static_cast<int64_t>(taps.size()) < x.dim() - 2; }

  // Several steps round half types once, as LibTorch's kernel does alone.
  at::Tensor widened(const at::Tensor& x) const { return taps.empty() ? x : x.to(wide_type(x.scalar_type())); }

  void forward(LocalCall& call) const {
    at::Tensor x = call.tensor(given);
    const at::ScalarType dtype = x.scalar_type();
    if (halo) x = gather(*halo, x, 0, call.halo_source(given));
    const auto& shape = output->local_shape();
    if (c10::multiply_integers(shape) == 0) return call.give(at::empty(shape, x.options()));
    x = widened(x);
    if (kernel_runs(x)) {
      call.value(given) = std::move(x);
      call.run();
      x = call.result();
    }
    for (const RowTaps& t : taps) x = t.apply(x);
    call.give(x.to(dtype));
  }

  void backward(LocalCall& call) const {
    at::Tensor grad = call.tensor(given);
    const at::ScalarType dtype = grad.scalar_type();
    const auto owned = [&] { return (halo ? scatter_add(*halo, grad) : grad).to(dtype); };
    if (grad.numel() == 0) {
      grad = widened(at::zeros(halo ? halo->needed_shape() : input->local_shape(), grad.options()));
      return call.give(owned());
    }
    grad = widened(grad);
    for (auto t = taps.rbegin(); t != taps.rend(); ++t) grad = t->adjoint(grad);
    if (kernel_runs(grad)) {
      call.value(given) = std::move(grad);
      call.run();
      grad = call.result();
    }
    call.give(owned());
  }
};

Interpolation mode_of(std::string_view name) {
  if (name.find("nearest_exact") != std::string_view::npos) return Interpolation::kNearestExact;
  if (name.find("nearest") != std::string_view::npos) return Interpolation::kNearest;
  const bool cubic = name.find("cubic") != std::string_view::npos;
  if (name.find("_aa") != std::string_view::npos)
    return cubic ? Interpolation::kSmoothCubic : Interpolation::kSmoothLinear;
  return cubic ? Interpolation::kCubic : Interpolation::kLinear;
}

// The tensor that is passed.
Arg given_to(const OpCall& call) { return call.arg({"grad_output", "self", "input"}); }

// Specs of a resampling's input and output.
struct Specs {
  SpecPtr input, output;
};

// `backward` says that the tensor that is passed is the output's gradient.
Specs specs_of(const OpCall& call, bool backward) {
  const SpecPtr given = call.spec(given_to(call));
  const auto out_size = call.integers("output_size");
  const auto spatial = static_cast<int64_t>(out_size.size());
  TORCH_CHECK_VALUE(given->ndim() == spatial + 2, call.name(), ": a tensor of ", given->ndim(), " dims\n  have  ",
                    call.describe(), "\n  fix   give batch, channels and ", spatial, " dims");
  Layout in = without_partial(given)->layout(), out = in;
  if (backward) in.global_shape = call.integers("input_size");
  std::copy(out_size.begin(), out_size.end(), out.global_shape.begin() + 2);
  TORCH_CHECK_VALUE(!backward || out.global_shape == given->global_shape(), call.name(),
                    ": the gradient of the output has shape ", shape_string(given->global_shape()), ", the output ",
                    shape_string(out.global_shape));
  for (int64_t d = 2; d < spatial + 2; ++d) {
    TORCH_CHECK_VALUE(in.global_shape[d] > 0 && out.global_shape[d] > 0, call.name(),
                      ": sizes must be positive\n  have  input ", shape_string(in.global_shape), ", output ",
                      shape_string(out.global_shape));
    if (!in.cuts[d]) continue;
    // The policy is for outputs; where the input was cut its gradient does not know.
    if (backward) {
      in.cuts[d].sizes = proportional_sizes(out.cuts[d].sizes, in.global_shape[d]);
    } else {
      out.cuts[d].sizes = resampled_sizes(in.cuts[d].sizes, out.global_shape[d]);
    }
  }
  return {intern(std::move(in)), intern(std::move(out))};
}

// The dims that are resampled from halo rows; LibTorch's kernel does the others. Of such a dim the kernel's own
// factor is cleared, in `edits`.
std::vector<std::optional<Dim>> dims_of(const OpCall& call, const Specs& specs,
                                        std::vector<std::pair<Arg, c10::IValue>>& edits) {
  const int64_t ndim = specs.input->ndim();
  std::vector<Arg> factor_args;
  for (const char* name : {"scales", "scales_d", "scales_h", "scales_w"}) {
    if (call.has(name)) factor_args.push_back(call.arg(name));
  }
  const bool align_corners = call.has("align_corners") && call.flag("align_corners");
  const Interpolation mode = mode_of(call.name());
  // LibTorch's antialiasing goes wrong on blocks of one column, so it gets no blocks.
  bool all = false;
  for (int64_t d = 2; is_smooth(mode) && d < ndim; ++d) all |= spans_ranks(specs.input, d);
  std::vector<std::optional<Dim>> dims(ndim);
  for (int64_t d = 2; d < ndim; ++d) {
    if (!all && !spans_ranks(specs.input, d)) continue;
    dims[d].emplace(mode, specs.input->global_shape()[d], specs.output->global_shape()[d], align_corners,
                    call.value(factor_args[d - 2]).toOptional<double>(), call.tensor(given_to(call)).dtype);
    edits.emplace_back(factor_args[d - 2], c10::IValue());
  }
  return dims;
}

// The input rows `rows` from which a dim's outputs `outputs` are summed up.
RowTaps taps_of(const Dim& dim, int64_t d, const Interval& rows, const Interval& outputs) {
  RowTaps taps{d, dim.taps(), rows.size()};
  for (int64_t o = outputs.begin; o < outputs.end; ++o) dim.read(o, taps.rows, taps.weights);
  for (int64_t& row : taps.rows) row -= rows.begin;
  return taps;
}

Resampling resampling_of(const OpCall& call, bool backward) {
  const Specs specs = specs_of(call, backward);
  Resampling r;
  r.given = given_to(call);
  r.input = specs.input;
  r.output = specs.output;
  const auto dims = dims_of(call, specs, r.edits);
  const auto along = [&](int64_t d, const Interval& owned, const Interval& outputs) {
    return HaloRequest{d >= 2 && dims[d] ? dims[d]->needed(outputs) : owned};
  };
  if (std::any_of(dims.begin(), dims.end(), [](const auto& dim) { return dim.has_value(); }))
    r.halo = std::make_shared<const IntervalMap>(r.input, GridRequests{r.output, along});

  const int64_t rank = r.input->mesh()->rank();
  Box mine = block_box(*r.input, rank);
  for (int64_t d = 0; d < mine.ndim(); ++d) mine[d] = along(d, mine[d], r.output->block_range(d, rank)).rows;
  std::vector<int64_t> local_size = call.integers("output_size");
  r.kernel_input = r.input->local_shape();
  for (int64_t d = 2; d < mine.ndim(); ++d) {
    if (!dims[d]) continue;
    local_size[d - 2] = r.kernel_input[d] = mine[d].size();
    r.taps.push_back(taps_of(*dims[d], d, mine[d], r.output->block_range(d, rank)));
  }
  r.edits.emplace_back(call.arg("output_size"), int_list(local_size));
  if (backward) r.edits.emplace_back(call.arg("input_size"), int_list(r.kernel_input));
  return r;
}

bool covered_upsample(const OpCall& call) {
  if (call.has("scale_factors")) return false;
  const Interpolation mode = mode_of(call.name());
  return mode == Interpolation::kNearest || mode == Interpolation::kNearestExact ||
         at::isFloatingType(call.tensor(given_to(call)).dtype);
}

template <bool kBackward>
std::optional<Plan> plan_upsample(const OpCall& call) {
  if (!covered_upsample(call)) return std::nullopt;
  Resampling r = resampling_of(call, kBackward);
  return Plan{.inputs = {kBackward ? r.output : r.input},
              .outputs = {kBackward ? r.input : r.output},
              .argument_overrides = r.edits,
              .run = [r](LocalCall& call) { return kBackward ? r.backward(call) : r.forward(call); }};
}

const Register upsample_rules{
    {.op = {"aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
            "aten::_upsample_nearest_exact1d", "aten::_upsample_nearest_exact2d", "aten::_upsample_nearest_exact3d",
            "aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d",
            "aten::upsample_bicubic2d", "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"},
     .plan = plan_upsample<false>,
     .supports = "any sizes; cuts of batch, channels and space",
     .traffic = Traffic::kHalo},
    {.op = {"aten::upsample_nearest1d_backward", "aten::upsample_nearest2d_backward",
            "aten::upsample_nearest3d_backward", "aten::_upsample_nearest_exact1d_backward",
            "aten::_upsample_nearest_exact2d_backward", "aten::_upsample_nearest_exact3d_backward",
            "aten::upsample_linear1d_backward", "aten::upsample_bilinear2d_backward",
            "aten::upsample_trilinear3d_backward", "aten::upsample_bicubic2d_backward",
            "aten::_upsample_bilinear2d_aa_backward", "aten::_upsample_bicubic2d_aa_backward"},
     .plan = plan_upsample<true>,
     .supports = "any sizes; cuts of batch, channels and space",
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
