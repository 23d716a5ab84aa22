// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/new_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace moonhalo::io {
namespace {

/// Not all file systems can; then there is nothing more to do.
bool sync(int descriptor) { return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP; }

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

[[noreturn]] void fail_to_rename(const std::string& who, const std::string& from, const std::string& to, int error) {
  TORCH_CHECK(false, who, ": cannot give '", from, "' the name '", to, "': ", std::strerror(error), disk_remedy(error));
}

}  // namespace

std::string disk_remedy(int error) {
  const auto fix = [error] {
    switch (error) {
      case ENOENT:
        return "make its folder first";
      case EISDIR:
      case ENOTDIR:
      case ENOTEMPTY:
      case EEXIST:
        return "choose another name";
      case EACCES:
      case EPERM:
      case EROFS:
        return "change the permissions, or write somewhere else";
      case EXDEV:
        return "the folder belongs to the image of a container (overlay file system), which cannot rename it: write to "
               "a "
               "mounted folder, or to a new name";
      case ENOSPC:
        return "free space on that disk, or write somewhere else";
      case EFBIG:
        return "raise the limit on file sizes (ulimit -f), or write somewhere else";
      case EDQUOT:
        return "free space in your quota, or write somewhere else";
      default:
        return "check the disk, or write somewhere else";
    }
  };
  return std::string("\n  fix   ") + fix();
}

NewFile::NewFile(std::string who, std::string path) : who_(std::move(who)), path_(std::move(path)) {
  unfinished_ = try_unfinished(path_);
  const int error = errno;
  TORCH_CHECK_VALUE(unfinished_.lock.descriptor() >= 0, who_, ": cannot write '", path_, "': ", std::strerror(error),
                    disk_remedy(error));
}

NewFile::~NewFile() {
  if (!finished_) std::remove(unfinished_.path.c_str());
}

void NewFile::check(bool good) const {
  const int error = errno;
  TORCH_CHECK(good, who_, ": the disk refused '", path_, "': ", std::strerror(error), disk_remedy(error));
}

void NewFile::write(const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(unfinished_.lock.descriptor(), next, bytes);
    if (written < 0 && errno == EINTR) continue;
    check(written >= 0);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void NewFile::finish() {
  check(sync(unfinished_.lock.descriptor()));
  give_name(who_, unfinished_.path, path_);
  finished_ = true;
  check(unfinished_.lock.close() == 0);
}

void store_on_disk(const std::string& who, const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool stored = descriptor >= 0 && sync(descriptor);
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  TORCH_CHECK(stored, who, ": cannot store '", path, "' on disk: ", std::strerror(error), disk_remedy(error));
}

void give_name(const std::string& who, const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_to_rename(who, from, to, errno);
  store_on_disk(who, folder_of(to));
}

bool exchange_names(const std::string& who, const std::string& one, const std::string& other) {
  if (renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) {
    store_on_disk(who, folder_of(other));
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail_to_rename(who, one, other, errno);
}

std::string read_file(const std::string& who, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  std::string text;
  int error = file ? 0 : errno;
  if (file) {
    char piece[1 << 16];
    while (const size_t got = std::fread(piece, 1, sizeof piece, file)) text.append(piece, got);
    if (std::ferror(file)) error = errno;
    std::fclose(file);
  }
  TORCH_CHECK_VALUE(error == 0, who, ": cannot open '", path, "': ", std::strerror(error),
                    "\n  fix   correct the path, which begins in the folder where the program runs");
  return text;
}

}  // namespace moonhalo::io
