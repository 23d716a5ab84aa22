// SPDX-License-Identifier: Apache-2.0
// Y03: files of PyTorch in C++, their damages, and pickles that would harm.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/pytorch/pt_file.h"
#include "moonhalo/io/pytorch/pt_names.h"
#include "moonhalo/io/pytorch/pt_write.h"
#include "moonhalo/io/pytorch/zip_writer.h"
#include "tests/support/folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_pt {
namespace {

using moonhalo::testing::Folder;
using moonhalo::testing::message_of;
using ::testing::HasSubstr;
using namespace std::string_literals;

/// A file of torch.save with this pickle, and one storage "0" of `floats` numbers.
std::string with_pickle(const Folder& folder, const std::string& pickle, int64_t floats = 4) {
  const std::string path = folder / "x.pt";
  const at::Tensor data = at::arange(floats, at::kFloat);
  ZipWriter archive("test", path);
  archive.add("x/data.pkl", pickle);
  archive.add("x/data/0", data.const_data_ptr(), data.nbytes());
  archive.finish();
  return path;
}

/// The instructions that make a tensor of floats: offset, size, stride, as one-digit numbers.
std::string tensor(const std::string& size, const std::string& stride, char offset = 0, char numel = 4) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"s + "0X\3\0\0\0cpuK"s +
         numel + "tQK" + offset + size + stride +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

TEST(PtFile, Y03_GivesTensorsWithTheirNames) {
  const Folder folder;
  const at::Tensor weight = at::arange(12, at::kDouble).reshape({3, 4});
  save_pt(folder / "x.pt", {{"net.weight", weight}, {"net.bias", weight[0].to(at::kBFloat16)}});

  const auto file = PtFile::open(folder / "x.pt");

  EXPECT_EQ(file->format(), "PyTorch, zip, pickle protocol 2");
  ASSERT_EQ(file->tensors().size(), 2u);
  const auto tensors = file->tensors();
  const auto& [name, stored] = tensors[0];
  EXPECT_EQ(name, "net.weight");
  EXPECT_TRUE(at::equal(file->read(stored), weight));
  io_stats() = {};
  EXPECT_TRUE(at::equal(file->read_block(stored, Box{{1, 3}, {0, 4}}), weight.narrow(0, 1, 2)));
  EXPECT_EQ(io_stats().stored, 8 * 8);
  EXPECT_TRUE(at::equal(file->read_block(stored, Box{{1, 3}, {2, 3}}), weight.narrow(0, 1, 2).narrow(1, 2, 1)));
  EXPECT_EQ(io_stats().stored, 10 * 8);
  EXPECT_EQ(file->read_block(stored, Box{{2, 2}, {0, 4}}).numel(), 0);
  EXPECT_EQ(file->tensors()[1].second.dtype, at::kBFloat16);
}

TEST(PtFile, Y03_TensorsOfOneStorageShareMemoryWhileInUse) {
  const Folder folder;
  const std::string two = "\x80\x02](" + tensor("K\2K\2\x86", "K\2K\1\x86") + tensor("K\4\x85", "K\1\x85") + "e.";
  const auto file = PtFile::open(with_pickle(folder, two));
  io_stats() = {};

  const at::Tensor square = file->read(file->tensors()[0].second), row = file->read(file->tensors()[1].second);
  square.zero_();

  EXPECT_TRUE(at::equal(row, at::zeros(4)));
  EXPECT_EQ(io_stats().stored, 16);
}

TEST(PtFile, Y03_OneStorageOfTwoSizesIsReadTwice) {
  const Folder folder;
  const std::string two = "\x80\x02](" + tensor("K\2\x85", "K\1\x85", 0, 2) + tensor("K\4\x85", "K\1\x85") + "e.";
  const auto file = PtFile::open(with_pickle(folder, two));

  const at::Tensor two_rows = file->read(file->tensors()[0].second), four_rows = file->read(file->tensors()[1].second);

  EXPECT_TRUE(at::equal(two_rows, at::arange(2, at::kFloat)));
  EXPECT_TRUE(at::equal(four_rows, at::arange(4, at::kFloat)));
}

TEST(PtFile, Y03_PicklesThatWouldRunCodeAreData) {
  const Folder folder;
  const std::string mark = folder / "harmed";
  const std::string command = "touch " + mark;
  const std::string pickle =
      "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c"s + static_cast<char>(command.size()) + command + "\x85R.";

  const auto file = PtFile::open(with_pickle(folder, pickle));

  const PickleValue& top = file->pickle().top();
  ASSERT_EQ(top.kind, PickleKind::kObject);
  EXPECT_EQ(pickle_class(file->pickle(), top), "posix.system");
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(PtFile, Y03_DamagedPicklesAreRefusedWithThePlace) {
  const Folder folder;
  const struct {
    std::string pickle, text;
  } cases[] = {
      {"", "it ends without its last instruction"},
      {"\x80\x02", "it ends without its last instruction"},
      {"\x80\x02.", "nothing is on its stack\n  have  instruction '.' at byte 2 of its pickle of 3 bytes"},
      {"\x80\x09.", "pickle protocol 9, known are 2 to 5"},
      {"\x80\x02u.", "no mark is on its stack\n  have  instruction 'u' at byte 2"},
      {"\x80\x02X\xff\xff\xff\x7f"
       "a.",
       "it announces"},
      {"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
       "a.",
       "of which it announces 18446744073709551615 bytes"},
      {"\x80\x02h\x07.", "it refers to value 7, which it did not make"},
      {"\x80\x02](K\1s.", "nothing is on its stack"},
      {"\x80\x02}(K\1u.", "a key without a value"},
      {"\x80\x02K\1K\2"
       "a.",
       "items for a value that is not a list"},
      {"\x80\x02K\1Q.", "a persistent id that is not one of a storage"},
      {"\x80\x02\x82\x01.", "an instruction that is not read\n  have  instruction 0x82 at byte 2"},
      {"\x80\x02"
       "cos\nsystem",
       "a name without an end"},
      {"\x80\x02"
       "cos\nsystem\nK\1R.",
       "a call whose arguments are not a tuple"},
      {"\x80\x02" + tensor("K\5\x85", "K\1\x85") + ".", "leave its storage of 4 elements"},
      {"\x80\x02" + tensor("K\4\x85", "K\1\x85", 1) + ".", "leave its storage of 4 elements"},
      {"\x80\x02" + tensor("K\4\x85", "K\1\x85", 0, 9) + ".", "its storage has 36 bytes, its entry 'x/data/0' 16"},
      {"\x80\x02" + tensor("K\2K\2\x86", "K\1\x85") + ".", "cannot be those of a tensor"},
      {"\x80\x02" + tensor("J\xff\xff\xff\xff\x85", "K\1\x85") + ".", "cannot be those of a tensor"},
      {"\x80\x02" + tensor("J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x87", "K\1K\1K\1\x87") + ".",
       "leave its storage"},
  };
  for (const auto& [pickle, text] : cases) {
    SCOPED_TRACE(pickle);
    const std::string path = with_pickle(folder, pickle);
    const std::string message = message_of([&] { PtFile::open(path); });
    EXPECT_THAT(message, HasSubstr(path));
    EXPECT_THAT(message, HasSubstr(text == "it announces" ? "of which it announces 2147483647 bytes" : text));
    EXPECT_THAT(message, HasSubstr("\n  fix   "));
  }
}

TEST(PtFile, Y03_ValuesThatContainThemselvesOrAreDeepHaveAnEnd) {
  const Folder folder;
  const std::string cycle = "\x80\x02]q\0h\0"s + "a.";
  const auto file = PtFile::open(with_pickle(folder, cycle));
  EXPECT_EQ(pt_names("x", file->pickle()).size(), 1u);

  const std::string deep = "\x80\x02" + std::string(100000, ']') + std::string(99999, 'a') + ".";
  const auto nested = PtFile::open(with_pickle(folder, deep));
  EXPECT_THAT(message_of([&] { pt_names("load: file \"x\"", nested->pickle()); }), HasSubstr("nested deeper than 200"));

  // Each list contains the one before twice: two to the power of 60 values, but 60 lists.
  std::string doubled = "\x80\x02]q\1";
  for (char i = 1; i < 60; ++i) doubled += "](h"s + i + "h" + i + "eq" + static_cast<char>(i + 1);
  const auto dag = PtFile::open(with_pickle(folder, doubled + "."));
  EXPECT_LT(pt_names("x", dag->pickle()).size(), 200u);
}

TEST(PtFile, Y03_SmallObjectsAreBounded) {
  const Folder folder;
  const std::string path = with_pickle(folder, "\x80\x02(" + std::string(8 << 20, ']') + "t.");
  EXPECT_THAT(message_of([&] { PtFile::open(path); }), HasSubstr("more small objects than are read"));
}

TEST(PtFile, Y03_DamagedArchivesAreRefused) {
  const Folder folder;
  const std::string path = folder / "x.pt";
  save_pt(path, {{"weight", at::arange(100, at::kFloat)}});
  const auto bytes = std::filesystem::file_size(path);

  for (const uintmax_t cut : {bytes - 1, bytes - 30, bytes / 2, uintmax_t{100}, uintmax_t{3}, uintmax_t{0}}) {
    SCOPED_TRACE(cut);
    std::filesystem::resize_file(path, cut);
    EXPECT_THAT(message_of([&] { PtFile::open(path); }), HasSubstr("load: file \"" + path + "\""));
  }
}

TEST(PtFile, Y03_FilesThatShrinkAreErrors) {
  const Folder folder;
  const std::string path = folder / "x.pt";
  save_pt(path, {{"weight", at::arange(100000, at::kFloat)}});
  const auto file = PtFile::open(path);
  std::filesystem::resize_file(path, 1000);

  EXPECT_THAT(message_of([&] { file->read(file->tensors()[0].second); }), HasSubstr(path));
}

}  // namespace
}  // namespace moonhalo::io::test_pt
