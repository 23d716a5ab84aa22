// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/norm/group_norm_local.h"

#include <ATen/ATen.h>

#include <cmath>
#include <type_traits>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/ops/support/kernels/rows.h"

namespace moonhalo {
namespace {

// The groups that the owned channels belong to.
struct Owned {
  explicit Owned(const GroupShape& shape)
      : begin(shape.spec->offsets()[1]), size(shape.spec->global_shape()[1] / shape.groups) {}
  int64_t group(int64_t channel) const { return (begin + channel) / size; }

  int64_t begin, size;  // first owned channel, channels of a group
};

// On float32 and float64 of CPUs: every number is read once for the statistics and once for the result
template <typename T>
class RowsOfChannels {
 public:
  RowsOfChannels(const GroupShape& shape, const at::Tensor& x)
      : shape_(shape), owned_(shape), samples_(x.size(0)), channels_(x.size(1)), points_(x.size(2)) {}

  // `work(row, n, c)`: row is where sample n's channel c begins.
  template <typename Work>
  void each(const Work& work) const {
    const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / std::max<int64_t>(points_, 1));
    parallel_for(0, samples_ * channels_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) work(r * points_, r / channels_, r % channels_);
    });
  }

  Normalized forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) const {
    const auto& kernels = rows::kernels<T>();
    note_work("group_norm", 0, 3 * static_cast<int64_t>(x.nbytes()));
    const bool computed = !any_fake({x, weight, bias});
    const T* from = x.const_data_ptr<T>();
    std::vector<double> mean(samples_ * channels_), m2(samples_ * channels_);
    if (computed)
      each([&](int64_t row, int64_t n, int64_t c) {
        kernels.moments(from + row, points_, mean[n * channels_ + c], m2[n * channels_ + c]);
      });
    const at::Tensor moments = group_moments(mean, m2);  // [2, n, groups]: mean and variance
    if (!computed) {
      const std::vector<int64_t> shape{samples_, shape_.groups};
      return {unknown(at::empty_like(x)), unknown(x.new_empty(shape)), unknown(x.new_empty(shape))};
    }
    Normalized result{at::empty_like(x), moments[0].to(x.scalar_type()),
                      moments[1].add_(eps).rsqrt_().to(x.scalar_type())};
    const T *means = result.mean.const_data_ptr<T>(), *rstds = result.rstd.const_data_ptr<T>();
    const T* weights = weight.defined() ? weight.const_data_ptr<T>() : nullptr;
    const T* biases = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
    T* to = result.y.mutable_data_ptr<T>();
    each([&](int64_t row, int64_t n, int64_t c) {
      const int64_t group = n * shape_.groups + owned_.group(c);
      kernels.normalize(to + row, from + row, means[group], weights ? rstds[group] * weights[c] : rstds[group],
                        biases ? biases[c] : T{0}, points_);
    });
    return result;
  }

  GroupGradients backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                          const at::Tensor& weight, const std::vector<bool>& required) const {
    const auto& kernels = rows::kernels<T>();
    const T *g = grad.const_data_ptr<T>(), *from = x.const_data_ptr<T>();
    const T *means = mean.const_data_ptr<T>(), *rstds = rstd.const_data_ptr<T>();
    const T* weights = weight.defined() ? weight.const_data_ptr<T>() : nullptr;
    std::vector<double> sums(samples_ * channels_), products(samples_ * channels_);  // of grad, and of grad x^
    const bool computed = !any_fake({grad, x, mean, rstd, weight});
    note_work("group_norm_backward", 0, (required[0] ? 5 : 2) * static_cast<int64_t>(x.nbytes()));
    if (computed)
      each([&](int64_t row, int64_t n, int64_t c) {
        const int64_t at = n * channels_ + c, group = n * shape_.groups + owned_.group(c);
        kernels.products(g + row, from + row, means[group], points_, sums[at], products[at]);
        products[at] *= rstds[group];
      });
    GroupGradients result;
    if (required[1]) result.weight = computed ? over_samples(products, x.options()) : unknown(x.new_empty({channels_}));
    if (required[2]) result.bias = computed ? over_samples(sums, x.options()) : unknown(x.new_empty({channels_}));
    if (!required[0]) return result;
    at::Tensor of_groups = at::zeros({2, samples_, shape_.groups}, at::kDouble);
    add_to_groups(of_groups.mutable_data_ptr<double>(),
                  [&](int64_t at, int64_t c) { return weights ? sums[at] * weights[c] : sums[at]; });
    add_to_groups(of_groups.mutable_data_ptr<double>() + samples_ * shape_.groups,
                  [&](int64_t at, int64_t c) { return weights ? products[at] * weights[c] : products[at]; });
    of_groups = shape_.ranks.all_reduce(of_groups).div_(shape_.count);
    const double *first = of_groups.const_data_ptr<double>(), *second = first + samples_ * shape_.groups;
    result.input = at::empty_like(x);
    if (!computed) {
      forget_values(result.input);
      return result;
    }
    T* to = result.input.mutable_data_ptr<T>();
    each([&](int64_t row, int64_t n, int64_t c) {
      const int64_t group = n * shape_.groups + owned_.group(c);
      const T r = rstds[group];
      kernels.normalize_back(to + row, g + row, from + row, means[group], weights ? r * weights[c] : r,
                             static_cast<T>(-second[group] * r * r), static_cast<T>(-first[group] * r), points_);
    });
    return result;
  }

 private:
  static at::Tensor unknown(at::Tensor result) {
    forget_values(result);
    return result;
  }

  template <typename Value>
  void add_to_groups(double* groups, const Value& value) const {
    for (int64_t at = 0; at < samples_ * channels_; ++at) {
      const int64_t c = at % channels_;
      groups[at / channels_ * shape_.groups + owned_.group(c)] += value(at, c);
    }
  }

  at::Tensor over_samples(const std::vector<double>& values, const at::TensorOptions& options) const {
    at::Tensor result = at::zeros({channels_}, at::kDouble);
    double* to = result.mutable_data_ptr<double>();
    for (int64_t at = 0; at < samples_ * channels_; ++at) to[at % channels_] += values[at];
    return result.to(options);
  }

  // Sums of float32 values and of their squares are taken in float64, so that one all-reduce does; squares of float64
  // values would cancel, so that deviations from the mean of all are summed in a second one.
  at::Tensor group_moments(const std::vector<double>& mean, const std::vector<double>& m2) const {
    const auto points = static_cast<double>(points_);
    at::Tensor moments = at::zeros({2, samples_, shape_.groups}, at::kDouble);
    double *first = moments.mutable_data_ptr<double>(), *second = first + samples_ * shape_.groups;
    const int64_t groups = samples_ * shape_.groups;
    add_to_groups(first, [&](int64_t at, int64_t) { return mean[at] * points; });
    if (std::is_same_v<T, float> && !shape_.ranks.alone()) {
      add_to_groups(second, [&](int64_t at, int64_t) { return m2[at] + mean[at] * mean[at] * points; });
      moments = shape_.ranks.all_reduce(moments).div_(shape_.count);
      first = moments.mutable_data_ptr<double>();
      second = first + groups;
      for (int64_t i = 0; i < groups; ++i) {
        second[i] -= first[i] * first[i];
        if (second[i] < 0) second[i] = 0;  // rounded; NaN stays
      }
      return moments;
    }
    const at::Tensor sums = shape_.ranks.all_reduce(moments[0]).div_(shape_.count);
    const double* means = sums.const_data_ptr<double>();
    add_to_groups(second, [&](int64_t at, int64_t c) {
      const double apart = mean[at] - means[at / channels_ * shape_.groups + owned_.group(c)];
      return m2[at] + apart * apart * points;
    });
    return at::stack({sums, shape_.ranks.all_reduce(moments[1]).div_(shape_.count)});
  }

  const GroupShape& shape_;
  const Owned owned_;
  const int64_t samples_, channels_, points_;
};

// Anywhere else. No table of channels: on a device that would be made by further launches.

// The groups of the owned channels, and the channels of those groups that other ranks own.
struct WholeGroups {
  explicit WholeGroups(const GroupShape& shape)
      : size(Owned(shape).size),
        first(Owned(shape).group(0)),
        count((Owned(shape).begin + shape.spec->local_shape()[1] + size - 1) / size - first),
        before(Owned(shape).begin - first * size),
        after(count * size - before - shape.spec->local_shape()[1]) {}
  int64_t size, first, count, before, after;
};

at::Tensor padded(const at::Tensor& values, int64_t before, int64_t after) {
  return before == 0 && after == 0 ? values : at::constant_pad_nd(values, {before, after});
}

// Sums of the owned channels [..., c] per group [..., groups]. No product with zeros: a group's NaN is its own.
at::Tensor per_group(const GroupShape& shape, const at::Tensor& values) {
  const WholeGroups groups(shape);
  const at::Tensor sums =
      padded(values, groups.before, groups.after).unflatten(-1, {groups.count, groups.size}).sum(-1);
  return padded(sums, groups.first, shape.groups - groups.first - groups.count);
}

// [n, groups] spread over the owned channels: [n, c, 1].
at::Tensor spread(const GroupShape& shape, const at::Tensor& values) {
  const WholeGroups groups(shape);
  return values.narrow(1, groups.first, groups.count)
      .unsqueeze(2)
      .expand({-1, -1, groups.size})
      .reshape({values.size(0), groups.count * groups.size, 1})
      .narrow(1, groups.before, shape.spec->local_shape()[1]);
}

at::Tensor times_weight(const at::Tensor& values, const at::Tensor& weight) {
  return weight.defined() ? values * per_channel(weight, 3) : values;
}

Normalized forward_anywhere(const GroupShape& shape, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps) {
  const at::Tensor mean = shape.ranks.all_reduce(per_group(shape, at::sum(x, 2))).div_(shape.count);
  at::Tensor y = at::sub(x, spread(shape, mean));
  const at::Tensor m2 = shape.ranks.all_reduce(per_group(shape, at::sum(y.square(), 2)));
  const at::Tensor rstd = m2.div_(shape.count).add_(eps).rsqrt_();
  const at::Tensor factor = times_weight(spread(shape, rstd), weight);
  if (bias.defined()) {
    at::addcmul_out(y, per_channel(bias, 3), y, factor);
  } else {
    y.mul_(factor);
  }
  return {y, mean, rstd};
}

GroupGradients backward_anywhere(const GroupShape& shape, const at::Tensor& grad, const at::Tensor& input,
                                 const at::Tensor& mean, const at::Tensor& rstd, const at::Tensor& weight,
                                 const std::vector<bool>& required) {
  const at::Tensor factor = spread(shape, rstd);
  at::Tensor x = at::sub(input, spread(shape, mean));
  const at::Tensor sums = at::stack({at::sum(grad, 2), at::sum(grad * x, 2).mul_(factor.squeeze(2))});  // [2, n, c]
  GroupGradients result;
  if (required[1]) result.weight = sums[1].sum(0);
  if (required[2]) result.bias = sums[0].sum(0);
  if (!required[0]) return result;
  const at::Tensor scaled = weight.defined() ? sums * weight : sums;
  const at::Tensor means = shape.ranks.all_reduce(per_group(shape, scaled)).div_(shape.count);
  // Two passes over the block: what is the same for a channel is multiplied out before.
  const at::Tensor shift = (spread(shape, means[0]) * factor).neg_(),
                   slope = (spread(shape, means[1]) * factor.square()).neg_();
  result.input = at::addcmul_out(x, shift, x, slope).addcmul_(grad, times_weight(factor, weight));
  return result;
}

}  // namespace

at::Tensor GroupShape::flat(const at::Tensor& block) const {
  int64_t hw = 1;
  for (int64_t d = 2; d < block.dim(); ++d) hw *= block.size(d);
  return widen(block).reshape({block.size(0), block.size(1), hw}).contiguous();
}

Normalized normalize_groups(const GroupShape& shape, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps) {
  if (!x.device().is_cpu()) return forward_anywhere(shape, x, weight, bias, eps);
  if (x.scalar_type() == at::kFloat) return RowsOfChannels<float>(shape, x).forward(x, weight, bias, eps);
  TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kDouble);
  return RowsOfChannels<double>(shape, x).forward(x, weight, bias, eps);
}

GroupGradients normalize_groups_back(const GroupShape& shape, const at::Tensor& grad, const at::Tensor& x,
                                     const at::Tensor& mean, const at::Tensor& rstd, const at::Tensor& weight,
                                     const std::vector<bool>& required) {
  if (!x.device().is_cpu()) return backward_anywhere(shape, grad, x, mean, rstd, weight, required);
  if (x.scalar_type() == at::kFloat)
    return RowsOfChannels<float>(shape, x).backward(grad, x, mean, rstd, weight, required);
  TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kDouble);
  return RowsOfChannels<double>(shape, x).backward(grad, x, mean, rstd, weight, required);
}

}  // namespace moonhalo
