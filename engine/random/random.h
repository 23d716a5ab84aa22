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

/// The generator that random operators on ShardTensors use when they are given none: one per thread, so per rank
/// (LibTorch's own is shared by all threads of the process). It starts from LibTorch's current seed. All ranks must be
/// seeded alike and draw alike. Its get_state and set_state are all there is to save and restore.
at::Generator default_generator();
/// Restarts default_generator() of this thread (this rank).
void manual_seed(uint64_t seed);

/// While one lives on a thread, random operators on plain tensors of the CPU or a device give the numbers that they
/// would give on ShardTensors: by seed, operator and element, from default_generator() when they are given none. So a
/// program draws the same on plain tensors, on one rank and on many. Rank threads (run_ranks) and Lua have it on;
/// elsewhere plain tensors draw from LibTorch's generators as ever. May be nested.
class ElementwiseRandom {
 public:
  ElementwiseRandom();
  ~ElementwiseRandom();
  ElementwiseRandom(const ElementwiseRandom&) = delete;
  ElementwiseRandom& operator=(const ElementwiseRandom&) = delete;

 private:
  bool before_;
};

/// One random operator's numbers: element i of the global tensor always gets draws(i), whatever the cut and however
/// many ranks. Making one draws a key from the generator (CPU; default_generator() when none is given), so the
/// generator's state is all the state there is. An operator makes exactly one.
class ElementRandom {
 public:
  explicit ElementRandom(const std::optional<at::Generator>& generator);
  static uint64_t draw_key(const std::optional<at::Generator>& generator);

  Draws draws(uint64_t element) const { return {key_, element}; }
  /// For operators that draw in parts, or again.
  uint64_t key() const { return key_; }

  /// Fills this rank's block of `spec` with numbers of `distribution`: one launch where the block's device has a kernel
  /// (fill_kernel.h), else made by the host.
  void fill(const at::Tensor& block, const ShardSpec& spec, const Distribution& distribution) const;
  /// Writes value(draws of the element) into every element of this rank's block of `spec`; `value` gives a double or an
  /// int64_t. A complex element gets two, real part first.
  template <typename Value>
  void fill(const at::Tensor& block, const ShardSpec& spec, const Value& value) const;

 private:
  uint64_t key_;
};

/// While one lives, operators of this thread use `key` and leave generators alone: what was recorded is done again.
class ReplayedKey {
 public:
  explicit ReplayedKey(uint64_t key);
  ~ReplayedKey();
  ReplayedKey(const ReplayedKey&) = delete;
  ReplayedKey& operator=(const ReplayedKey&) = delete;

 private:
  std::optional<uint64_t> before_;
};

/// The places of this rank's elements in the global tensor, as runs of neighbours.
class OwnedElements {
 public:
  explicit OwnedElements(const ShardSpec& spec);
  int64_t count() const { return count_; }
  /// visit(position in the row-major block, global row-major index) for positions [begin, end).
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
