// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace moonhalo::io::h5 {

/// Looks at the bytes of a file that HDF5 is about to be given, for global heaps (lists and strings of variable
/// length, references to dimension scales). HDF5 1.10 goes through the objects of one without looking at their
/// sizes: an unused object of no size holds it for ever, one that reaches beyond the heap lets it read what is
/// behind. HDF5 File Format Specification, III.E.
class HeapCheck {
 public:
  /// Says how the heap is damaged that begins at byte `address`, where `size` bytes `data` were read; empty where it is
  /// not, or where none begins. The rest of a larger heap is read from `descriptor`.
  std::string problem(int descriptor, uint64_t address, const void* data, size_t size);

 private:
  size_t length_bytes_ = 8;  ///< of a size in this file, as its superblock says
  bool opened_ = false;
};

}  // namespace moonhalo::io::h5
