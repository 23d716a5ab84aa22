// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace moonhalo::io {

/// A place in memory that bytes of a file go to.
struct ReadInto {
  char* place;
  int64_t bytes;
};

/// Fills `parts` with the bytes of a file from `offset` on, which are there one behind the other. Returns how many
/// there were: fewer where the file ends. -1 where the system refuses, which says why by errno. Not collective.
int64_t read_into(int descriptor, c10::ArrayRef<ReadInto> parts, uint64_t offset);

}  // namespace moonhalo::io
