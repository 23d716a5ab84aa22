// SPDX-License-Identifier: Apache-2.0
// LibTorch's short-time Fourier transform reads its overlapping frames out of memory (as_strided). With a
// ShardTensor it is intercepted above autograd and made of operators that keep a cut: pad, unfold, the transform.
#include <ATen/ATen.h>
#include <ATen/ops/stft_native.h>

#include <optional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/support/above_autograd.h"

namespace moonhalo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalInt = std::optional<int64_t>;
using OptionalBool = std::optional<bool>;

bool sharded(const at::Tensor& self, const OptionalTensor& window) {
  return is_shard_tensor(self) || (window && is_shard_tensor(*window));
}

at::Tensor stft_of_frames(const at::Tensor& self, int64_t n_fft, OptionalInt hop_length, OptionalInt win_length,
                          const OptionalTensor& window, bool normalized, OptionalBool onesided,
                          OptionalBool return_complex) {
  const int64_t hop = hop_length.value_or(n_fft / 4), width = win_length.value_or(n_fft);
  const bool windowed = window && window->defined();
  const auto have = [&] {
    return "\n  have  input " + shape_string(self.sizes()) + ", n_fft " + std::to_string(n_fft) + ", hop_length " +
           std::to_string(hop) + ", win_length " + std::to_string(width);
  };
  TORCH_CHECK_VALUE((self.dim() == 1 || self.dim() == 2) && (self.is_floating_point() || self.is_complex()),
                    "stft: the input must be one or a batch of signals of floating point or complex numbers", have(),
                    "\n  fix   give 1 or 2 dims");
  TORCH_CHECK_VALUE(n_fft > 0 && n_fft <= self.size(-1) && hop > 0 && width > 0 && width <= n_fft,
                    "stft: needs 0 < n_fft <= samples, 0 < hop_length and 0 < win_length <= n_fft, with ",
                    self.size(-1), " samples", have(), "\n  fix   use shorter frames");
  TORCH_CHECK_VALUE(!windowed || (window->dim() == 1 && window->size(0) == width), "stft: a window of shape ",
                    windowed ? shape_string(window->sizes()) : "", " where win_length is ", width, have());
  const bool complex = self.is_complex() || (windowed && window->is_complex());
  TORCH_CHECK_VALUE(return_complex || complex, "stft: return_complex must be given for real inputs", have(),
                    "\n  fix   return_complex=true gives complex numbers, false pairs of reals");
  at::Tensor frames = self.unfold(-1, n_fft, hop);
  if (windowed || width < n_fft) {
    const at::Tensor weights = windowed ? *window : at::ones({width}, self.options());
    const int64_t left = (n_fft - width) / 2;
    frames = frames * at::constant_pad_nd(weights, {left, n_fft - width - left});
  }
  const int64_t norm = normalized ? 1 : 0, last = frames.dim() - 1;  // 1: by the root of n_fft
  TORCH_CHECK_VALUE(!complex || !onesided.value_or(false), "stft: complex signals have no onesided transform", have());
  at::Tensor out =
      complex ? at::_fft_c2c(frames, {last}, norm, true) : at::_fft_r2c(frames, {last}, norm, onesided.value_or(true));
  out = out.transpose(-1, -2);
  return return_complex.value_or(complex) ? out : at::view_as_real(out);
}

at::Tensor stft(const at::Tensor& self, int64_t n_fft, OptionalInt hop_length, OptionalInt win_length,
                const OptionalTensor& window, bool normalized, OptionalBool onesided, OptionalBool return_complex,
                OptionalBool align_to_window) {
  if (!sharded(self, window)) {
    return at::native::stft(self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex,
                            align_to_window);
  }
  return stft_of_frames(self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex);
}

at::Tensor stft_center(const at::Tensor& self, int64_t n_fft, OptionalInt hop_length, OptionalInt win_length,
                       const OptionalTensor& window, bool center, c10::string_view pad_mode, bool normalized,
                       OptionalBool onesided, OptionalBool return_complex, OptionalBool align_to_window) {
  if (!sharded(self, window)) {
    return at::native::stft(self, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided,
                            return_complex, align_to_window);
  }
  at::Tensor signal = self;
  if (center) {
    const int64_t around = n_fft / 2;
    signal = at::pad(self.dim() == 1 ? self.unsqueeze(0) : self, {around, around}, pad_mode);
    if (self.dim() == 1) signal = signal.squeeze(0);
  }
  return stft_of_frames(signal, n_fft, hop_length, win_length, window, normalized, onesided, return_complex);
}

void intercept(torch::Library& library) {
  library.impl("stft", &stft);
  library.impl("stft.center", &stft_center);
}

const InterceptAboveAutograd interception(&intercept);

}  // namespace
}  // namespace moonhalo
