// SPDX-License-Identifier: Apache-2.0
// NetCDF-3 files made by hand; tests/formats compares with those that other programs write.
#include "moonhalo/io/formats/netcdf3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/fields/strings.h"
#include "tests/io/support/classic_file.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::io::test_netcdf3 {
namespace {

using namespace testing;
using namespace std::string_literals;

void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

const std::map<uint32_t, at::ScalarType> kDtypes = {
    {1, at::kChar}, {3, at::kShort},  {4, at::kInt},    {5, at::kFloat}, {6, at::kDouble},
    {7, at::kByte}, {8, at::kUInt16}, {9, at::kUInt32}, {10, at::kLong}, {11, at::kUInt64}};

struct NetCdf3 : ::testing::TestWithParam<int> {
  Folder folder;
  std::string path = folder / "x.nc";
  NetCdf3() { put(path, classic_example(GetParam()).bytes()); }
};

TEST_P(NetCdf3, S18EveryTypeIsReadAsItWasWritten) {
  const File file = open(path);

  for (const auto& [type, dtype] : kDtypes) {
    if (GetParam() != 5 && type > 6) continue;
    const std::string id = std::to_string(type);
    const at::Tensor fixed = at::arange(15).reshape({3, 5}).to(dtype), rows = at::arange(20).reshape({4, 5}).to(dtype);
    ASSERT_EQ(file["fixed" + id].dtype(), dtype);
    EXPECT_TRUE(at::equal(file["fixed" + id].read(), fixed));
    EXPECT_TRUE(at::equal(file["rows" + id].read(), rows));
    for (const char* slice : {"1:, ::2", "::2, 1:4:2", "2, :", ":, 3", "1:1, :"}) {
      SCOPED_TRACE(slice);
      const File h5 = [&] {
        File out = open(folder / "same.h5", "w");
        out.write("rows", rows.to(at::kDouble));
        out.close();
        return open(folder / "same.h5");
      }();
      EXPECT_TRUE(at::equal(file["rows" + id][slice].read({.dtype = at::kDouble}), h5["rows"][slice].read()));
    }
  }
  EXPECT_EQ(read_strings(file["rows2"]["0"]), (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(file["one"].read().item<int>(), 7);
  EXPECT_EQ(file["one"].shape(), std::vector<int64_t>{});
  EXPECT_TRUE(at::equal(file["time"].read(), at::arange(4, at::kDouble)));
}

TEST_P(NetCdf3, TheHeadIsThatOfAnyFile) {
  const File file = open(path);

  EXPECT_EQ(file.format(), GetParam() == 1   ? "NetCDF-3 (classic)"
                           : GetParam() == 2 ? "NetCDF-3 (64-bit offsets)"
                                             : "NetCDF-3 (64-bit data)");
  EXPECT_EQ(to_string(file.attr("title")), "abc");
  EXPECT_EQ(file["rows5"].dims(), (std::vector<std::string>{"time", "x"}));
  EXPECT_EQ(file["fixed3"].units(), "K");
  EXPECT_TRUE(file.has("fixed3") && !file.has("fixed33") && file.is_group("/"));
  EXPECT_EQ(file.keys(), file.datasets());
  const at::Tensor decoded = file["fixed3"].read({.decode = true});
  EXPECT_EQ(decoded.scalar_type(), at::kDouble);
  EXPECT_TRUE(decoded[0][3].isnan().item<bool>());
  EXPECT_EQ(decoded[1][4].item<double>(), 4.5);
}

TEST_P(NetCdf3, S18BlocksAreReadByTheirRanks) {
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const File file = open(path);
    io_stats() = {};
    const at::Tensor rows = scatter_tensor(file["rows5"], mesh, {shard(0, {1, 0, 3})});
    EXPECT_EQ(io_stats().asked, to_local(rows).numel() * 4);
    EXPECT_TRUE(at::equal(full_tensor(rows), at::arange(20, at::kFloat).reshape({4, 5})));
    const at::Tensor columns = scatter_tensor(file["fixed6"]["1:, ::2"], mesh, {shard(1, {1, 1, 1})});
    EXPECT_TRUE(
        at::equal(full_tensor(columns), at::arange(15, at::kDouble).reshape({3, 5}).slice(0, 1).slice(1, 0, 5, 2)));
  });
}

TEST_P(NetCdf3, LendsItsCoordinatesToWhatIsWrittenLikeIt) {
  File out = open(folder / "out.nc", "w");
  out.write("y", at::zeros({2, 5}), {.like = std::make_shared<Selection>(open(path)["rows5"]["1:3"])});
  out.close();

  const File back = open(folder / "out.nc");
  EXPECT_EQ(back["y"].dims(), (std::vector<std::string>{"time", "x"}));
  EXPECT_TRUE(at::equal(back["time"].read(), at::arange(1, 3, at::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(Versions, NetCdf3, ::testing::Values(1, 2, 5));

TEST(NetCdf3Records, OfOneVariableAreNotFilledUp) {
  const Folder folder;
  ClassicFile file(1);
  file.dims = {{"t", 0}, {"x", 3}};
  file.records = 2;
  file.variables = {{"v", {0, 1}, 1, std::string("\1\2\3\4\5\6", 6)}};
  put(folder / "x.nc", file.bytes());

  EXPECT_TRUE(at::equal(open(folder / "x.nc")["v"].read(), at::arange(1, 7).reshape({2, 3}).to(at::kChar)));
}

TEST(NetCdf3Records, OfAFileBeingWrittenAreThoseThatAreThere) {
  const Folder folder;
  ClassicFile file(1);
  file.dims = {{"t", 0}};
  file.records = 3;
  file.variables = {{"v", {0}, 4, ClassicFile::number(5, 4) + ClassicFile::number(6, 4) + ClassicFile::number(7, 4)}};
  put(folder / "x.nc", file.bytes().replace(4, 4, "\xff\xff\xff\xff"));

  EXPECT_TRUE(at::equal(open(folder / "x.nc")["v"].read(), at::tensor({5, 6, 7}, at::kInt)));
}

TEST(NetCdf3Errors, AreClearAndTheSameOnEveryRank) {
  const Folder folder;
  const std::string bytes = classic_example(1).bytes();
  put(folder / "cut.nc", bytes.substr(0, bytes.size() - 6));
  const std::string where = "read: dataset \"time\" of file \"" + (folder / "cut.nc") + "\"";
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const File file = open(folder / "cut.nc");
    const std::string message = message_of([&] { scatter_tensor(file["time"], mesh, {shard(0)}); });
    EXPECT_EQ(first_line(message), where + ": the file is cut short");
    EXPECT_THAT(message, ::testing::HasSubstr("\n  fix   copy or download it again"));
    EXPECT_EQ(to_local(scatter_tensor(file["fixed5"], mesh, {replicate()})).numel(), 15);
  });
  const std::vector<std::pair<std::string, std::string>> heads = {
      {bytes.substr(0, 70), "it ends too early"},
      {std::string(bytes).replace(8, 4, "\0\0\0\7"s), "no list of dimensions"},
      {std::string(bytes).replace(12, 4, "\x7f\0\0\0"s), "a name that is none"},
      {std::string(bytes).replace(16, 4, "\x7f\0\0\0"s), "a string of 2130706432 bytes, more than there are"},
  };
  for (const auto& [head, damage] : heads) {
    put(folder / "head.nc", head);
    const std::string message = message_of([&] { open(folder / "head.nc"); });
    EXPECT_EQ(first_line(message), "open: file \"" + (folder / "head.nc") + "\": damaged NetCDF-3 head");
    EXPECT_THAT(message, ::testing::HasSubstr("\n  have  " + damage));
  }
}

// Sizes have a sign in the format, and NetCDF's library gives as many rows as the bits say without it (E20).
TEST(NetCdf3Errors, X18SizesBelowZeroAreRefused) {
  const Folder folder;
  for (const int version : {1, 2, 5}) {
    ClassicFile file(version);
    file.dims = {{"x", ~uint64_t{0} - 4}};
    file.variables = {{"v", {0}, 1, "abcd"}};
    put(folder / "x.nc", file.bytes());
    EXPECT_THAT(message_of([&] { open(folder / "x.nc"); }),
                ::testing::HasSubstr(": damaged NetCDF-3 head\n  have  dimension \"x\" of negative size -5, "));
    ClassicFile rows(version);
    rows.dims = {{"t", 0}, {"x", 2}};
    rows.records = 2;
    rows.variables = {{"v", {0, 1}, 1, "abcd"}};
    const std::string bytes = rows.bytes();
    put(folder / "x.nc", "CDF" + std::string(1, static_cast<char>(version)) +
                             std::string(version == 5 ? 7 : 3, '\xff') + '\xfd' + bytes.substr(version == 5 ? 12 : 8));
    EXPECT_THAT(message_of([&] { open(folder / "x.nc"); }), ::testing::HasSubstr("\n  have  -3 records, "));
  }
}

// NetCDF's library writes them into files with 64-bit offsets.
TEST(NetCdf3, X18SizesBeyondAnIntOfFilesWith64BitOffsetsAreRead) {
  const Folder folder;
  ClassicFile file(2);
  const uint64_t size = (uint64_t{1} << 31) + 4;
  file.dims = {{"x", size}};
  file.variables = {{"v", {0}, 1, ""}};
  put(folder / "x.nc", file.bytes());
  std::filesystem::resize_file(folder / "x.nc", file.bytes().size() + size);

  EXPECT_EQ(open(folder / "x.nc")["v"].shape(), std::vector<int64_t>{static_cast<int64_t>(size)});
}

TEST(NetCdf3Errors, NumbersThatDoNotFitAreRefused) {
  const Folder folder;
  ClassicFile file(1);
  file.dims = {{"x", 2}};
  file.variables = {{"v", {0}, 3, ClassicFile::number(5, 2) + ClassicFile::number(300, 2)}};
  put(folder / "x.nc", file.bytes());
  const Dataset data = open(folder / "x.nc")["v"];

  EXPECT_TRUE(at::equal(data.read({.dtype = at::kInt}), at::tensor({5, 300}, at::kInt)));
  EXPECT_EQ(first_line(message_of([&] { data.read({.dtype = at::kByte}); })),
            "read: dataset \"v\" of file \"" + (folder / "x.nc") + "\": a value does not fit dtype uint8");
  EXPECT_THAT(message_of([&] { open(folder / "x.nc", "a"); }), ::testing::HasSubstr("nccopy -k nc4"));
}

}  // namespace
}  // namespace moonhalo::io::test_netcdf3
