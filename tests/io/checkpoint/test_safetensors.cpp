// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/codecs/crc32c.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_safetensors {
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
      {R"({"w": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}})",
       "a broken entry 'w': -2 is not a size"},
      {R"({"w": {"dtype": "F32", "shape": [2, -2], "data_offsets": [0, 16]}})", "a broken entry 'w': -2 is not a size"},
      {R"({"w": {"dtype": "F32", "shape": [2.5, 2], "data_offsets": [0, 16]}})",
       "a broken entry 'w': 2.5 is not a size"},
      {R"({"w": {"dtype": "F32", "shape": ["2", 2], "data_offsets": [0, 16]}})",
       "a broken entry 'w': \"2\" is not a size"},
      {R"({"w": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 16]}})",
       "18446744073709551615 is not a size"},
      {R"({"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 16]}})",
       "a broken entry 'w', at which its header ceases to be JSON"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "w": {"dtype": "F32", "shape": [3], "data_offsets": [NaN, 16]}})",
       "a broken entry 'w', at which its header ceases to be JSON"},
      {R"({"w": {"dtype": "F32", "shape": [3], "data_offsets": [null, 12]}})",
       "a broken entry 'w': null is not a size"},
      {R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}})",
       "'w': its data begins at byte 8, that before ends at 12"},
      {R"({"w": {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}})",
       "a broken entry 'w': shape and data_offsets are lists"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16.0]}})", "16.0 is not a size"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}})", "'w': its offsets do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]}})", "'w': its offsets do not fit its shape"},
      {R"({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}})",
       "a broken entry 'w': -16 is not a size"},
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
       "a broken entry 'w': 'F31' is not a dtype of the format"},
      {R"({"w": {"shape": [2, 2], "data_offsets": [0, 16]}})", "a broken entry 'w': key 'dtype' not found"},
      {R"({"w": {"dtype": 32, "shape": [2, 2], "data_offsets": [0, 16]}})", "a broken entry 'w'"},
      {R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       "has the tensor 'w' twice"},
      {R"({"__metadata__": {"a": {"b": "c"}}})", "has metadata 'a' of type object, but they are strings"},
      {R"({"__metadata__": {"a": 3}})", "has metadata 'a' of type number, but they are strings"},
      {R"({"__metadata__": ["a"]})", "has metadata that are not a table of strings"},
      {R"([1])", "is not a safetensors file"},
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
  EXPECT_EQ(
      loading(folder / "none"),
      "safetensors: cannot open '" + (folder / "none") +
          "': No such file or directory\n  fix   correct the path, which begins in the folder where the program runs");
  EXPECT_EQ(loading(folder / "inside"), "safetensors: cannot open '" + (folder / "inside") + "': it is a folder");
  if (geteuid() != 0) {
    std::filesystem::permissions(folder / "inside", std::filesystem::perms::owner_read);
    EXPECT_THAT(saving(folder / "inside/x"),
                ::testing::HasSubstr("': Permission denied\n  fix   change the permissions"));
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"file", "inside"}));
}

TEST(Crc32c, IsThatOfTheRfcWholeOrInParts) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);  // RFC 3720, B.4
  std::string data(200001, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 11);
  for (const size_t step : {size_t{1}, size_t{7}, size_t{512}, size_t{24 << 10}, size_t{99999}, data.size()}) {
    uint32_t addends = 0;
    for (size_t at = 0; at < data.size(); at += step) {
      const size_t count = std::min(step, data.size() - at);
      addends ^= crc32c_addend(data.data() + at, count, data.size() - at - count);
    }
    EXPECT_EQ(crc32c_of_parts(addends, data.size()), crc32c(data.data(), data.size())) << step;
  }
  EXPECT_EQ(crc32c_of_parts(0, 0), crc32c("", 0));
}

// An addend before n more bytes is the addend of its four bytes before n - 4: so any distance is that of shorter ones.
TEST(Crc32c, PartsMayLieBeforeMoreBytesThan32BitsCount) {
  const uint64_t far = (uint64_t{5} << 32) + 12345;
  for (const uint64_t behind : {far, uint64_t{1} << 32, (uint64_t{1} << 32) - 1}) {
    uint32_t in_steps = crc32c_addend("moonhalo", 8, 0);
    for (uint64_t left = behind; left > 0;) {
      const uint64_t step = std::min<uint64_t>(left, uint64_t{1} << 30);
      in_steps = crc32c_addend(reinterpret_cast<const char*>(&in_steps), 4, step - 4);
      left -= step;
    }
    EXPECT_EQ(crc32c_addend("moonhalo", 8, behind), in_steps) << behind;
  }
}

TEST(Safetensors, X16FindsDataThatWereAltered) {
  const Folder folder;
  const std::string path = folder / "x.safetensors";
  save_safetensors(
      path, {{"a", at::ones({3}, at::kFloat)}, {"b", at::full({5}, 2, at::kComplexDouble)}, {"none", at::empty({0})}},
      {{"k", "v"}});
  const SafetensorsFile whole = load_safetensors(path);
  EXPECT_EQ(whole.metadata, (std::map<std::string, std::string>{{"k", "v"}}));
  EXPECT_TRUE(at::equal(whole.tensors[1].second, at::full({5}, 2, at::kComplexDouble)));
  std::string bytes = read_file("test", path);
  const auto put = [&](const std::string& text) { std::ofstream(path, std::ios::binary) << text; };
  std::string altered = bytes;
  altered[altered.size() - 5 * 16 - 1] ^= 1;
  put(altered);
  EXPECT_THAT(
      message_of([&] { load_safetensors(path); }),
      ::testing::HasSubstr("safetensors: '" + path + "' is damaged: the data of 'a' are not those that were saved"));
  altered = bytes;
  altered.back() ^= 64;
  put(altered);
  EXPECT_THAT(message_of([&] { load_safetensors(path); }), ::testing::HasSubstr("the data of 'b' are not those"));
  // A program that copied the metadata may have left tensors out, or know no sum.
  const size_t note = bytes.find(R"(\"a\":\")") + 8;
  altered[altered.size() - 1] ^= 64;
  altered[altered.size() - 5 * 16 - 1] ^= 1;
  altered.replace(note, 8, "--------");
  put(altered);
  EXPECT_NE(load_safetensors(path).tensors[0].second[2].item<float>(), 1);
  altered.replace(note, 8, "12345xyz");
  put(altered);
  EXPECT_THAT(message_of([&] { load_safetensors(path); }),
              ::testing::HasSubstr("has a broken checksum of 'a': 12345xyz"));
}

}  // namespace
}  // namespace moonhalo::io::test_safetensors
