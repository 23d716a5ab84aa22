// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/kinds.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace moonhalo::testing {

namespace fs = std::filesystem;

std::string read_bytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

void write_bytes(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

InputFiles read_input(const std::string& folder) {
  InputFiles input;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      input.files[fs::relative(entry.path(), folder).string()] = read_bytes(entry.path().string());
  }
  return input;
}

void write_input(const std::string& folder, const InputFiles& input) {
  fs::remove_all(folder);
  for (const auto& [name, bytes] : input.files) write_bytes(folder + "/" + name, bytes);
}

std::string judge_error(const std::string& message) {
  if (message.find(kInputName) != std::string::npos) return "refused";
  return "the error does not name the file: " + message.substr(0, 400);
}

}  // namespace moonhalo::testing
