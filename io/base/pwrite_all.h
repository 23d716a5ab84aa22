// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace moonhalo::io {

/// Writes all bytes at `offset` and returns 0, or what went wrong as errno. Much is written in pieces, each handed to
/// the disk at once: the disk writes it while the next is copied, and fsync finds little left to wait for. Threads that
/// write one file take turns by the piece. Local.
int pwrite_all(int descriptor, const void* data, size_t bytes, uint64_t offset);

/// Lets the disk begin with what was written there: whole pages, as one that is written again meanwhile would be waited
/// for. What the disk refuses, fsync reports. Local.
void hand_to_disk(int descriptor, uint64_t begin, uint64_t end);

}  // namespace moonhalo::io
