// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/pwrite_all.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

namespace moonhalo::io {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;
constexpr size_t kLargeBytes = size_t{1} << 20;  // less is not a work for a disk

/// The system lets one thread at a time write a file, and those that wait for it spin: here they sleep.
std::mutex& turn_of(int descriptor) {
  static std::array<std::mutex, 16> turns;
  struct stat found {};
  return turns[fstat(descriptor, &found) == 0 ? found.st_ino % turns.size() : 0];
}

int write_piece(int descriptor, const char* next, size_t bytes, uint64_t offset) {
  while (bytes > 0) {
    const ssize_t put = pwrite(descriptor, next, bytes, static_cast<off_t>(offset));
    if (put < 0 && errno != EINTR) return errno;
    if (put < 0) continue;
    next += put;
    offset += static_cast<uint64_t>(put);
    bytes -= static_cast<size_t>(put);
  }
  return 0;
}

}  // namespace

void hand_to_disk(int descriptor, uint64_t begin, uint64_t end) {
  constexpr uint64_t kPage = 4096;
  const uint64_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (first + kLargeBytes > last) return;
  sync_file_range(descriptor, static_cast<off_t>(first), static_cast<off_t>(last - first), SYNC_FILE_RANGE_WRITE);
}

int pwrite_all(int descriptor, const void* data, size_t bytes, uint64_t offset) {
  const auto* next = static_cast<const char*>(data);
  if (bytes < kLargeBytes) return write_piece(descriptor, next, bytes, offset);
  std::mutex& turn = turn_of(descriptor);
  for (size_t length = 0; bytes > 0; bytes -= length, next += length, offset += length) {
    length = std::min<size_t>(bytes, kPieceBytes - offset % kPieceBytes);  // so that pieces share no page
    {
      const std::lock_guard lock(turn);
      if (const int error = write_piece(descriptor, next, length, offset)) return error;
    }
    hand_to_disk(descriptor, offset, offset + length);
  }
  return 0;
}

}  // namespace moonhalo::io
