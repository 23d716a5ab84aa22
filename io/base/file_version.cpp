// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/file_version.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace moonhalo::io {

std::string file_version(const std::string& path) {
  struct stat file {};
  TORCH_CHECK(stat(path.c_str(), &file) == 0, "read: cannot find file \"", path, "\" again\n  have  ", std::strerror(errno),
              "\n  fix   leave files alone while they are read, and open them again");
  if (!S_ISREG(file.st_mode)) return "";
  tm parts{};
  gmtime_r(&file.st_mtim.tv_sec, &parts);
  std::array<char, 32> day{};
  std::strftime(day.data(), day.size(), "%Y-%m-%d %H:%M:%S", &parts);
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "%lld bytes, written %s.%09ld UTC", static_cast<long long>(file.st_size),
                day.data(), static_cast<long>(file.st_mtim.tv_nsec));
  return text.data();
}

}  // namespace moonhalo::io
