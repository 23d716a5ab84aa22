// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moonhalo::io {

/// HDF5's number of the lzf filter, which h5py brought into the world.
constexpr int kLzfFilter = 32000;
/// Readable bytes behind the input and writable ones behind the output of lzf_decode.
constexpr size_t kLzfSlack = 32;

/// Expands a raw lzf stream into at most `capacity` bytes. Returns how many it gave, 0 for a damaged stream or one
/// that needs more space.
size_t lzf_decode(const char* in, size_t bytes, char* out, size_t capacity);

/// Teaches the HDF5 library to read lzf, which Debian's cannot, unless it can already.
void register_lzf();

}  // namespace moonhalo::io
