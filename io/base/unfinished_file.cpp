// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/unfinished_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "moonhalo/io/base/new_file.h"

namespace moonhalo::io {
namespace fs = std::filesystem;
namespace {

constexpr size_t kRandomDigits = 8;

std::string hex(uint32_t value) {
  std::array<char, kRandomDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%08x", value);
  return text.data();
}

/// ".unfinished-HOST-", short whatever the host is called.
std::string suffix() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char* next = host.data(); *next; ++next) hash = (hash ^ static_cast<unsigned char>(*next)) * 16777619u;
  return ".unfinished-" + hex(hash) + "-";
}

/// The writer holds a shared lock: HDF5 locks a file that it reads in the same way, also right after it got its name.
bool is_dead(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

void remove_dead(const fs::path& target) {
  const std::string start = target.filename().string() + suffix();
  std::vector<fs::path> found;
  std::error_code ignored;
  const fs::path folder = target.has_parent_path() ? target.parent_path() : ".";
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (name.size() == start.size() + kRandomDigits && name.starts_with(start)) found.push_back(entry->path());
  }
  for (const auto& path : found) {
    const FileLock file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.descriptor() >= 0 && is_dead(file.descriptor())) std::remove(path.c_str());
  }
}

}  // namespace

int FileLock::close() noexcept { return descriptor_ < 0 ? 0 : ::close(std::exchange(descriptor_, -1)); }

UnfinishedFile try_unfinished(const std::string& path) {
  remove_dead(path);
  std::random_device random;
  for (;;) {
    const std::string name = path + suffix() + hex(random());
    FileLock file(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.descriptor() < 0 && errno == EEXIST) continue;
    if (file.descriptor() < 0) return {name, std::move(file)};
    // Where the file system has no locks, no process can take ours for dead either.
    while (flock(file.descriptor(), LOCK_SH) != 0 && errno == EINTR) continue;
    struct stat now {};
    const bool removed = fstat(file.descriptor(), &now) == 0 && now.st_nlink == 0;  // before it was locked
    if (!removed) return {name, std::move(file)};
  }
}

std::string dry_unfinished_name(const std::string& path) { return path + suffix() + hex(0); }

UnfinishedFile make_unfinished(const std::string& path, const h5::Where& where) {
  UnfinishedFile file = try_unfinished(path);
  const int error = errno;
  TORCH_CHECK(file.lock.descriptor() >= 0, where.to_string(), ": cannot create \"", file.path, "\"\n  have  ",
              std::strerror(error), disk_remedy(error));
  return file;
}

}  // namespace moonhalo::io
