// SPDX-License-Identifier: Apache-2.0
// Sampling of a part of a field, in positions of the whole field: LibTorch's kernels measure positions by the
// extents of the tensor at hand, and what is rounded again may fall to the other side of a pixel.
#include "moonhalo/ops/window/grid_sample_local.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {
namespace {

using Mode = Sampler::Mode;
using Padding = Sampler::Padding;

int64_t number_of(const char* what, const std::string& word, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  TORCH_CHECK_VALUE(found != words.end(), "grid_sample: unknown ", what, " '", word, "'", did_you_mean(word, words),
                    "\n  have  ", c10::Join(", ", words), "\n  fix   name one of them");
  return found - words.begin();
}

// A position, and its derivative by the grid's coordinate.
template <typename T>
struct Place {
  T at, slope;
};

template <typename T>
Place<T> clipped(Place<T> p, int64_t extent) {
  const T last = static_cast<T>(extent - 1);
  if (p.at <= 0) return {0, 0};
  if (p.at >= last) return {last, 0};
  return p;
}

// Mirrored at the centres of the end pixels (align_corners) or at their outer edges.
template <typename T>
Place<T> reflected(Place<T> p, int64_t extent, bool align_corners) {
  const T low = align_corners ? T(0) : T(-0.5), span = static_cast<T>(align_corners ? extent - 1 : extent);
  if (span == 0) return {0, 0};
  T away = p.at - low, slope = p.slope;
  if (away < 0) {
    away = -away;
    slope = -slope;
  }
  // Exact however far away, where a count of the spans would not fit an integer.
  const T phase = std::fmod(away, 2 * span);
  return phase < span ? Place<T>{phase + low, slope} : Place<T>{2 * span - phase + low, -slope};
}

template <typename T>
Place<T> padded(Place<T> p, int64_t extent, Padding padding, bool align_corners) {
  if (padding == Padding::kZeros) return p;
  if (padding == Padding::kReflection) p = reflected(p, extent, align_corners);
  return clipped(p, extent);
}

// Convolution coefficients of the four pixels around, t behind the second; and their derivatives.
// Source: R. Keys, Cubic convolution interpolation for digital image processing, 1981, with a = -0.75 as in PyTorch.
template <typename T>
void cubic(T t, T (&weight)[4], T (&slope)[4]) {
  const T a = T(-0.75);
  const auto inner = [&](T x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto outer = [&](T x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  const auto inner_slope = [&](T x) { return (3 * (a + 2) * x - 2 * (a + 3)) * x; };
  const auto outer_slope = [&](T x) { return (3 * a * x - 10 * a) * x + 8 * a; };
  weight[0] = outer(t + 1);
  weight[1] = inner(t);
  weight[2] = inner(1 - t);
  weight[3] = outer(2 - t);
  slope[0] = outer_slope(t + 1);
  slope[1] = inner_slope(t);
  slope[2] = -inner_slope(1 - t);
  slope[3] = -outer_slope(2 - t);
}

// The pixels that one coordinate reads along one dim: element offsets, weights, derivatives.
template <typename T>
struct Taps {
  int count = 0;
  int64_t offset[4];
  T weight[4], slope[4];
};

// One part of a field: its space, and where it is in the whole.
template <typename T>
struct Part {
  const Sampler& sampler;
  const std::vector<int64_t>& begin;
  std::vector<int64_t> length, stride;  // of the part, per dim of space
  int64_t plane = 1;
  size_t dims;

  Part(const Sampler& s, at::IntArrayRef input, const std::vector<int64_t>& begins)
      : sampler(s), begin(begins), length(input.slice(2).vec()), stride(length.size()), dims(length.size()) {
    for (size_t d = dims; d-- > 0;) {
      stride[d] = plane;
      plane *= length[d];
    }
  }

  Taps<T> taps(size_t d, T coordinate) const {
    const int64_t extent = sampler.in[d];
    const T half = static_cast<T>(sampler.align_corners ? extent - 1 : extent) / 2;
    Place<T> p{(coordinate + 1) * half - (sampler.align_corners ? T(0) : T(0.5)), half};
    Taps<T> taps;
    const auto add = [&](T pixel, T weight, T slope) {
      // Compared as a number: what is far outside may not fit an integer.
      if (!(pixel >= 0 && pixel < static_cast<T>(extent))) return;
      const int64_t row = static_cast<int64_t>(pixel) - begin[d];
      TORCH_INTERNAL_ASSERT(row >= 0 && row < length[d], "grid_sample: row ", static_cast<int64_t>(pixel),
                            " was not fetched");
      taps.offset[taps.count] = row * stride[d];
      taps.weight[taps.count] = weight;
      taps.slope[taps.count++] = slope;
    };
    if (sampler.mode == Mode::kCubic) {
      const T first = std::floor(p.at);
      T weight[4], slope[4];
      cubic(p.at - first, weight, slope);
      for (int k = 0; k < 4; ++k)
        add(std::floor(padded<T>({first - 1 + k, 0}, extent, sampler.padding, sampler.align_corners).at), weight[k],
            slope[k] * p.slope);
      return taps;
    }
    p = padded(p, extent, sampler.padding, sampler.align_corners);
    if (sampler.mode == Mode::kNearest) {
      add(std::nearbyint(p.at), 1, 0);
      return taps;
    }
    const T first = std::floor(p.at);
    add(first, first + 1 - p.at, -p.slope);
    add(first + 1, p.at - first, p.slope);
    return taps;
  }

  // each(offset, weight, slopes): every pixel that a point reads; slopes by dim of space.
  template <typename Each>
  void for_each_pixel(const T* point, const Each& each) const {
    Taps<T> along[3];
    for (size_t d = 0; d < dims; ++d) along[d] = taps(d, point[dims - 1 - d]);
    if (dims == 2) along[2] = {1, {0}, {1}, {0}};
    for (int i = 0; i < along[0].count; ++i) {
      for (int j = 0; j < along[1].count; ++j) {
        for (int k = 0; k < along[2].count; ++k) {
          const T a = along[0].weight[i], b = along[1].weight[j], c = along[2].weight[k];
          const T slopes[3] = {along[0].slope[i] * b * c, a * along[1].slope[j] * c, a * b * along[2].slope[k]};
          each(along[0].offset[i] + along[1].offset[j] + along[2].offset[k], a * b * c, slopes);
        }
      }
    }
  }
};

}  // namespace

Sampler::Sampler(const GridSample& options, at::IntArrayRef input, at::IntArrayRef grid, at::ScalarType input_dtype,
                 at::ScalarType grid_dtype)
    : mode(static_cast<Mode>(number_of("mode", options.mode, {"bilinear", "nearest", "bicubic"}))),
      padding(static_cast<Padding>(number_of("padding_mode", options.padding_mode, {"zeros", "border", "reflection"}))),
      align_corners(options.align_corners) {
  const size_t ndim = input.size();
  TORCH_CHECK_VALUE((ndim == 4 || ndim == 5) && grid.size() == ndim && grid[0] == input[0] &&
                        grid.back() == static_cast<int64_t>(ndim) - 2,
                    "grid_sample: a grid of shape ", shape_string(grid), " for an input of shape ", shape_string(input),
                    "\n  have  [batch, channels, space...] and [batch, space..., dims of space] are required",
                    "\n  fix   give the same batch, and points with a coordinate for each of 2 or 3 dims of space");
  // Without a bound the kernels are LibTorch's, for what they take.
  const bool ours = !options.max_displacement || input_dtype == at::kFloat || input_dtype == at::kDouble;
  TORCH_CHECK_TYPE(
      input_dtype == grid_dtype && ours, "grid_sample: an input of ", input_dtype, " and a grid of ", grid_dtype,
      "\n  have  ",
      options.max_displacement ? "Float or Double, both the same, is required" : "both the same are required",
      "\n  fix   convert them");
  TORCH_CHECK_VALUE(mode != Mode::kCubic || ndim == 4,
                    "grid_sample: bicubic for 3 dims of space\n  have  an input of shape ", shape_string(input),
                    "\n  fix   use bilinear or nearest");
  in = input.slice(2).vec();
  out = grid.slice(1, ndim - 2).vec();
  for (const int64_t extent : in) {
    TORCH_CHECK_VALUE(extent > 0, "grid_sample: an input without pixels\n  have  an input of shape ",
                      shape_string(input), "\n  fix   give a field that is not empty");
  }
  bound = options.max_displacement.value_or(std::vector<double>(1, std::numeric_limits<double>::infinity()));
  if (bound.size() == 1) bound.resize(in.size(), bound[0]);
  const bool distances = std::all_of(bound.begin(), bound.end(), [](double b) { return b >= 0; });
  TORCH_CHECK_VALUE(bound.size() == in.size() && distances,
                    "grid_sample: max_displacement = ", at::ArrayRef<double>(bound), " for ", in.size(),
                    " dims of space\n  have  distances in pixels are required\n  fix   give one for all dims, or one "
                    "for each, at least 0");
  rounding =
      8 * (input_dtype == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon());
}

double Sampler::identity(size_t d, int64_t o) const {
  const auto from = static_cast<double>(in[d]), to = static_cast<double>(out[d]);
  if (!align_corners) return (static_cast<double>(o) + 0.5) * from / to - 0.5;
  return out[d] > 1 ? static_cast<double>(o) * (from - 1) / (to - 1) : (from - 1) / 2;
}

Interval Sampler::rows_read(size_t d, const Interval& outputs) const {
  if (outputs.empty()) return {0, 0};
  const int64_t extent = in[d];
  const double reach = bound[d] + 2 * tolerance(d);
  if (reach > static_cast<double>(extent)) return {0, extent};
  // The first and last pixel read, before padding.
  const int64_t more = mode == Mode::kCubic ? 1 : 0;
  const int64_t first = static_cast<int64_t>(std::floor(identity(d, outputs.begin) - reach)) - more,
                last = static_cast<int64_t>(std::floor(identity(d, outputs.end - 1) + reach)) + 1 + more;
  const auto inside = [&](int64_t row) { return std::clamp<int64_t>(row, 0, extent - 1); };
  if (padding == Padding::kZeros && (last < 0 || first >= extent)) return {0, 0};
  Interval rows = {inside(first), inside(last) + 1};
  // A point that is moved onto the first pixel reads the second too, with no weight.
  if (padding != Padding::kZeros && last <= 0) rows.end = std::min<int64_t>(extent, 2);
  if (padding == Padding::kReflection) {
    if (first < 0) rows.end = std::max(rows.end, inside(-first) + 1);
    if (last >= extent) rows.begin = std::min(rows.begin, inside(2 * (extent - 1) - last));
  }
  return rows;
}

at::Tensor Sampler::displacement(const at::Tensor& grid, const std::vector<int64_t>& begin) const {
  const size_t dims = in.size();
  at::Tensor largest = at::zeros({static_cast<int64_t>(dims)}, at::kDouble);
  if (grid.numel() == 0) return largest;
  for (size_t d = 0; d < dims; ++d) {
    const auto extent = static_cast<double>(in[d]);
    std::vector<double> identities;
    for (int64_t o = 0; o < grid.size(static_cast<int64_t>(d) + 1); ++o)
      identities.push_back(identity(d, begin[d] + o));
    std::vector<int64_t> along(dims + 1, 1);
    along[d + 1] = -1;
    const at::Tensor position = (grid.select(-1, static_cast<int64_t>(dims - 1 - d)).to(at::kDouble) + 1) *
                                    ((align_corners ? extent - 1 : extent) / 2) -
                                (align_corners ? 0.0 : 0.5);
    const at::Tensor away = (position - at::tensor(identities, at::kDouble).view(along)).abs();
    largest[static_cast<int64_t>(d)] = away.nan_to_num(INFINITY, INFINITY).max();
  }
  return largest;
}

bool Sampler::is_within_bound(const at::Tensor& displacement) const {
  for (size_t d = 0; d < in.size(); ++d) {
    if (!is_within_bound(displacement, d)) return false;
  }
  return true;
}

bool Sampler::is_within_bound(const at::Tensor& displacement, size_t d) const {
  const double away = displacement[static_cast<int64_t>(d)].item<double>();
  return std::isfinite(away) && away <= bound[d] + tolerance(d);
}

void Sampler::check_displacement(const at::Tensor& displacement) const {
  for (size_t d = 0; d < in.size(); ++d) {
    const double away = displacement[static_cast<int64_t>(d)].item<double>();
    TORCH_CHECK_VALUE(is_within_bound(displacement, d), "grid_sample: a point is ", away,
                      " pixels from its identity position along dim ", d + 2, ", beyond max_displacement = ", bound[d],
                      "\n  have  an input of ", in[d], " pixels there and ", out[d], " outputs",
                      "\n  fix   give finite points, and a larger max_displacement or none to gather the input");
  }
}

at::Tensor sample_part(const Sampler& sampler, const at::Tensor& given, const std::vector<int64_t>& begin,
                       const at::Tensor& given_grid) {
  const at::Tensor input = given.contiguous(), grid = given_grid.contiguous();
  std::vector<int64_t> shape = input.sizes().slice(0, 2).vec();
  const at::IntArrayRef space = grid.sizes().slice(1, grid.dim() - 2);
  shape.insert(shape.end(), space.begin(), space.end());
  at::Tensor result = input.new_zeros(shape);
  const auto taps = int64_t{1} << grid.size(-1);
  note_work("grid_sample", result.numel() * taps, memory_bytes({input, grid, result}));
  if (any_fake({input, grid})) return result;
  const int64_t channels = shape[1], points = c10::multiply_integers(space), dims = grid.size(-1);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "grid_sample", [&] {
    const Part<scalar_t> part(sampler, input.sizes(), begin);
    const scalar_t *values = input.const_data_ptr<scalar_t>(), *at = grid.const_data_ptr<scalar_t>();
    scalar_t* to = result.mutable_data_ptr<scalar_t>();
    parallel_for(0, shape[0] * points, 256, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t image = i / points * channels;
        part.for_each_pixel(at + i * dims, [&](int64_t offset, scalar_t weight, const scalar_t*) {
          for (int64_t c = 0; c < channels; ++c)
            to[(image + c) * points + i % points] += weight * values[(image + c) * part.plane + offset];
        });
      }
    });
  });
  return result;
}

std::tuple<at::Tensor, at::Tensor> sample_part_backward(const Sampler& sampler, const at::Tensor& given_grad,
                                                        const at::Tensor& given, at::IntArrayRef part_shape,
                                                        const std::vector<int64_t>& begin, const at::Tensor& given_grid,
                                                        RequiredSamples required) {
  const at::Tensor grid = given_grid.contiguous(), grad = given_grad.contiguous(),
                   input = required[1] ? given.contiguous() : at::Tensor();
  at::Tensor for_input = required[0] ? grad.new_zeros(part_shape) : at::Tensor(),
             for_grid = required[1] ? grid.new_zeros(grid.sizes()) : at::Tensor();
  const auto taps = int64_t{1} << grid.size(-1);
  note_work("grid_sample_backward", 2 * grad.numel() * taps, memory_bytes({grad, input, grid, for_input, for_grid}));
  if (any_fake({grad, input, grid})) return {for_input, for_grid};
  const int64_t channels = grad.size(1), dims = grid.size(-1), batch = grid.size(0);
  const int64_t points = c10::multiply_integers(grid.sizes().slice(1, dims));
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "grid_sample", [&] {
    const Part<scalar_t> part(sampler, part_shape, begin);
    const scalar_t *values = required[1] ? input.const_data_ptr<scalar_t>() : nullptr,
                   *at = grid.const_data_ptr<scalar_t>(), *from = grad.const_data_ptr<scalar_t>();
    scalar_t *to = required[0] ? for_input.mutable_data_ptr<scalar_t>() : nullptr,
             *slope_to = required[1] ? for_grid.mutable_data_ptr<scalar_t>() : nullptr;
    // Points of one image may share pixels, so images are what threads divide.
    parallel_for(0, batch, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first * points; i < last * points; ++i) {
        const int64_t image = i / points * channels;
        part.for_each_pixel(at + i * dims, [&](int64_t offset, scalar_t weight, const scalar_t* slopes) {
          scalar_t product = 0;
          for (int64_t c = 0; c < channels; ++c) {
            const scalar_t g = from[(image + c) * points + i % points];
            const int64_t pixel = (image + c) * part.plane + offset;
            if (to != nullptr) to[pixel] += weight * g;
            if (values != nullptr) product += values[pixel] * g;
          }
          for (int64_t d = 0; slope_to != nullptr && d < dims; ++d)
            slope_to[i * dims + dims - 1 - d] += slopes[d] * product;
        });
      }
    });
  });
  return {for_input, for_grid};
}

}  // namespace moonhalo
