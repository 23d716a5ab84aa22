// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io {
namespace {

using testing::Folder;
using testing::message_of;

// A file of the given header and `bytes` zeros.
std::string damaged(const Folder& folder, const std::string& header, size_t bytes) {
  const std::string path = folder / "x.safetensors";
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << std::string(bytes, '\0');
  return path;
}

TEST(Safetensors, RefusesHeadersThatCannotBe) {
  const Folder folder;
  const struct {
    const char* header;
    const char* text;
  } cases[] = {
      {R"({"w": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}})", "a negative size in 'w'"},
      {R"({"w": {"dtype": "F32", "shape": [2, -2], "data_offsets": [0, 16]}})", "a negative size in 'w'"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}})", "offsets in 'w' that do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}})", "offsets in 'w' that do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}})", "x.safetensors"},
      {R"({"w": {"dtype": "F31", "shape": [2, 2], "data_offsets": [0, 16]}})", "F31"},
      {R"([1])", "is no safetensors file"},
  };
  for (const auto& [header, text] : cases) {
    SCOPED_TRACE(header);
    const std::string path = damaged(folder, header, 16);
    EXPECT_THAT(message_of([&] { load_safetensors(path); }), ::testing::HasSubstr(text));
  }
}

}  // namespace
}  // namespace moonhalo::io
