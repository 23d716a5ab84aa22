// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace moonhalo {

/// Random numbers by a key and a counter. Not collective: numbers depend on nothing else. Device compilers include this
/// header too. Host and device share constexpr functions.

/// Ten rounds of Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011);
/// `counter` is the lower and `block` the upper half of its counter.
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter, uint64_t block = 0) {
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

/// Returns a standard normal number from two uniform ones (Box and Muller 1958).
template <typename Draws>
constexpr double standard_normal(Draws& draws) {
  const double radius = std::sqrt(-2 * std::log(draws.uniform_above_zero()));
  return radius * std::cos(2 * std::numbers::pi * draws.uniform());
}

/// The random numbers of one element, as many as needed. Its words are philox(key, element, 0), philox(key, element,
/// 1), ..., so no two elements of an operator share words, however many a rejection loop draws.
class Draws {
 public:
  constexpr Draws(uint64_t key, uint64_t element) : key_(key), element_(element) {}

  /// Returns 64 random bits.
  constexpr uint64_t bits() {
    if (next_ == 4) {
      words_ = philox(key_, element_, block_++);
      next_ = 0;
    }
    const uint64_t high = words_[next_], low = words_[next_ + 1];
    next_ += 2;
    return high << 32 | low;
  }
  /// Returns a number in [0, 1), a multiple of 2^-digits (at most 53 digits), which a type with that many digits
  /// represents exactly.
  constexpr double uniform(int digits = 53) {
    return static_cast<double>(bits() >> (64 - digits) << (53 - digits)) * 0x1p-53;
  }
  /// Returns a number in (0, 1], for logarithms.
  constexpr double uniform_above_zero() { return 1 - uniform(); }
  /// Returns a standard normal number.
  double normal() { return standard_normal(*this); }
  /// Returns an integer in [0, range), all equally likely; 0 stands for 2^64 (Lemire 2019, "Fast random integer
  /// generation in an interval").
  constexpr uint64_t below(uint64_t range) {
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

}  // namespace moonhalo
