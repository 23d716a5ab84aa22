// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/random/permutation.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "moonhalo/engine/random/random.h"

namespace moonhalo {

namespace {
constexpr uint64_t kRounds = 8;
// Halves of one or two bits have few functions between them: not every order of five would be as likely.
constexpr int kLeastHalf = 3;
}  // namespace

Permutation::Permutation(int64_t size, uint64_t key, uint64_t stream)
    : size_(static_cast<uint64_t>(size)), key_(key), stream_(stream) {
  TORCH_CHECK_VALUE(size >= 1 && size <= int64_t{1} << 62, "permutation: size ", size, " is not within 1 and 2^62");
  half_bits_ = std::max<int>(kLeastHalf, (std::bit_width(size_ - 1) + 1) / 2);
}

uint64_t Permutation::encrypted(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (philox(key_, right << 3 | round, stream_)[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t place) const {
  auto value = static_cast<uint64_t>(place);
  TORCH_CHECK_INDEX(value < size_, "permutation: place ", place, " is outside of [0, ", size_, ")");
  do value = encrypted(value);
  while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace moonhalo
