// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>

#include "engine/spec.h"

namespace moonhalo {

/// The generator that random operators on ShardTensors use when they are given none: one per thread, so per rank
/// (LibTorch's own is shared by all threads of the process). It starts from LibTorch's current seed. All ranks must be
/// seeded alike and draw alike.
at::Generator default_generator();
/// Restarts default_generator() of this thread (this rank).
void manual_seed(uint64_t seed);

/// Ten rounds of Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter);

/// One random operator's numbers: element i of the global tensor always gets words(i), whatever the cut and however
/// many ranks. Making one draws a key from the generator, so its state is all the state there is.
class ElementRandom {
 public:
  explicit ElementRandom(const std::optional<at::Generator>& generator);

  /// Fills this rank's block of `spec` (float32 or float64 as `dtype`; others go through float32; int64 through itself)
  /// with value(words) of every element. `value` gets the four words of the element.
  at::Tensor fill(const ShardSpec& spec, const at::TensorOptions& options,
                  const std::function<double(const std::array<uint32_t, 4>&)>& value) const;
  at::Tensor fill_integers(const ShardSpec& spec, const at::TensorOptions& options,
                           const std::function<int64_t(const std::array<uint32_t, 4>&)>& value) const;

 private:
  uint64_t key_;
};

/// [0, 1) with 53 bits, from the first or the second pair of words; (0, 1] for logarithms.
double uniform(const std::array<uint32_t, 4>& words, int pair = 0);
inline double uniform_above_zero(const std::array<uint32_t, 4>& words, int pair = 0) { return 1 - uniform(words, pair); }
/// Standard normal (Box and Muller 1958), from both pairs.
double normal(const std::array<uint32_t, 4>& words);

}  // namespace moonhalo
