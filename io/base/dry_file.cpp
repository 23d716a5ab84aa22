// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/dry_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "moonhalo/io/base/read_into.h"

namespace moonhalo::io {

DryFile::DryFile(const std::string& path) {
  origin_ = std::make_shared<const FileDescriptor>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  TORCH_CHECK(origin_->get() >= 0 && fstat(origin_->get(), &found) == 0, "open: cannot read \"", path, "\"\n  have  ",
              std::strerror(errno), "\n  fix   choose a file that this process may read");
  size_ = static_cast<uint64_t>(found.st_size);
}

char* DryFile::page(uint64_t number) {
  const auto found = pages_.find(number);
  if (found != pages_.end()) return found->second.data();
  std::vector<char> bytes(kPageBytes);
  if (origin_ && read_into(origin_->get(), {{bytes.data(), static_cast<int64_t>(kPageBytes)}}, number * kPageBytes) < 0)
    return nullptr;
  return pages_.emplace(number, std::move(bytes)).first->second.data();
}

bool DryFile::write(const void* data, size_t bytes, uint64_t offset) {
  const auto* next = static_cast<const char*>(data);
  size_ = std::max(size_, offset + bytes);
  while (bytes > 0) {
    const uint64_t at = offset % kPageBytes;
    const size_t count = std::min<size_t>(bytes, kPageBytes - at);
    char* const begin = page(offset / kPageBytes);
    if (begin == nullptr) return false;
    std::memcpy(begin + at, next, count);
    next += count;
    offset += count;
    bytes -= count;
  }
  return true;
}

bool DryFile::read(void* data, size_t bytes, uint64_t offset) const {
  std::memset(data, 0, bytes);
  auto* const begin = static_cast<char*>(data);
  if (origin_ && read_into(origin_->get(), {{begin, static_cast<int64_t>(bytes)}}, offset) < 0) return false;
  for (auto at = pages_.lower_bound(offset / kPageBytes); at != pages_.end(); ++at) {
    const uint64_t first = at->first * kPageBytes, from = std::max(first, offset),
                   to = std::min(first + kPageBytes, offset + bytes);
    if (from >= to) break;
    std::memcpy(begin + (from - offset), at->second.data() + (from - first), to - from);
  }
  return true;
}

int DryFile::origin_of(uint64_t offset, size_t bytes) const {
  const auto at = pages_.lower_bound(offset / kPageBytes);
  const bool is_written = at != pages_.end() && at->first * kPageBytes < offset + bytes;
  return origin_ && !is_written ? origin_->get() : -1;
}

}  // namespace moonhalo::io
