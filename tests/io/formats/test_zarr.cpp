// SPDX-License-Identifier: Apache-2.0
// Zarr folders made by hand; tests/formats compares with those that zarr-python and xarray write.
#include "moonhalo/io/formats/zarr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/formats/find_files.h"
#include "moonhalo/io/formats/zarr_json.h"
#include "tests/io/support/raw_file.h"
#include "tests/io/support/zarr_folder.h"

namespace moonhalo::io::test_zarr {
namespace {

using namespace testing;
using ::testing::HasSubstr;

struct Zarr : ::testing::Test {
  Folder folder;
  at::Tensor full = field({11, 13});
  ZarrFolder zarr;
  std::string path = folder / "x.zarr";

  File written() {
    zarr.write(path);
    return open(path);
  }
  std::string reading(const std::string& name) {
    return message_of([&] { open(path)[name].read(); });
  }
  std::string where(const std::string& name, const char* op = "read") {
    return std::string(op) + ": dataset \"" + name + "\" of file \"" + path + "\": ";
  }
};

TEST_F(Zarr, S18EveryCodecGivesWhatWasWritten) {
  zarr.files["zarr.json"] = kGroup3;
  zarr.add2("plain2", full, 4, 5, "null", plain_bytes);
  zarr.add2("blosc", full, 4, 5, kBlosc2, with_blosc);
  zarr.add2("gzip2", full, 4, 5, R"({"id": "gzip", "level": 6})", with_gzip);
  zarr.add3("plain3", full, 4, 5, "", plain_bytes);
  zarr.add3("zstd", full, 4, 5, kZstd3, with_zstd);
  zarr.add3("gzip", full, 4, 5, kGzip3, with_gzip);
  zarr.add3("crc", full, 4, 5, kCrc3, with_crc32c);
  zarr.add3("crc_in_zstd", full, 4, 5, std::string(kCrc3) + kZstd3, [](auto& b) { return with_zstd(with_crc32c(b)); });
  zarr.add_shards("shards", full, 2, 3, kZstd3, with_zstd);
  const File file = written();

  EXPECT_EQ(file.format(), "Zarr 3");
  EXPECT_EQ(to_string(file.attr("title")), "by hand");
  for (const std::string& name : file.datasets()) {
    SCOPED_TRACE(name);
    const Dataset data = file[name];
    EXPECT_EQ(data.units(), "K");
    EXPECT_EQ(data.dims()[0], "y");
    EXPECT_TRUE(at::equal(data.read(), full));
    EXPECT_TRUE(at::equal(data["2:9, ::3"].read(), full.slice(0, 2, 9).slice(1, 0, 13, 3)));
    EXPECT_TRUE(at::equal(data["7"].read({.dtype = at::kDouble}), full[7].to(at::kDouble)));
  }
  EXPECT_EQ(file.datasets().size(), 9);
  EXPECT_EQ(file["shards"].chunks(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file["shards"].filters(), (std::vector<std::string>{"sharding 2x2", "zstd 3"}));
  EXPECT_EQ(file["blosc"].filters(), (std::vector<std::string>{"blosc lz4 5"}));
}

/// A number alone has one chunk without a number, which may never have been written.
TEST_F(Zarr, S18NumbersAlone) {
  zarr.files["zarr.json"] = kGroup3;
  const std::string head =
      R"({"zarr_format": 3, "node_type": "array", "data_type": "float32", "fill_value": 2.5, "shape": [],)"
      R"( "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}}, "chunk_key_encoding": )"
      R"({"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]})";
  const float number = -7;
  zarr.files["never/zarr.json"] = zarr.files["written/zarr.json"] = head;
  zarr.files["written/c"] = {reinterpret_cast<const char*>(&number), sizeof number};
  zarr.files["never2/.zarray"] = zarr.files["written2/.zarray"] =
      R"({"zarr_format": 2, "dtype": "<f4", "fill_value": 2.5, "order": "F", "filters": null, "shape": [], "chunks": [], "compressor": null})";
  zarr.files["written2/0"] = zarr.files["written/c"];
  const File file = written();
  for (const std::string version : {"", "2"}) {
    EXPECT_TRUE(at::equal(file["never" + version].read(), at::full({}, 2.5f)));
    EXPECT_TRUE(at::equal(file["written" + version].read(), at::full({}, -7.f)));
    on_mesh({3}, [&](const MeshPtr& mesh) {
      EXPECT_EQ(full_tensor(scatter_tensor(open(path)["never" + version], mesh, {replicate()})).item<float>(), 2.5f);
    });
  }
}

TEST_F(Zarr, S18EveryChunkIsReadOnceOverAllRanks) {
  zarr.files["zarr.json"] = kGroup3;
  zarr.add3("steps", full, 1, 13, kZstd3, with_zstd);
  zarr.add_shards("shards", full, 2, 13, kZstd3, with_zstd);
  written();
  for (const std::string name : {"steps", "shards"}) {
    std::atomic<int64_t> chunks{0};
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const int64_t before = io_stats().chunks;
      const at::Tensor x = scatter_tensor(open(path)[name], mesh, {shard(1, {4, 0, 9})});
      chunks += io_stats().chunks - before;
      EXPECT_TRUE(at::equal(full_tensor(x), full));
    });
    EXPECT_EQ(chunks, name == "steps" ? 11 : 6);
  }
}

TEST_F(Zarr, ChunksThatWereNeverWrittenHaveTheFillValue) {
  zarr.files["zarr.json"] = kGroup3;
  zarr.add3("x", full, 4, 5, kZstd3, with_zstd);
  zarr.add_shards("shards", full, 2, 3, "", plain_bytes);
  zarr.files.erase("x/c/1/1");
  zarr.files.erase("shards/c/0/0");
  const File file = written();

  const at::Tensor x = file["x"].read(), shards = file["shards"].read();
  EXPECT_TRUE(x.slice(0, 4, 8).slice(1, 5, 10).isnan().all().item<bool>());
  EXPECT_EQ(x.isnan().sum().item<int64_t>(), 20);
  EXPECT_EQ(shards.slice(0, 0, 4).slice(1, 0, 6).isnan().sum().item<int64_t>(), 24);
  EXPECT_EQ(shards.isnan().sum().item<int64_t>(), 24);
}

TEST_F(Zarr, DamagedChunksAreNamedOnEveryRank) {
  zarr.files["zarr.json"] = kGroup3;
  for (const std::string name : {"cut", "empty", "long"}) zarr.add3(name, full, 4, 5, kZstd3, with_zstd);
  zarr.files["cut/c/1/2"].pop_back();
  zarr.files["empty/c/1/2"].clear();
  zarr.files["long/c/1/2"] = with_zstd(std::string(81, 'x'));
  zarr.add3("sum", full, 4, 5, kCrc3, with_crc32c);
  zarr.files["sum/c/1/2"][7] ^= 1;
  zarr.add3("plain", full, 4, 5, "", plain_bytes);
  zarr.files["plain/c/1/2"].pop_back();
  zarr.add2("blosc", full, 4, 5, kBlosc2, with_blosc);
  zarr.files["blosc/1.2"].pop_back();
  zarr.add_shards("index", full, 2, 3, "", plain_bytes);
  zarr.files["index/c/1/2"].end()[-9] ^= 1;
  zarr.add_shards("short", full, 2, 3, "", plain_bytes);
  zarr.files["short/c/1/2"].resize(30);
  written();
  std::filesystem::remove(path + "/empty/c/0/0");
  std::filesystem::create_directories(path + "/empty/c/0/0");
  const std::map<std::string, std::string> damage = {
      {"cut", "its 83 stored bytes are not a whole zstd stream of 80"},
      {"long", "are not a whole zstd stream of 80: Destination buffer is too small"},
      {"sum", "its CRC-32C checksum does not match its bytes"},
      {"plain", "its 79 stored bytes are all there is, not 80"},
      {"blosc", "stored bytes are not a whole blosc stream"},
      {"index", "whose index does not match its CRC-32C checksum"},
      {"short", "of 30 bytes, fewer than its index has"}};
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const File file = open(path);
    for (const auto& [name, text] : damage) {
      const std::string message = message_of([&, &name = name] {
        scatter_tensor(file[name], mesh, {shard(1, {4, 0, 9})});
      });
      EXPECT_THAT(message, HasSubstr("dataset \"" + name + "\" of file \"" + path + "\": chunk ["));
      if (name != "cut") EXPECT_THAT(message, HasSubstr(text));
      EXPECT_THAT(message, HasSubstr("\n  fix   take another copy of the file, or write it again"));
    }
  });
  EXPECT_THAT(reading("empty"), HasSubstr("which is not a file"));
}

TEST_F(Zarr, CodecsThatAreNotKnownAreNamed) {
  zarr.files["zarr.json"] = kGroup3;
  zarr.add3("bz2", full, 4, 5, R"(, {"name": "numcodecs.bz2"})", plain_bytes);
  zarr.add3("twice", full, 4, 5, std::string(kGzip3) + kZstd3, plain_bytes);
  zarr.add2("delta", full, 4, 5, R"({"id": "delta", "dtype": "<f4", "astype": "<f2"})", plain_bytes);
  zarr.add2("turned", full, 4, 5, R"({"id": "delta", "dtype": ">f4"})", plain_bytes);
  zarr.add2("no_scale", full, 4, 5,
            R"({"id": "fixedscaleoffset", "dtype": "<f4", "astype": "<i2", "scale": 0, "offset": 1})", plain_bytes);
  zarr.add2("quantize", full, 4, 5, R"({"id": "quantize", "dtype": "<f4", "astype": "<f8", "digits": 2})", plain_bytes);
  zarr.add3("late", full, 4, 5, R"(, {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}})", plain_bytes);
  zarr.add2("good", full, 4, 5, "null", plain_bytes);
  const File file = written();

  EXPECT_TRUE(at::equal(file["good"].read(), full));
  const std::map<std::string, std::string> refused = {
      {"bz2", "compressed with \"bz2\", a codec that is not known here"},
      {"twice", "compressed twice"},
      {"delta", "codec \"delta\" from float32 to float16"},
      {"turned", "codec \"delta\" from float32 to float32"},
      {"no_scale", "codec \"fixedscaleoffset\" from float32 to int16"},
      {"quantize", "codec \"quantize\" from float32 to float64"},
      {"late", "compressed with \"delta\", a codec that is not known here"}};
  for (const auto& [name, text] : refused) {
    EXPECT_EQ(first_line(reading(name)), where(name) + text);
    EXPECT_THAT(reading(name), HasSubstr("\n  fix   write it again"));
    EXPECT_EQ(file[name].shape(), (std::vector<int64_t>{11, 13}));
  }
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const std::string message = message_of([&] { scatter_tensor(open(path)["bz2"], mesh, {shard(0)}); });
    EXPECT_EQ(first_line(message), where("bz2") + refused.at("bz2"));
  });
}

TEST_F(Zarr, DamagedMetadataIsRefusedWhereItIsUsed) {
  for (const char* name : {"text", "dtype", "shape", "huge", "json", "good"})
    zarr.add2(name, full, 4, 5, "null", plain_bytes);
  const auto change = [&](const std::string& name, const std::string& from, const std::string& to) {
    std::string& text = zarr.files[name + "/.zarray"];
    text.replace(text.find(from), from.size(), to);
  };
  change("text", "\"<f4\"", "\"|O\"");
  change("dtype", "\"<f4\"", "\"<f5x\"");
  change("shape", "[11, 13]", "[11]");
  change("huge", "[4, 5]", "[1152921504606846976, 1152921504606846976]");
  change("json", "{", "");
  zarr.files[".zmetadata"] = R"({"metadata": {"gone/.zarray": {}, "good/.zarray": {}}})";
  zarr.files["zarr.json"] =
      std::string(kGroup3).insert(1, R"("consolidated_metadata": {"metadata": {"gone": {"node_type": "array"}}}, )");
  const File file = written();

  EXPECT_TRUE(at::equal(file["good"].read(), full));
  EXPECT_EQ(first_line(reading("text")), where("text") + "elements of type object are not read");
  const std::map<std::string, std::string> broken = {
      {"dtype", "dtype \"<f5x\""},
      {"shape", "chunks of another number of dims than the array"},
      {"huge", "chunks of more bytes than there can be"},
      {"json", "file \"" + path + "/json/.zarray\", which is not a JSON object"},
      {"gone", "consolidated metadata that name it, and no folder of it"}};
  for (const auto& [name, text] : broken) {
    EXPECT_EQ(first_line(reading(name)), where(name, "open") + "damaged, cannot be opened");
    EXPECT_THAT(reading(name), HasSubstr("\n  have  " + text + "\n  fix   copy or download it again"));
    EXPECT_TRUE(file.has(name));
  }
}

/// The least and greatest number of a type fill, one more does not.
TEST_F(Zarr, FillValuesMustBeNumbersOfTheType) {
  struct Fill {
    const char *type, *value;
    bool fits;
  };
  const Fill fills[] = {{"|i1", "127", true},
                        {"|i1", "128", false},
                        {"|i1", "-128", true},
                        {"|i1", "-129", false},
                        {"|u1", "255", true},
                        {"|u1", "256", false},
                        {"|u1", "-1", false},
                        {"<i2", "32767", true},
                        {"<i2", "40000", false},
                        {"<u2", "65535", true},
                        {"<i4", "2147483647", true},
                        {"<i4", "2147483648", false},
                        {"<u4", "4294967295", true},
                        {"<i8", "9223372036854775807", true},
                        {"<i8", "9223372036854775808", false}};
  for (const Fill& fill : fills) {
    zarr.files = {{".zgroup", R"({"zarr_format": 2})"},
                  {"x/.zarray", R"({"zarr_format": 2, "dtype": ")" + std::string(fill.type) + R"(", "fill_value": )" +
                                    fill.value + R"(, "order": "C", "filters": null, "shape": [2], "chunks": [2], )" +
                                    R"("compressor": null})"}};
    std::filesystem::remove_all(path);
    zarr.write(path);
    const std::string message = reading("x");
    if (fill.fits) {
      EXPECT_EQ(message, "") << fill.type;
      EXPECT_EQ(std::to_string(open(path)["x"].read().to(at::kDouble)[1].item<double>()),
                std::to_string(std::stod(fill.value)));
    } else {
      EXPECT_THAT(message, HasSubstr(std::string("fill value ") + fill.value)) << fill.type;
    }
  }
}

TEST_F(Zarr, AnArrayByItselfBearsItsFoldersName) {
  zarr.add3("sst", full, 4, 5, "", plain_bytes);
  zarr.write(path);

  EXPECT_TRUE(at::equal(open(path + "/sst")["sst"].read(), full));
  EXPECT_TRUE(at::equal(open(path + "/sst/")["sst"].read(), full));
  EXPECT_EQ(find_files(path + "/sst"), std::vector<std::string>{path + "/sst"});
  EXPECT_EQ(first_line(message_of([&] { open(path); })), "open: \"" + path + "\" is a folder");
  zarr.files = {{"zarr.json", "{"}};
  EXPECT_EQ(first_line(message_of([&] { written(); })),
            "open: Zarr folder \"" + path + "\": damaged, cannot be opened");
}

/// Links may stay within the folder: a chunk, a folder of chunks, an array, its metadata.
TEST_F(Zarr, Y21LinksThatLeadOutsideAreRefusedUnlessAllowed) {
  namespace fs = std::filesystem;
  zarr.files["zarr.json"] = zarr.files["group/zarr.json"] = kGroup3;
  for (const char* name : {"chunk", "row", "chunks", "meta", "inside", "group/deep"})
    zarr.add3(name, full, 4, 5, kZstd3, with_zstd);
  zarr.add_shards("shard", full, 2, 3, kZstd3, with_zstd);
  zarr.add2("old", full, 4, 5, "null", plain_bytes);
  written();
  auto move_out = [&, count = 0](const std::string& name) mutable {
    const std::string there = folder / ("outside" + std::to_string(count++));
    fs::rename(path + "/" + name, there);
    fs::create_symlink(there, path + "/" + name);
  };
  for (const char* name :
       {"chunk/c/1/1", "row/c/0", "chunks/c", "meta/zarr.json", "shard/c/1/2", "old/0.0", "group/deep"})
    move_out(name);
  fs::create_symlink("inside", path + "/array");
  fs::rename(path + "/inside/c/0/1", path + "/inside/c/moved");
  fs::create_symlink("../moved", path + "/inside/c/0/1");
  fs::create_symlink(folder / "nowhere", path + "/nothing");
  fs::create_symlink(path, folder / "link.zarr");
  const File allowed = open(path, "r", {.allow_external = true});
  for (const std::string name : {"chunk", "row", "chunks", "meta", "shard", "old", "group/deep"}) {
    SCOPED_TRACE(name);
    const bool at_open = name == "meta" || name == "group/deep";
    const std::string message = reading(name);
    EXPECT_EQ(first_line(message), where(name, at_open ? "open" : "read") + "a link leads outside the Zarr folder");
    EXPECT_THAT(message, HasSubstr("\", which leads to \"" + (folder / "outside")));
    EXPECT_THAT(message, HasSubstr("\n  fix   if you trust the folder, open it with allow_external = true"));
    EXPECT_TRUE(at::equal(allowed[name].read(), full));
  }
  for (const char* name : {"inside", "array"}) {
    EXPECT_TRUE(at::equal(open(path)[name].read(), full)) << name;
    EXPECT_TRUE(at::equal(open(folder / "link.zarr")[name].read(), full)) << name;
  }
  move_out("zarr.json");
  EXPECT_EQ(first_line(message_of([&] { open(path); })),
            "open: Zarr folder \"" + path + "\": a link leads outside the Zarr folder");
}

/// Four links to itself are 4^16 groups for whoever follows them.
TEST_F(Zarr, Y21AGroupIsReadUnderOneName) {
  namespace fs = std::filesystem;
  zarr.files["zarr.json"] = zarr.files["z/zarr.json"] = zarr.files["z/below/zarr.json"] = kGroup3;
  zarr.add3("z/x", full, 4, 5, kZstd3, with_zstd);
  written();
  for (const std::string number : {"0", "1", "2", "3"}) {
    fs::create_symlink(".", path + "/self" + number);
    fs::create_symlink("../..", path + "/z/below/up" + number);
  }
  fs::create_symlink("z", path + "/a");
  fs::create_symlink(path, folder / "whole");
  for (const std::string& place : {path, folder / "whole"}) {
    for (const bool allow : {false, true}) {
      const File file = open(place, "r", {.allow_external = allow});
      EXPECT_EQ(file.datasets().size(), 1 + 4 + 4 + 1);
      EXPECT_TRUE(at::equal(file["z/x"].read(), full));
      EXPECT_THAT(message_of([&] { file["self2"]; }), HasSubstr("self2\", which leads to the group \"/\""));
      EXPECT_THAT(message_of([&] { file["a"]; }),
                  HasSubstr("a link to a group that has another name, too\n  have  \"" + place +
                            "/a\", which leads to the group \"/z\"\n  fix   use that name"));
    }
  }
}

TEST(ZarrJson, NumbersThatJsonDoesNotHaveAreRead) {
  const Folder folder;
  std::ofstream(folder / "a.json")
      << R"({"a": NaN, "b": [1, -Infinity, Infinity], "c": "NaN", "d": "say \"NaN\"", "e": true, "f": {"g": null}})";
  const auto attributes = plain(attributes_of(read_json(folder / "a.json", FolderReach(folder / "", false))));

  EXPECT_TRUE(std::isnan(std::get<double>(attributes.at("a"))));
  EXPECT_EQ(to_string(attributes.at("b")), to_string(AttributeValue(std::vector<double>{1, -HUGE_VAL, HUGE_VAL})));
  EXPECT_EQ(to_string(attributes.at("c")), "NaN");
  EXPECT_EQ(to_string(attributes.at("d")), "say \"NaN\"");
  EXPECT_EQ(std::get<bool>(attributes.at("e")), true);
  EXPECT_EQ(to_string(attributes.at("f")), R"({"g":null})");
}

}  // namespace
}  // namespace moonhalo::io::test_zarr
