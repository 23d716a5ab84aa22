// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/convolution_memory.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

namespace moonhalo {
namespace {

int64_t product(std::span<const int64_t> sizes) { return c10::multiply_integers(sizes.begin(), sizes.end()); }
int64_t rounded_up(int64_t number, int64_t step) { return (number + step - 1) / step * step; }
bool all_are(const std::vector<int64_t>& list, int64_t number) {
  return std::all_of(list.begin(), list.end(), [number](int64_t one) { return one == number; });
}
std::span<const int64_t> field_of(const std::vector<int64_t>& sizes) { return std::span(sizes).subspan(2); }

bool is_empty(const ConvolutionShape& shape) { return product(shape.x) == 0 || product(shape.y) == 0; }

int64_t bytes_of(const ConvolutionShape& shape, const std::vector<int64_t>& sizes) {
  return product(sizes) * static_cast<int64_t>(c10::elementSize(shape.dtype));
}

// True if LibTorch calls oneDNN for a convolution in float32: not for some that are small, or of one point with one
// thread (`use_mkldnn` of aten/src/ATen/native/Convolution.cpp).
bool takes_onednn(const ConvolutionShape& shape) {
  constexpr int64_t kSmall = 20480;
  if (shape.dtype == at::kDouble) return false;
  for (size_t i = 0; shape.transposed && i < shape.stride.size(); ++i)
    if (shape.output_padding[i] >= shape.stride[i]) return false;
  if (shape.dtype != at::kFloat) return true;
  const std::vector<int64_t>&x = shape.x, &w = shape.weight;
  const int64_t last = w.back(), before = w.size() > 3 ? w[w.size() - 2] : 1;
  const bool has_points = last != 1 || before != 1;
  const bool is_worth_it =
      !all_are(shape.stride, 1) || !all_are(shape.dilation, 1) || x[0] >= 16 || has_points || at::get_num_threads() > 1;
  const int64_t rows = x.size() > 3 ? x[2] * x[3] : x[2];
  const bool is_large = shape.groups > 1 || (last > 3 && before > 3) || x[0] > 1 || x[1] * rows > kSmall;
  return is_worth_it && is_large;
}

// LibTorch's own kernels lay out all windows of the input in columns: of the whole batch, or of one sample for the
// transposed convolution's derivatives and volumes. Kernels of one point need none, but the derivative of a volume
// holds them all the same. Groups are computed one after the other on copies of their channels, and their results put
// together.
class ColumnMemory {
 public:
  explicit ColumnMemory(const ConvolutionShape& shape)
      : x_(bytes_of(shape, shape.x)),
        y_(bytes_of(shape, shape.y)),
        groups_(shape.groups),
        is_volume_(shape.x.size() == 5),
        is_transposed_(shape.transposed) {
    const int64_t points = product(field_of(shape.weight));
    if (!all_are(shape.dilation, 1)) return;
    if (points == 1 && all_are(shape.stride, 1) && all_are(shape.padding, 0)) return;
    const int64_t channels = is_transposed_ ? shape.weight[1] : shape.x[1] / groups_;
    const int64_t windows = product(field_of(is_transposed_ ? shape.x : shape.y));
    const int64_t sample = channels * points * windows * static_cast<int64_t>(c10::elementSize(shape.dtype));
    forward_ = is_transposed_ && is_volume_ ? sample : sample * shape.x[0];
    backward_ = is_transposed_ ? sample : sample * shape.x[0];
  }

  int64_t of_forward() const { return groups_ == 1 ? forward_ : std::max(x_ / groups_ + forward_, y_); }
  int64_t of_backward(bool for_input, bool for_weight) const {
    const int64_t columns = of_group(for_input, for_weight);
    if (groups_ == 1) return columns;
    return std::max((x_ + y_) / groups_ + columns, for_input ? x_ : 0);
  }

 private:
  int64_t of_group(bool for_input, bool for_weight) const {
    if (is_transposed_) return backward_;
    if (is_volume_) return for_input ? std::max(backward_, x_ / groups_) : backward_;
    return for_weight ? backward_ : 0;
  }

  int64_t x_, y_, groups_, forward_ = 0, backward_ = 0;
  bool is_volume_, is_transposed_;
};

// Copies that oneDNN makes of the tensors of a convolution. Its kernels compute on blocks of channels, as many as a
// vector register holds numbers of float32, of which the last is filled up with zeros; or on channels that are the last
// dim; or on the tensors as they are, with columns of each thread. Which one is taken was found by counting the memory
// of calls of LibTorch 2.11 (oneDNN 3.10) on processors with AVX-512 and with AVX2.
//
// A transposed convolution is the derivative of one that reads the result, so `x_` is what the weights read.
class OneDnnMemory {
 public:
  explicit OneDnnMemory(const ConvolutionShape& shape)
      : shape_(shape),
        x_(shape.transposed ? shape.y : shape.x),
        y_(shape.transposed ? shape.x : shape.y),
        item_(static_cast<int64_t>(c10::elementSize(shape.dtype))),
        threads_(at::get_num_threads()),
        inputs_(x_[1] / shape.groups),
        outputs_(y_[1] / shape.groups),
        points_(product(field_of(shape.weight))),
        is_volume_(x_.size() == 5),
        is_strided_(!all_are(shape.stride, 1)),
        is_dilated_(points_ > 1 && !all_are(shape.dilation, 1)),
        by_channel_(shape.groups > 1 && inputs_ == 1 && outputs_ == 1) {
    bool divides = true;
    for (size_t i = 2; i < x_.size(); ++i) divides = divides && x_[i] == y_[i] * shape.stride[i - 2];
    one_point_in_blocks_ = points_ == 1 && (!is_strided_ || (!is_volume_ && divides));
    in_place_ = shape.groups == 1 && inputs_ < width() && !one_point_in_blocks_;
    slice_ = is_volume_ ? y_[3] * y_[4] : product(field_of(y_));
    columns_ = points_ == 1 && !is_strided_ ? 0 : inputs_ * points_ * slice_ * item_;
  }

  // Bytes at the peak of a call, with its result.
  int64_t of_result() const { return shape_.transposed ? of_inputs_gradient() : of_convolution(); }
  int64_t of_gradient() const { return shape_.transposed ? of_convolution() : of_inputs_gradient(); }
  int64_t of_weights_gradient() const;

 private:
  enum class Layout { kPlain, kBlocked, kChannelsLast };

  static int64_t width() {
    static const int64_t width = channels_of_block();
    return width;
  }
  static bool has_wide_registers() { return width() == 16; }
  bool divide_channels(int64_t number) const { return inputs_ % number == 0 && outputs_ % number == 0; }
  // Channels of groups are in blocks of as many as there are: of 4 at least with AVX-512.
  bool groups_are_in_blocks() const { return divide_channels(has_wide_registers() ? 4 : 8); }
  bool has_several() const { return x_[0] > 1 || shape_.groups > 2; }

  int64_t bytes(const std::vector<int64_t>& sizes) const { return product(sizes) * item_; }
  int64_t blocked(const std::vector<int64_t>& sizes, int64_t block) const {
    if (shape_.groups > 1 && !by_channel_) return bytes(sizes);
    return bytes(sizes) / sizes[1] * rounded_up(sizes[1], block);
  }
  // The weight whose channels are filled up.
  int64_t blocked_weight(int64_t inputs_block, int64_t outputs_block) const {
    if (by_channel_) return rounded_up(shape_.groups, outputs_block) * points_ * item_;
    if (shape_.groups > 1) return bytes(shape_.weight);
    return rounded_up(inputs_, inputs_block) * rounded_up(outputs_, outputs_block) * points_ * item_;
  }
  // Kernels of one point with a stride gather the points that they need, each thread those of a sample.
  int64_t gathered() const {
    if (!one_point_in_blocks_ || !is_strided_ || by_channel_) return 0;
    return threads_ * (blocked(x_, width()) / (x_[0] * product(field_of(x_))) * slice_);
  }

  Layout convolution_layout() const;
  Layout inputs_gradient_layout() const;
  Layout weights_gradient_layout() const;
  int64_t of_convolution() const;
  int64_t of_inputs_gradient() const;
  int64_t of_strided_threads() const;

  const ConvolutionShape& shape_;
  const std::vector<int64_t>&x_, &y_;
  int64_t item_, threads_;
  int64_t inputs_, outputs_;  // channels of a group
  int64_t points_;            // of the kernel
  bool is_volume_, is_strided_, is_dilated_, by_channel_;
  bool one_point_in_blocks_ = false;
  bool in_place_ = false;  // kernels of several points read a few channels where they are
  int64_t slice_ = 0;      // points of the result, or of a slice of a volume
  int64_t columns_ = 0;    // bytes of a thread's columns
};

OneDnnMemory::Layout OneDnnMemory::convolution_layout() const {
  if (by_channel_ && is_volume_) return is_dilated_ ? Layout::kPlain : Layout::kChannelsLast;
  if (by_channel_) return Layout::kBlocked;
  if (is_dilated_ && is_strided_ && !has_wide_registers()) return Layout::kPlain;
  return shape_.groups == 1 || groups_are_in_blocks() ? Layout::kBlocked : Layout::kPlain;
}

OneDnnMemory::Layout OneDnnMemory::inputs_gradient_layout() const {
  if (by_channel_) return is_volume_ || is_dilated_ ? Layout::kPlain : Layout::kBlocked;
  if (is_strided_) {
    if (is_dilated_) return Layout::kPlain;
    if (shape_.groups == 1 || outputs_ > width()) return Layout::kChannelsLast;
    if (!groups_are_in_blocks()) return outputs_ > 8 ? Layout::kChannelsLast : Layout::kPlain;
  }
  return shape_.groups == 1 || groups_are_in_blocks() ? Layout::kBlocked : Layout::kPlain;
}

OneDnnMemory::Layout OneDnnMemory::weights_gradient_layout() const {
  if (by_channel_) return is_volume_ || is_dilated_ || shape_.weight.back() > 3 ? Layout::kPlain : Layout::kBlocked;
  if (is_dilated_ && (is_volume_ || is_strided_ || !has_wide_registers())) return Layout::kPlain;
  if (is_volume_ && points_ > 1) {
    const bool has_odd_channels = shape_.groups == 1 && inputs_ > 3 && inputs_ < width();
    if (has_odd_channels || !has_wide_registers()) return Layout::kPlain;
  }
  return shape_.groups == 1 || divide_channels(width()) ? Layout::kBlocked : Layout::kPlain;
}

int64_t OneDnnMemory::of_convolution() const {
  const int64_t x = bytes(x_), y = bytes(y_), blocked_y = blocked(y_, width());
  constexpr int64_t kCache = int64_t{1} << 20;  // the second one of a core, for which columns of planes are cut
  switch (convolution_layout()) {
    case Layout::kPlain: {
      const int64_t busy = slice_ / threads_ < 512 ? threads_ : 1;
      return std::max((is_volume_ ? busy * columns_ : threads_ * std::min(columns_, kCache)) + y, 2 * y);
    }
    case Layout::kChannelsLast:
      return std::max(x + bytes(shape_.weight) + y, 3 * y);
    case Layout::kBlocked:
      break;
  }
  const int64_t copies = (in_place_ ? 0 : blocked(x_, width())) + blocked_weight(in_place_ ? 1 : width(), width());
  return std::max(gathered() + copies + blocked_y, blocked_y + y);
}

// Each thread has a copy of a sample with its edges, and of a row that it writes where the stride does not divide rows.
int64_t OneDnnMemory::of_strided_threads() const {
  constexpr int64_t kPage = 4096, kLists = 14360;
  int64_t sample = y_[1];
  for (size_t i = 2; i < y_.size(); ++i) {
    const int64_t stride = shape_.stride[i - 2], padding = shape_.padding[i - 2];
    const int64_t before = std::max<int64_t>(shape_.weight[i] - 1 - padding, 0) / stride;
    sample *= before + (x_[i] - 1 + padding) / stride + 1;
  }
  const bool divides = x_.back() % shape_.stride.back() == 0;
  const int64_t row = divides ? 0 : x_.back() * shape_.stride.back() * x_[1];
  return threads_ * ((rounded_up(sample, kPage) + rounded_up(row, kPage)) * item_ + kLists);
}

int64_t OneDnnMemory::of_inputs_gradient() const {
  const int64_t x = bytes(x_), y = bytes(y_), blocked_x = blocked(x_, width());
  switch (inputs_gradient_layout()) {
    case Layout::kPlain: {
      const bool is_divided = has_several() && x_[0] * shape_.groups % threads_ == 0;
      const int64_t busy = is_divided && (slice_ / threads_ < 512 || points_ < 64) ? threads_ : 1;
      return std::max(x + busy * columns_, 2 * x);
    }
    case Layout::kChannelsLast: {
      const int64_t copy = y_[1] == 1 ? 0 : y;  // one channel is its own last dim
      return std::max(copy + blocked_weight(1, width()) + x + of_strided_threads(), (x_[1] == 1 ? 2 : 3) * x);
    }
    case Layout::kBlocked:
      break;
  }
  return std::max(blocked(y_, width()) + blocked_weight(width(), width()) + blocked_x, blocked_x + x);
}

int64_t OneDnnMemory::of_weights_gradient() const {
  const int64_t weight = bytes(shape_.weight);
  if (weights_gradient_layout() == Layout::kPlain) {
    const int64_t busy = slice_ / threads_ < 256 && has_several() ? threads_ : 1;
    return weight + busy * (columns_ + item_ * weight);  // oneDNN counts the weight's bytes as numbers
  }
  if (in_place_ && has_wide_registers() && inputs_ > 3) return blocked(y_, 8) + blocked(x_, 8) + blocked_weight(8, 8);
  const bool reads_in_place = in_place_ && (has_wide_registers() ? inputs_ <= 3 : inputs_ == 3);
  const int64_t filled = blocked_weight(reads_in_place ? 1 : width(), width());
  const int64_t copies = blocked(y_, width()) + (reads_in_place ? 0 : blocked(x_, width()));
  return std::max(gathered() + copies + filled, filled + weight);
}

}  // namespace

int64_t convolution_work_space(const ConvolutionShape& shape) {
  if (is_empty(shape)) return 0;
  if (!takes_onednn(shape)) return ColumnMemory(shape).of_forward();
  return OneDnnMemory(shape).of_result() - bytes_of(shape, shape.y);
}

int64_t convolution_backward_work_space(const ConvolutionShape& shape, bool for_input, bool for_weight) {
  if (is_empty(shape)) return 0;
  if (!takes_onednn(shape)) return ColumnMemory(shape).of_backward(for_input, for_weight);
  const OneDnnMemory memory(shape);
  // The derivative of the input comes first, and is there while that of the weight is made.
  const int64_t input = for_input ? bytes_of(shape, shape.x) : 0;
  const int64_t weight = for_weight ? bytes_of(shape, shape.weight) : 0;
  const int64_t peak =
      std::max(for_input ? memory.of_gradient() : 0, for_weight ? input + memory.of_weights_gradient() : 0);
  return std::max<int64_t>(peak - input - weight, 0);
}

int64_t channels_of_block() {
#if defined(__x86_64__)
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (limit == nullptr) limit = std::getenv("DNNL_MAX_CPU_ISA");
  const std::string_view allowed = limit == nullptr ? "" : limit;
  const bool is_limited = allowed.starts_with("SSE") || allowed == "AVX" || allowed.starts_with("AVX2");
  const bool has_it = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has_it && !is_limited ? 16 : 8;
#else
  return 8;
#endif
}

}  // namespace moonhalo
