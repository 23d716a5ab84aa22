// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/positioned_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/pwrite_all.h"

namespace moonhalo::io {

PositionedFile::PositionedFile(std::string who, std::string path, int flags)
    : who_(std::move(who)), path_(std::move(path)), descriptor_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
  const int error = errno;
  TORCH_CHECK_VALUE(descriptor_ >= 0, who_, ": cannot ", flags == O_RDONLY ? "open" : "write", " '", path_, "': ",
                    std::strerror(error), flags == O_RDONLY ? "" : disk_remedy(error));
}

PositionedFile PositionedFile::create(const std::string& who, const std::string& path, int64_t bytes) {
  PositionedFile file(who, path, O_WRONLY | O_CREAT | O_TRUNC);
  if (bytes == 0) return file;
  const bool reserved = fallocate(file.descriptor_, 0, 0, bytes) == 0;
  if (!reserved && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    file.check(ftruncate(file.descriptor_, bytes) == 0);
  } else {
    file.check(reserved);
  }
  return file;
}

PositionedFile PositionedFile::open_to_write(const std::string& who, const std::string& path) {
  return {who, path, O_WRONLY};
}

PositionedFile PositionedFile::open_to_read(const std::string& who, const std::string& path) {
  return {who, path, O_RDONLY};
}

PositionedFile::PositionedFile(PositionedFile&& other) noexcept
    : who_(std::move(other.who_)), path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

PositionedFile::~PositionedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PositionedFile::check(bool good) const {
  const int error = errno;
  TORCH_CHECK(good, who_, ": the disk refused '", path_, "': ", std::strerror(error), disk_remedy(error));
}

void PositionedFile::write_at(const void* data, int64_t bytes, int64_t offset) {
  const int error = pwrite_all(descriptor_, data, static_cast<size_t>(bytes), static_cast<uint64_t>(offset));
  errno = error;
  check(error == 0);
}

void PositionedFile::read_at(void* data, int64_t bytes, int64_t offset) const {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, next, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0);
    TORCH_CHECK_VALUE(got > 0, who_, ": '", path_, "' is cut short");
    next += got;
    offset += got;
    bytes -= got;
  }
}

void PositionedFile::read_at(const std::vector<ReadInto>& parts, int64_t offset) const {
  constexpr size_t kMost = 1024;  // IOV_MAX of Linux
  std::vector<iovec> places;
  for (const ReadInto& part : parts) places.push_back({part.place, static_cast<size_t>(part.bytes)});
  for (size_t first = 0; first < places.size();) {
    ssize_t got =
        ::preadv(descriptor_, &places[first], static_cast<int>(std::min(places.size() - first, kMost)), offset);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0);
    TORCH_CHECK_VALUE(got > 0, who_, ": '", path_, "' is cut short");
    offset += got;
    for (; first < places.size() && static_cast<size_t>(got) >= places[first].iov_len; ++first)
      got -= static_cast<ssize_t>(places[first].iov_len);
    if (got > 0) {
      places[first].iov_base = static_cast<char*>(places[first].iov_base) + got;
      places[first].iov_len -= static_cast<size_t>(got);
    }
  }
}

void PositionedFile::sync() { check(::fsync(descriptor_) == 0 || errno == EINVAL || errno == ENOTSUP); }

}  // namespace moonhalo::io
