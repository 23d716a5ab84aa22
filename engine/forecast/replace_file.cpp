// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/replace_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace moonhalo {

std::string unfinished_name(const std::string& path) { return path + ".unfinished"; }

std::error_code replace_file(const std::string& path, const std::string& text) {
  const std::string unfinished = unfinished_name(path);
  std::ofstream file(unfinished);
  file << text;
  file.close();
  std::error_code failed(file ? 0 : errno, std::generic_category());
  if (!failed) std::filesystem::rename(unfinished, path, failed);
  if (std::error_code ignored; failed) std::filesystem::remove(unfinished, ignored);
  return failed;
}

}  // namespace moonhalo
