// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The generator that random operators on ShardTensors use when they are given none: one per thread, so per rank
/// (LibTorch's own is shared by all threads of the process). It starts from LibTorch's current seed. All ranks must be
/// seeded alike and draw alike. Its get_state and set_state are all there is to save and restore.
at::Generator default_generator();
/// Restarts default_generator() of this thread (this rank).
void manual_seed(uint64_t seed);

/// While one lives on a thread, random operators on plain CPU tensors give the numbers that they would give on
/// ShardTensors: by seed, operator and element, from default_generator() when they are given none. So a program draws
/// the same on plain tensors, on one rank and on many. Rank threads (run_ranks) and Lua have it on; elsewhere plain
/// tensors draw from LibTorch's generators as ever. May be nested.
class ElementwiseRandom {
 public:
  ElementwiseRandom();
  ~ElementwiseRandom();
  ElementwiseRandom(const ElementwiseRandom&) = delete;
  ElementwiseRandom& operator=(const ElementwiseRandom&) = delete;

 private:
  bool before_;
};

/// Ten rounds of Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011);
/// `counter` is the lower and `block` the upper half of its counter.
inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter, uint64_t block = 0) {
  constexpr uint64_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32)};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiply0 * c[0], product1 = kMultiply1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

/// The numbers of one element, as many as are asked for: its words are philox(key, element, 0), (.., 1), ..., so no two
/// elements of an operator share any, however many a rejection loop takes.
class Draws {
 public:
  Draws(uint64_t key, uint64_t element) : key_(key), element_(element) {}

  uint64_t bits() {
    if (next_ == 4) {
      words_ = philox(key_, element_, block_++);
      next_ = 0;
    }
    const uint64_t high = words_[next_], low = words_[next_ + 1];
    next_ += 2;
    return high << 32 | low;
  }
  /// In [0, 1), a multiple of 2^-digits (at most 53): a type with that many digits holds it exactly.
  double uniform(int digits = 53) { return static_cast<double>(bits() >> (64 - digits) << (53 - digits)) * 0x1p-53; }
  /// In (0, 1], for logarithms.
  double uniform_above_zero() { return 1 - uniform(); }
  /// Standard normal (Box and Muller 1958).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform_above_zero()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  /// In [0, range), each equally likely; 0 stands for 2^64 (Lemire 2019, "Fast random integer generation in an
  /// interval").
  uint64_t below(uint64_t range) {
    if (range == 0) return bits();
    unsigned __int128 product = static_cast<unsigned __int128>(bits()) * range;
    if (static_cast<uint64_t>(product) < range) {
      const uint64_t uneven = (0 - range) % range;
      while (static_cast<uint64_t>(product) < uneven) product = static_cast<unsigned __int128>(bits()) * range;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t key_, element_, block_ = 0;
  std::array<uint32_t, 4> words_{};
  int next_ = 4;
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
    at::parallel_for(0, owned.count(), 16384, [&](int64_t begin, int64_t end) {
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
