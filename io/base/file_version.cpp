// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/file_version.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <vector>

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 5> kHeads = {"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"};
constexpr const char* kChunks = "c";  // the folder of chunks of Zarr 3
constexpr int kDeepest = 16;

struct stat found_at(const std::string& path) {
  struct stat file {};
  TORCH_CHECK(stat(path.c_str(), &file) == 0, "read: cannot find file \"", path, "\" again\n  have  ",
              std::strerror(errno), "\n  fix   leave files alone while they are read, and open them again");
  return file;
}

/// FNV-1a.
class Hash {
 public:
  void add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) hash_ = (hash_ ^ (value & 255)) * 1099511628211ull;
  }
  void add(const std::string& text) {
    add(text.size());
    for (const char letter : text) hash_ = (hash_ ^ static_cast<unsigned char>(letter)) * 1099511628211ull;
  }
  void add(const timespec& time) {
    add(static_cast<uint64_t>(time.tv_sec));
    add(static_cast<uint64_t>(time.tv_nsec));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 14695981039346656037ull;
};

using Note = std::function<void(const std::string& path, const struct stat& found)>;

/// Notes a folder, the files in it that describe it, and its folder of chunks. False where no file describes it.
bool note_node(const std::string& folder, const Note& note) {
  bool described = false;
  struct stat found {};
  const auto look = [&](const char* name) {
    const std::string path = folder + "/" + name;
    if (stat(path.c_str(), &found) != 0) return false;
    note(path, found);
    return true;
  };
  for (const char* head : kHeads) described |= look(head);
  if (!described || stat(folder.c_str(), &found) != 0) return described;
  note(folder, found);
  look(kChunks);
  return true;
}

/// Notes a folder and all groups and arrays in it.
void note_all(const std::string& folder, int depth, const Note& note) {
  std::error_code error;
  // An array of Zarr 2 has nothing but its chunks, perhaps very many.
  if (!note_node(folder, note) || depth == kDeepest || fs::exists(folder + "/.zarray", error)) return;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) note_all(folder + "/" + name, depth + 1, note);
}

std::string folder_version(const std::string& path) {
  Hash hash;
  int64_t heads = 0;
  timespec last{};
  note_all(path, 0, [&](const std::string& of, const struct stat& found) {
    hash.add(of.substr(path.size()));
    hash.add(found.st_mtim);
    if (std::pair(last.tv_sec, last.tv_nsec) < std::pair(found.st_mtim.tv_sec, found.st_mtim.tv_nsec))
      last = found.st_mtim;
    if (!S_ISREG(found.st_mode)) return;  // sizes of folders are those of a file system
    hash.add(static_cast<uint64_t>(found.st_size));
    ++heads;
  });
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash.value()));
  return "a folder of " + std::to_string(heads) + " heads, last written " + time_text(last) + ", " + digits.data();
}

}  // namespace

std::string time_text(const timespec& time) {
  tm parts{};
  gmtime_r(&time.tv_sec, &parts);
  std::array<char, 32> day{};
  std::strftime(day.data(), day.size(), "%Y-%m-%d %H:%M:%S", &parts);
  std::array<char, 64> all{};
  std::snprintf(all.data(), all.size(), "%s.%09ld UTC", day.data(), static_cast<long>(time.tv_nsec));
  return all.data();
}

std::string file_version(const std::string& path) {
  const struct stat file = found_at(path);
  if (S_ISDIR(file.st_mode)) return folder_version(path);
  return std::to_string(file.st_size) + " bytes, written " + time_text(file.st_mtim);
}

uint64_t file_identity(const std::string& path, const std::string& dataset) {
  Hash hash;
  const Note note = [&](const std::string&, const struct stat& found) {
    hash.add(found.st_dev);
    hash.add(found.st_ino);
    hash.add(static_cast<uint64_t>(found.st_size));
    hash.add(found.st_mtim);
  };
  const struct stat file = found_at(path);
  note(path, file);
  if (!S_ISDIR(file.st_mode)) return hash.value();
  note_node(path, note);
  for (size_t slash = 0; slash != std::string::npos;) {
    slash = dataset.find('/', slash + 1);
    note_node(path + "/" + dataset.substr(0, slash), note);
  }
  return hash.value();
}

}  // namespace moonhalo::io
