// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/random/kernels/distribution.h"
#include "moonhalo/engine/random/kernels/draws.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Returns the generator that random operators on ShardTensors use if none is passed. There is one per thread, and so
/// one per rank (LibTorch's own generator is shared by all threads of the process). Its initial seed is LibTorch's
/// current seed. All ranks must set the same seed and draw in the same order. Save and restore it with get_state and
/// set_state. Not collective.
at::Generator default_generator();
/// Seeds default_generator() of this thread (this rank). Not collective.
void manual_seed(uint64_t seed);

/// Makes random operators on plain tensors of this thread (CPU or device) return the same values as on ShardTensors
/// during its lifetime: they depend on seed, operator and element, and use default_generator() if none is passed. So a
/// program draws the same values on plain tensors, on one rank and on many. On by default in rank threads (run_ranks)
/// and in Lua; elsewhere plain tensors use LibTorch's generators. Scopes may be nested.
class ElementwiseRandom {
 public:
  ElementwiseRandom();
  ~ElementwiseRandom();
  ElementwiseRandom(const ElementwiseRandom&) = delete;
  ElementwiseRandom& operator=(const ElementwiseRandom&) = delete;

 private:
  bool before_;
};

/// The random values of one operator call. Element i of the global tensor always gets draws(i), for any sharding and
/// any number of ranks. The constructor draws a key from the generator (a CPU generator; default_generator() if none is
/// passed), so the generator's state is the only state. Each operator call constructs exactly one. Not collective.
class ElementRandom {
 public:
  explicit ElementRandom(const std::optional<at::Generator>& generator);
  /// Draws the key of one call.
  static uint64_t draw_key(const std::optional<at::Generator>& generator);

  /// Returns the numbers of an element of the global tensor.
  Draws draws(uint64_t element) const { return {key_, element}; }
  /// Returns the key, for operators that draw in several steps or repeat a draw.
  uint64_t key() const { return key_; }

  /// Fills this rank's block of `spec` with values of `distribution`: by one kernel launch if the block's device has a
  /// kernel (fill_kernel.h), else on the CPU.
  void fill(const at::Tensor& block, const ShardSpec& spec, const Distribution& distribution) const;
  /// Writes value(draws of the element) to every element of this rank's block of `spec`; `value` returns a double or an
  /// int64_t. For a complex element it is called twice, for the real part first.
  template <typename Value>
  void fill(const at::Tensor& block, const ShardSpec& spec, const Value& value) const;

 private:
  uint64_t key_;
};

/// Makes operators of this thread use `key` instead of drawing one during its lifetime, to repeat a recorded call.
class ReplayedKey {
 public:
  explicit ReplayedKey(uint64_t key);
  ~ReplayedKey();
  ReplayedKey(const ReplayedKey&) = delete;
  ReplayedKey& operator=(const ReplayedKey&) = delete;

 private:
  std::optional<uint64_t> before_;
};

/// Maps this rank's elements to positions in the global tensor, as runs of consecutive elements. Not collective.
class OwnedElements {
 public:
  explicit OwnedElements(const ShardSpec& spec);
  /// The number of this rank's elements.
  int64_t count() const { return count_; }
  /// Calls visit(position in the row-major block, global row-major index) for positions [begin, end).
  template <typename Visit>
  void visit(int64_t begin, int64_t end, const Visit& visit) const {
    while (begin < end) {
      const int64_t stop = std::min(end, (begin / run_ + 1) * run_);
      for (uint64_t index = global_index(begin); begin < stop; ++begin, ++index) visit(begin, index);
    }
  }

 private:
  uint64_t global_index(int64_t position) const;
  const ShardSpec& spec_;
  int64_t count_, run_ = 1;
};

template <typename Value>
void ElementRandom::fill(const at::Tensor& block, const ShardSpec& spec, const Value& value) const {
  constexpr bool kInteger = std::is_integral_v<std::invoke_result_t<Value, Draws&>>;
  if (block.is_complex()) {
    const at::Tensor parts = at::empty(at::view_as_real(block).sizes(), at::kDouble);
    auto* data = parts.mutable_data_ptr<double>();
    OwnedElements(spec).visit(0, block.numel(), [&](int64_t position, uint64_t index) {
      Draws draws(key_, index);
      data[2 * position] = static_cast<double>(value(draws));
      data[2 * position + 1] = static_cast<double>(value(draws));
    });
    at::view_as_real(block).copy_(parts);
    return;
  }
  const auto write = [&]<typename Scalar>(const at::Tensor& target, Scalar*) {
    auto* data = target.mutable_data_ptr<Scalar>();
    const OwnedElements owned(spec);
    parallel_for(0, owned.count(), 16384, [&](int64_t begin, int64_t end) {
      owned.visit(begin, end, [&](int64_t position, uint64_t index) {
        Draws draws(key_, index);
        data[position] = static_cast<Scalar>(value(draws));
      });
    });
  };
  const at::ScalarType dtype = block.scalar_type();
  const bool direct = block.is_cpu() && block.is_contiguous();
  const bool reduced = dtype == at::kHalf || dtype == at::kBFloat16;
  const at::ScalarType wide = kInteger ? at::kLong : dtype == at::kFloat || reduced ? at::kFloat : at::kDouble;
  const at::Tensor target = direct && dtype == wide ? block : at::empty(block.sizes(), wide);
  if constexpr (kInteger) {
    write(target, static_cast<int64_t*>(nullptr));
  } else if (wide == at::kFloat) {
    write(target, static_cast<float*>(nullptr));
  } else {
    write(target, static_cast<double*>(nullptr));
  }
  if (!target.is_same(block)) block.copy_(target);
}

}  // namespace moonhalo
