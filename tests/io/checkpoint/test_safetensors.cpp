// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io {
namespace {

using namespace testing;

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
      {R"({"w": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}})", "a broken entry 'w': -2 is no size"},
      {R"({"w": {"dtype": "F32", "shape": [2, -2], "data_offsets": [0, 16]}})", "a broken entry 'w': -2 is no size"},
      {R"({"w": {"dtype": "F32", "shape": [2.5, 2], "data_offsets": [0, 16]}})", "a broken entry 'w': 2.5 is no size"},
      {R"({"w": {"dtype": "F32", "shape": ["2", 2], "data_offsets": [0, 16]}})",
       "a broken entry 'w': \"2\" is no size"},
      {R"({"w": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 16]}})",
       "18446744073709551615 is no size"},
      {R"({"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 16]}})",
       "a broken entry 'w', at which its header ceases to be JSON"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "w": {"dtype": "F32", "shape": [3], "data_offsets": [NaN, 16]}})",
       "a broken entry 'w', at which its header ceases to be JSON"},
      {R"({"w": {"dtype": "F32", "shape": [3], "data_offsets": [null, 12]}})", "a broken entry 'w': null is no size"},
      {R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}})",
       "'w': its data begins at byte 8, that before ends at 12"},
      {R"({"w": {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}})",
       "a broken entry 'w': shape and data_offsets are lists"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16.0]}})", "16.0 is no size"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}})", "'w': its offsets do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]}})", "'w': its offsets do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}})", "a broken entry 'w': -16 is no size"},
      {R"({"w": {"dtype": "F32", "shape": [1073741824, 4294967296, 4], "data_offsets": [0, 0]}})",
       "'w': its offsets do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}})",
       "'w': its data ends after that of the file, which is cut short"},
      {R"({"w": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}})",
       "'w': its data begins at byte 4, that before ends at 0"},
      {R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
       "'a': its data begins at byte 4, that before ends at 8"},
      {R"({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}})", "has 4 bytes that belong to no tensor"},
      {R"({"w": {"dtype": "F31", "shape": [2, 2], "data_offsets": [0, 16]}})",
       "a broken entry 'w': 'F31' is no dtype of the format"},
      {R"({"w": {"shape": [2, 2], "data_offsets": [0, 16]}})", "a broken entry 'w': key 'dtype' not found"},
      {R"({"w": {"dtype": 32, "shape": [2, 2], "data_offsets": [0, 16]}})", "a broken entry 'w'"},
      {R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       "has the tensor 'w' twice"},
      {R"({"__metadata__": {"a": {"b": "c"}}})", "has metadata 'a' of type object, but they are texts"},
      {R"({"__metadata__": {"a": 3}})", "has metadata 'a' of type number, but they are texts"},
      {R"({"__metadata__": ["a"]})", "has metadata that are no table of texts"},
      {R"([1])", "is no safetensors file"},
  };
  for (const auto& [header, text] : cases) {
    SCOPED_TRACE(header);
    const std::string path = damaged(folder, header, 16);
    const std::string message = message_of([&] { load_safetensors(path); });
    EXPECT_THAT(message, ::testing::HasSubstr(text));
    EXPECT_THAT(message, ::testing::HasSubstr(path));
  }
}

TEST(Safetensors, RefusesNestedHeadersWithoutRecursion) {
  const Folder folder;
  std::string header;
  for (const char* piece : {"{\"a\": ", "}"}) {
    for (int i = 0; i < 500000; ++i) header += piece;
    if (piece[0] == '{') header += "1";
  }
  for (const std::string& nested : {"{\"__metadata__\": " + header + "}", "{\"w\": " + header + "}", header}) {
    const std::string path = damaged(folder, nested, 16);
    const std::string message = message_of([&] { load_safetensors(path); });
    EXPECT_THAT(message, ::testing::HasSubstr(path));
    EXPECT_LT(message.size(), 1000);
  }
}

TEST(Safetensors, SaysWhyAFileCannotBeOpened) {
  const Folder folder;
  const at::Tensor x = at::ones({2});
  const auto saving = [&](const std::string& path) { return message_of([&] { save_safetensors(path, {{"x", x}}); }); };
  const auto loading = [&](const std::string& path) { return message_of([&] { load_safetensors(path); }); };
  std::filesystem::create_directory(folder / "inside");
  std::ofstream(folder / "file") << "text";

  const auto written = [&](const std::string& name) { return "safetensors: cannot write '" + (folder / name) + "': "; };
  EXPECT_EQ(saving(folder / "none/x"), written("none/x") + "No such file or directory\n  fix   make its folder first");
  EXPECT_EQ(saving(folder / "file/x"), written("file/x") + "Not a directory\n  fix   choose another name");
  EXPECT_THAT(saving(folder / "inside"), ::testing::HasSubstr("': Is a directory\n  fix   choose another name"));
  EXPECT_EQ(loading(folder / "none"),
            "safetensors: cannot open '" + (folder / "none") + "': No such file or directory");
  EXPECT_EQ(loading(folder / "inside"), "safetensors: cannot open '" + (folder / "inside") + "': it is a folder");
  if (geteuid() != 0) {
    std::filesystem::permissions(folder / "inside", std::filesystem::perms::owner_read);
    EXPECT_THAT(saving(folder / "inside/x"),
                ::testing::HasSubstr("': Permission denied\n  fix   change the permissions"));
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"file", "inside"}));
}

}  // namespace
}  // namespace moonhalo::io
