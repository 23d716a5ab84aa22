// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo {

/// SplitMix64 (Steele et al., OOPSLA 2014): 64 bits that depend on `value` alone and differ in every place where the
/// inputs are neighbours.
inline uint64_t splitmix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace moonhalo
