// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo {

/// A permutation of [0, size) that is drawn by `key` and `stream` (an epoch, say), without memory: any place is
/// found on its own, identically on every rank. A Feistel network whose rounds are Philox, over the least even
/// number of bits; what leaves [0, size) goes through it again ("cycle walking": Black and Rogaway, "Ciphers with
/// arbitrary finite domains", CT-RSA 2002), from 32 samples on at most four times on the average. ValueError unless
/// 1 <= size <= 2^62.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key, uint64_t stream = 0);
  /// The number at `place`; IndexError outside of [0, size).
  int64_t operator()(int64_t place) const;

 private:
  uint64_t encrypted(uint64_t value) const;

  uint64_t size_, key_, stream_;
  int half_bits_;
};

}  // namespace moonhalo
