// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/positioned_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/pwrite_all.h"

namespace moonhalo::io {

PositionedFile::PositionedFile(std::string who, std::string path, int flags)
    : who_(std::move(who)), path_(std::move(path)), descriptor_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
  const int error = errno;
  TORCH_CHECK_VALUE(descriptor_ >= 0, who_, ": cannot ", flags == O_RDONLY ? "open" : "write", " '", path_,
                    "': ", std::strerror(error), flags == O_RDONLY ? "" : disk_remedy(error));
}

PositionedFile PositionedFile::create(const std::string& who, const std::string& path, int64_t bytes) {
  ::unlink(path.c_str());  // whatever was left there, a link too, is not written through
  PositionedFile file(who, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
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
  read_at({{static_cast<char*>(data), bytes}}, offset);
}

void PositionedFile::read_at(at::ArrayRef<ReadInto> parts, int64_t offset) const {
  const int64_t got = read_into(descriptor_, parts, static_cast<uint64_t>(offset));
  check(got >= 0);
  int64_t required = 0;
  for (const ReadInto& part : parts) required += part.bytes;
  TORCH_CHECK_VALUE(got == required, who_, ": '", path_, "' is cut short");
}

void PositionedFile::sync() { check(::fsync(descriptor_) == 0 || errno == EINVAL || errno == ENOTSUP); }

}  // namespace moonhalo::io
