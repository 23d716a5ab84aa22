// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/fields/strings.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_read {
namespace {

using namespace testing;

/// A little NetCDF-4 file: dimension scales, units, chunks.
std::string make_air(const Folder& folder) {
  const std::string path = folder / "air.nc";
  RawFile file(path);
  file.floats("air", field({6, 5, 7}), {.chunks = {1, 5, 7}});
  file.floats("time", at::arange(6));
  file.floats("latitude", at::arange(5));
  file.floats("longitude", at::arange(7));
  file.scales("air", {"time", "latitude", "longitude"});
  file.text("air", "units", "K");
  file.text("/", "Conventions", "CF-1.5");
  H5Gclose(H5Gcreate2(file.id(), "ocean", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  file.floats("ocean/sst", field({2, 3}));
  return path;
}

TEST(File, NamesDatasetsDimensionsUnitsAndAttributes) {
  const Folder folder;
  const File file = open(make_air(folder));

  const Dataset air = file["air"];

  EXPECT_EQ(file.keys(), (std::vector<std::string>{"air", "latitude", "longitude", "ocean", "time"}));
  EXPECT_EQ(file.keys("ocean"), std::vector<std::string>{"sst"});
  EXPECT_EQ(file.datasets(), (std::vector<std::string>{"air", "latitude", "longitude", "ocean/sst", "time"}));
  EXPECT_TRUE(file.has("/ocean/sst") && file.has("ocean") && file.is_group("ocean"));
  EXPECT_FALSE(file.has("ocean/air") || file.has("air/x") || file.is_group("air"));
  EXPECT_EQ(std::get<std::string>(file.attr("Conventions")), "CF-1.5");
  EXPECT_EQ(air.shape(), (std::vector<int64_t>{6, 5, 7}));
  EXPECT_EQ(air.chunks(), (std::vector<int64_t>{1, 5, 7}));
  EXPECT_EQ(air.dtype(), at::kFloat);
  EXPECT_EQ(air.type_name(), "float32");
  EXPECT_EQ(air.dims(), (std::vector<std::string>{"time", "latitude", "longitude"}));
  EXPECT_EQ(air["0, 1:3"].dims(), (std::vector<std::string>{"latitude", "longitude"}));
  EXPECT_EQ(file["time"].dims(), std::vector<std::string>{"time"});
  EXPECT_EQ(air.units(), "K");
  EXPECT_EQ(file["time"].units(), "");
  EXPECT_EQ(air.attrs().size(), 1u);  // not those that NetCDF keeps for itself
  EXPECT_EQ(file["//ocean//sst/"].name(), "ocean/sst");
}

/// Every number type and byte order that a file may hold, with values at the ends of its range.
TEST(File, ReadsEveryNumberType) {
  const Folder folder;
  struct Case {
    const char* name;
    hid_t little, big, memory;
    at::ScalarType dtype;
    std::vector<double> values;
  };
  const std::vector<Case> cases = {
      {"int8", H5T_STD_I8LE, H5T_STD_I8BE, H5T_NATIVE_DOUBLE, at::kChar, {-128, 0, 127}},
      {"uint8", H5T_STD_U8LE, H5T_STD_U8BE, H5T_NATIVE_DOUBLE, at::kByte, {0, 1, 255}},
      {"int16", H5T_STD_I16LE, H5T_STD_I16BE, H5T_NATIVE_DOUBLE, at::kShort, {-32768, 5, 32767}},
      {"uint16", H5T_STD_U16LE, H5T_STD_U16BE, H5T_NATIVE_DOUBLE, at::kUInt16, {0, 258, 65535}},
      {"int32", H5T_STD_I32LE, H5T_STD_I32BE, H5T_NATIVE_DOUBLE, at::kInt, {-2147483648., 7, 2147483647}},
      {"uint32", H5T_STD_U32LE, H5T_STD_U32BE, H5T_NATIVE_DOUBLE, at::kUInt32, {0, 7, 4294967295}},
      {"int64", H5T_STD_I64LE, H5T_STD_I64BE, H5T_NATIVE_DOUBLE, at::kLong, {-9e15, 7, 9e15}},
      {"uint64", H5T_STD_U64LE, H5T_STD_U64BE, H5T_NATIVE_DOUBLE, at::kUInt64, {0, 7, 9e15}},
      {"float32", H5T_IEEE_F32LE, H5T_IEEE_F32BE, H5T_NATIVE_DOUBLE, at::kFloat, {-1.5, 0, 3e38f}},
      {"float64", H5T_IEEE_F64LE, H5T_IEEE_F64BE, H5T_NATIVE_DOUBLE, at::kDouble, {-1.5, 0.1, 1e300}},
  };
  const std::string path = folder / "types.h5";
  {
    RawFile raw(path);
    for (const auto& c : cases) {
      raw.dataset(std::string(c.name) + "_le", c.little, c.memory, {3}, c.values.data());
      raw.dataset(std::string(c.name) + "_be", c.big, c.memory, {3}, c.values.data(), {.chunks = {2}, .gzip = 1});
    }
    raw.dataset("scalar", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {}, cases.back().values.data());
    raw.dataset("empty", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {0, 4}, nullptr);
    raw.dataset("unwritten", H5T_STD_I32LE, H5T_NATIVE_INT32, {3}, nullptr);
  }
  const File file = open(path);

  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const at::Tensor expected = at::tensor(c.values, at::kDouble);
    for (const char* suffix : {"_le", "_be"}) {
      const Dataset dataset = file[c.name + std::string(suffix)];
      EXPECT_EQ(dataset.dtype(), c.dtype);
      EXPECT_EQ(dataset.type_name(), c.name);
      const at::Tensor read = dataset.read();
      EXPECT_EQ(read.scalar_type(), c.dtype);
      EXPECT_TRUE(at::equal(read.to(at::kDouble), expected)) << suffix << read.to(at::kDouble);
      EXPECT_TRUE(at::equal(dataset.read({.dtype = at::kDouble}), expected)) << suffix;
    }
  }
  EXPECT_EQ(file["scalar"].read().item<double>(), -1.5);
  EXPECT_EQ(file["empty"].read().sizes().vec(), (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(at::equal(file["unwritten"].read(), at::zeros({3}, at::kInt)));
}

/// A selection read from a contiguous file (positioned reads), from chunks and from swapped bytes
/// is PyTorch's slice of it.
TEST(Selection, ReadsWhatPyTorchSlices) {
  const Folder folder;
  const std::string path = folder / "layouts.h5";
  const at::Tensor x = field({13, 9, 40, 33});
  {
    RawFile raw(path, 512);  // a userblock shifts every address in the file
    raw.floats("contiguous", x);
    raw.floats("chunks", x, {.chunks = {3, 4, 40, 5}});
    raw.floats("gzip", x, {.chunks = {5, 9, 7, 33}, .gzip = 4});
    raw.floats("swapped", x, {}, H5T_IEEE_F32BE);
  }
  const std::vector<std::pair<const char*, at::Tensor>> cases = {
      {"...", x},
      {"5:9", x.slice(0, 5, 9)},
      {"2:11:3", x.slice(0, 2, 11, 3)},
      {":, 1:8:2, 3:30", x.slice(1, 1, 8, 2).slice(2, 3, 30)},
      {"..., 4:20", x.slice(3, 4, 20)},
      {"..., 32", x.select(3, 32)},
      {"..., ::7", x.slice(3, 0, 33, 7)},
      {"12, -1, :, 5:6", x.select(0, 12).select(0, 8).slice(1, 5, 6)},
      {"1:4, 2, 3:39:9, 1:33", x.slice(0, 1, 4).select(1, 2).slice(1, 3, 39, 9).slice(2, 1)},
      {"4:4", x.slice(0, 4, 4)},
      {"3, 4, 5, 6", x[3][4][5][6]},
  };
  const File file = open(path);

  for (const char* name : {"contiguous", "chunks", "gzip", "swapped"}) {
    for (const auto& [text, expected] : cases) {
      SCOPED_TRACE(std::string(name) + "[" + text + "]");
      const Selection part = file[name][text];
      EXPECT_EQ(part.shape(), expected.sizes().vec());

      const int64_t before = bytes_read();
      const at::Tensor read = part.read();

      EXPECT_EQ(bytes_read() - before, expected.numel() * 4);
      EXPECT_TRUE(at::equal(read, expected));
      EXPECT_TRUE(at::equal(part.read({.dtype = at::kDouble}), expected.to(at::kDouble)));
      EXPECT_TRUE(at::equal(part.read({.dtype = at::kHalf}), expected.to(at::kHalf)));
    }
  }
  const Selection part = file["gzip"]["2:11, :, ::2"].narrow(-1, 3, 20)["1:, 0"];
  EXPECT_TRUE(at::equal(part.read(), x.slice(0, 3, 11).select(1, 0).slice(1, 0, 40, 2).slice(2, 3, 23)));
}

TEST(Selection, ReadsIntoATensorOfTheCaller) {
  const Folder folder;
  const File file = open(make_air(folder));
  at::Tensor out = at::zeros({2, 5, 7}, at::kDouble);
  const Selection part = file["air"]["1:3"];

  const at::Tensor same = part.read({.out = out});

  EXPECT_TRUE(same.is_same(out));
  EXPECT_TRUE(at::equal(out, field({6, 5, 7}).slice(0, 1, 3).to(at::kDouble)));
  EXPECT_EQ(first_line(message_of([&] {
              part.read({.out = at::zeros({2, 5, 6})});
            })),
            "read: dataset \"air\" of file \"" + file.path() + "\": `out` does not fit");
  EXPECT_EQ(first_line(message_of([&] { part.read({.dtype = at::kFloat, .out = out}); })),
            "read: dataset \"air\" of file \"" + file.path() + "\": `out` has another dtype than asked for");
}

TEST(File, RefusesWithTheNameAndTheRemedy) {
  const Folder folder;
  const std::string path = make_air(folder);
  std::ofstream(folder / "text.nc") << "not a field";
  std::ofstream(folder / "classic.nc") << "CDF\x01 and so on";
  std::filesystem::copy_file(path, folder / "short.nc");
  std::filesystem::resize_file(folder / "short.nc", std::filesystem::file_size(path) / 2);
  const File file = open(path);
  const auto in = [&](const std::string& name) { return "file \"" + (folder / name) + "\""; };
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[&] { open(folder / "aire.nc"); }, "open: " + in("aire.nc") + " does not exist; did you mean 'air.nc'?"},
      {[&] { open(folder / "no/where.nc"); }, "open: " + in("no/where.nc") + " does not exist"},
      {[&] { open(folder / ""); }, "open: \"" + (folder / "") + "\" is a folder"},
      {[&] { open(folder / "text.nc"); }, "open: " + in("text.nc") + " is not an HDF5 file"},
      {[&] { open(folder / "classic.nc"); }, "open: " + in("classic.nc") + ": damaged NetCDF-3 head"},
      {[&] { open(folder / "short.nc"); }, "open: " + in("short.nc") + " is cut short"},
      {[&] { open(path, "rw"); }, "open: " + in("air.nc") + ": unknown mode \"rw\""},
      {[&] { file["airr"]; }, "open: no dataset \"airr\" in " + in("air.nc") + "; did you mean 'air'?"},
      {[&] { file["ocean"]; }, "open: \"ocean\" is a group of " + in("air.nc")},
      {[&] { file.keys("oceans"); }, "keys: group \"oceans\" of " + in("air.nc") + ": there is no such group"},
      {[&] { file["air"].attr("unit"); },
       "attrs: dataset \"air\" of " + in("air.nc") + ": no attribute \"unit\"; did you mean 'units'?"},
      {[&] { file["air"]["6"]; }, "select: \"6\" on dataset \"air\": index 6 is out of range for dim 0 of size 6"},
      {[&] { Selection(file["air"]).narrow(1, 4, 2); },
       "narrow: dataset \"air\" of " + in("air.nc") + ": rows 4 to 6 of dim 1 are out of range"},
      {[&] { file["air"].read({.dtype = at::kComplexFloat}); },
       "read: dataset \"air\" of " + in("air.nc") + ": numbers cannot be read as complex"},
      {[&] { File(file).write("x", at::zeros({2})); },
       "write: dataset \"x\" of " + in("air.nc") + ": the file is open for reading only"},
      {[&] {
         File closed = open(path);
         const Dataset air = closed["air"];
         closed.close();
         closed.close();
         air.read();
       },
       "read: dataset \"air\" of " + in("air.nc") + ": the file is closed"},
  };
  for (const auto& [call, expected] : cases) {
    const std::string message = message_of(call);
    EXPECT_EQ(first_line(message), expected);
    EXPECT_NE(message.find("\n  have  "), std::string::npos) << message;
    EXPECT_NE(message.find("\n  fix   "), std::string::npos) << message;
  }
  File many = open(folder / "many.h5", "w");
  for (int i = 10; i < 40; ++i) many.write("run" + std::to_string(i) + "/data", at::zeros({2}));
  EXPECT_EQ(message_of([&] { many["run12/date"]; }),
            "open: no dataset \"run12/date\" in " + in("many.h5") +
                "; did you mean 'run12/data', 'run10/data' or 'run11/data'?\n"
                "  have  30 datasets, such as run10/data, run11/data, run12/data, run13/data, run14/data\n"
                "  fix   name a dataset; keys() lists them");
  EXPECT_EQ(message_of([&] { many["run17"]; }).find("\n  have  30 datasets, such as run17/data, run10/data"),
            ("open: \"run17\" is a group of " + in("many.h5")).size());
}

TEST(File, RefusesTypesThatNoTensorHolds) {
  const Folder folder;
  const std::string path = folder / "odd.h5";
  {
    RawFile raw(path);
    const hid_t compound = H5Tcreate(H5T_COMPOUND, 16);
    H5Tinsert(compound, "east", 0, H5T_NATIVE_DOUBLE);
    H5Tinsert(compound, "north", 8, H5T_NATIVE_DOUBLE);
    raw.dataset("pair", compound, compound, {2}, nullptr);
    const hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, 8);
    raw.dataset("name", text, text, {2}, nullptr);
    H5Tclose(compound);
    H5Tclose(text);
    const std::vector<double> big = {1, 300, 2.5};
    raw.dataset("big", H5T_STD_I32LE, H5T_NATIVE_DOUBLE, {3}, big.data());
    // A chunk that claims to be bzip2, which this library does not have.
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 4;
    H5Pset_chunk(list, 1, &chunk);
    H5Pset_filter(list, 307, H5Z_FLAG_OPTIONAL, 0, nullptr);
    const hid_t space = H5Screate_simple(1, &chunk, nullptr);
    const hid_t id = H5Dcreate2(raw.id(), "bzip2", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, list, H5P_DEFAULT);
    const hsize_t offset = 0;
    const char bytes[8] = {};
    ASSERT_GE(H5Dwrite_chunk(id, H5P_DEFAULT, 0, &offset, sizeof bytes, bytes), 0);
    H5Dclose(id);
    H5Sclose(space);
    H5Pclose(list);
  }
  const File file = open(path);
  const std::string of = " of file \"" + path + "\"";

  EXPECT_EQ(file["pair"].type_name(), "compound");
  EXPECT_EQ(file["name"].type_name(), "string");
  EXPECT_EQ(file["bzip2"].filters(), std::vector<std::string>{"filter (307, not available)"});
  EXPECT_EQ(first_line(message_of([&] { file["pair"].read(); })),
            "read: dataset \"pair\"" + of + ": no tensor holds all of a compound");
  EXPECT_EQ(first_line(message_of([&] { file["name"].dtype(); })),
            "read: dataset \"name\"" + of + ": no tensor holds its type string");
  EXPECT_EQ(first_line(message_of([&] { file["bzip2"].read(); })),
            "read: dataset \"bzip2\"" + of + ": compressed with filter (307, not available)");
  EXPECT_EQ(first_line(message_of([&] { file["big"].read({.dtype = at::kByte}); })),
            "read: dataset \"big\"" + of + ": a value does not fit dtype uint8");
  EXPECT_THROW(file["pair"].read(), c10::TypeError);
  EXPECT_THROW(file["bzip2"].read(), c10::NotImplementedError);
}

struct Wind {  // not packed
  float east;
  double north;
  int16_t level;
  uint8_t good;
  char station[8];
  std::array<float, 2> gust;
};

/// Dataset "wind" [6, 5] of compounds, chunked and compressed, and "nested" of compounds in compounds.
std::vector<Wind> write_winds(const std::string& path) {
  RawFile raw(path);
  const hid_t text = H5Tcopy(H5T_C_S1), good = H5Tenum_create(H5T_NATIVE_INT8);
  H5Tset_size(text, sizeof(Wind::station));
  const int8_t no = 0, yes = 1;
  H5Tenum_insert(good, "FALSE", &no);
  H5Tenum_insert(good, "TRUE", &yes);
  const hsize_t two = 2;
  const hid_t pair = H5Tarray_create2(H5T_NATIVE_FLOAT, 1, &two), wind = H5Tcreate(H5T_COMPOUND, sizeof(Wind));
  H5Tinsert(wind, "east", offsetof(Wind, east), H5T_NATIVE_FLOAT);
  H5Tinsert(wind, "north", offsetof(Wind, north), H5T_NATIVE_DOUBLE);
  H5Tinsert(wind, "level", offsetof(Wind, level), H5T_NATIVE_INT16);
  H5Tinsert(wind, "good", offsetof(Wind, good), good);
  H5Tinsert(wind, "station", offsetof(Wind, station), text);
  H5Tinsert(wind, "gust", offsetof(Wind, gust), pair);
  std::vector<Wind> winds(30);
  for (int i = 0; i < 30; ++i) {
    const float number = static_cast<float>(i);
    winds[static_cast<size_t>(i)] = {number / 2, -number, static_cast<int16_t>(i - 3), i % 3 == 0, "here", {number, 1}};
  }
  const hid_t stored = H5Tcopy(wind);
  H5Tpack(stored);
  raw.dataset("wind", stored, wind, {6, 5}, winds.data(), {.chunks = {4, 2}, .gzip = 2});
  raw.number<double>("wind", "scale_factor", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {10});
  const hid_t outer = H5Tcreate(H5T_COMPOUND, sizeof(Wind) + 8);
  H5Tinsert(outer, "wind", 8, wind);
  H5Tinsert(outer, "time", 0, H5T_NATIVE_INT64);
  std::vector<char> bytes(2 * (sizeof(Wind) + 8), '\0');
  std::memcpy(bytes.data() + 8, &winds[7], sizeof(Wind));
  std::memcpy(bytes.data() + sizeof(Wind) + 16, &winds[9], sizeof(Wind));
  raw.dataset("nested", outer, outer, {2}, bytes.data());
  for (const hid_t type : {text, good, pair, wind, stored, outer}) H5Tclose(type);
  return winds;
}

TEST(File, ReadsMembersOfCompounds) {
  const Folder folder;
  const std::string path = folder / "wind.h5";
  const auto winds = write_winds(path);
  const File file = open(path);
  const Dataset wind = file["wind"];
  at::Tensor east = at::empty({6, 5}), north = at::empty({6, 5}, at::kDouble), level = at::empty({6, 5}, at::kShort),
             good = at::empty({6, 5}, at::kBool);
  for (int64_t i = 0; i < 30; ++i) {
    const Wind& one = winds[static_cast<size_t>(i)];
    east.view(-1)[i] = one.east;
    north.view(-1)[i] = one.north;
    level.view(-1)[i] = one.level;
    good.view(-1)[i] = one.good != 0;
  }

  EXPECT_EQ(wind.members(), (std::vector<std::string>{"east", "north", "level", "good", "station", "gust"}));
  for (const auto& [name, values] : {std::pair("east", east), {"north", north}, {"level", level}, {"good", good}}) {
    SCOPED_TRACE(name);
    const Dataset member = wind.member(name);
    EXPECT_EQ(member.dtype(), values.scalar_type());
    EXPECT_TRUE(at::equal(member.read(), values));
    EXPECT_TRUE(at::equal(member["1:5:2, -2"].read(), values.slice(0, 1, 5, 2).select(1, 3)));
    EXPECT_TRUE(at::equal(wind["1:, ::3"].member(name).read({.dtype = at::kDouble}),
                          values.slice(0, 1).slice(1, 0, 5, 3).to(at::kDouble)));
    EXPECT_TRUE(member.members().empty());
    for (const auto& placements : {std::vector{shard(0)}, {shard(1)}, {replicate()}}) {
      on_mesh({3}, [&](const MeshPtr& mesh) {
        const at::Tensor x = scatter_tensor(open(path)["wind"].member(name), mesh, placements);
        EXPECT_TRUE(at::equal(full_tensor(x), values));
      });
    }
  }
  EXPECT_TRUE(at::equal(wind.member("level").read({.dtype = at::kInt, .decode = false}), level.to(at::kInt)));
  EXPECT_TRUE(at::equal(wind.member("level").read({.decode = true}), level.to(at::kDouble) * 10));
  EXPECT_TRUE(at::equal(file["nested"].member("wind").member("north").read(), at::tensor({-7.0, -9.0}, at::kDouble)));

  const std::string of = "open: dataset \"wind\" of file \"" + path + "\": ",
                    all = "east, north, level, good, station, gust";
  EXPECT_EQ(message_of([&] { wind.member("nort"); }),
            of + "no member \"nort\"; did you mean 'north'?\n  have  a compound of " + all +
                "\n  fix   name one of these members");
  EXPECT_EQ(message_of([&] {
              wind.member("station");
            }).find(of + "member \"station\" holds text\n  have  a compound of " + all),
            0);
  EXPECT_EQ(first_line(message_of([&] { wind.member("gust"); })), of + "member \"gust\" holds no numbers");
  EXPECT_EQ(message_of([&] { wind.member("east").member("x"); }),
            of + "no member \"x\"\n  have  float32, which has no members\n  fix   select rows, as \"0:100, ::2\"");
  EXPECT_EQ(first_line(message_of([&] { wind.member("level").read({.dtype = at::kByte}); })),
            "read: dataset \"wind\" of file \"" + path + "\": a value does not fit dtype uint8");
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const std::string differ = message_of(
        [&] { scatter_tensor(open(path)["wind"].member(mesh->rank() == 0 ? "east" : "level"), mesh, {shard(0)}); });
    EXPECT_NE(differ.find("the ranks selected different data"), std::string::npos) << differ;
  });
}

TEST(File, ReadsStringsOfAnyLengthAndOfOne) {
  const Folder folder;
  const std::string path = folder / "text.h5";
  {
    RawFile raw(path);
    const hid_t fixed = H5Tcopy(H5T_C_S1), variable = H5Tcopy(H5T_C_S1), padded = H5Tcopy(H5T_C_S1);
    H5Tset_size(fixed, 4);
    H5Tset_size(variable, H5T_VARIABLE);
    H5Tset_size(padded, 3);
    H5Tset_strpad(padded, H5T_STR_SPACEPAD);
    const char* names[] = {"u10m", "", "a longer name", "t2m"};
    raw.dataset("fixed", fixed, fixed, {2, 2}, "abcdx\0\0\0\0\0\0\0yz\0\0");
    raw.dataset("variable", variable, variable, {4}, names);
    raw.dataset("padded", padded, padded, {2}, "a  b c");
    raw.dataset("one", variable, variable, {}, names);
    raw.floats("x", field({3}));
    for (const hid_t type : {fixed, variable, padded}) H5Tclose(type);
  }
  const File file = open(path);
  using Strings = std::vector<std::string>;

  EXPECT_EQ(read_strings(file["fixed"]), (Strings{"abcd", "x", "", "yz"}));
  EXPECT_EQ(read_strings(file["fixed"]["1, 1"]), Strings{"yz"});
  EXPECT_EQ(read_strings(file["variable"]), (Strings{"u10m", "", "a longer name", "t2m"}));
  EXPECT_EQ(read_strings(file["variable"]["1::2"]), (Strings{"", "t2m"}));
  EXPECT_EQ(read_strings(file["padded"]), (Strings{"a", "b c"}));
  EXPECT_EQ(read_strings(file["one"]), Strings{"u10m"});
  EXPECT_EQ(first_line(message_of([&] { read_strings(file["x"]); })),
            "strings: dataset \"x\" of file \"" + path + "\": it holds no text");
}

TEST(File, ComplexNumbersComeAndGo) {
  const Folder folder;
  const std::string path = folder / "complex.h5";
  const at::Tensor full = at::complex(field({9, 6}), field({9, 6}) + 2);
  File out = open(path, "w");
  out.write("single", full);
  out.write("double", full.to(at::kComplexDouble), {.chunks = {1, 6}, .compression = 1});
  out.close();
  const File file = open(path);

  EXPECT_EQ(file["single"].type_name(), "complex64");
  EXPECT_EQ(file["double"].dtype(), at::kComplexDouble);
  EXPECT_TRUE(at::equal(file["single"].read(), full));
  EXPECT_TRUE(at::equal(file["single"].read({.dtype = at::kComplexDouble}), full.to(at::kComplexDouble)));
  EXPECT_TRUE(at::equal(file["double"]["2:, 1"].read(), full.to(at::kComplexDouble).slice(0, 2).select(1, 1)));
  testing::on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = scatter_tensor(open(path)["double"], mesh, {shard(1, {1, 3, 2})});
    EXPECT_TRUE(at::equal(full_tensor(x), full.to(at::kComplexDouble)));
  });
  EXPECT_EQ(first_line(message_of([&] { file["single"].read({.dtype = at::kFloat}); })),
            "read: dataset \"single\" of file \"" + path + "\": complex numbers cannot be read as float32");
}

TEST(File, SaysWhereAFileThatShrankEnds) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  {
    RawFile raw(path);
    raw.floats("x", field({64, 1024}));
  }
  const File file = open(path);
  const Dataset x = file["x"];
  std::filesystem::resize_file(path, 100000);

  EXPECT_TRUE(at::equal(x["0:4"].read(), field({64, 1024}).slice(0, 0, 4)));
  EXPECT_EQ(first_line(message_of([&] { x.read(); })),
            "read: dataset \"x\" of file \"" + path + "\": the file is cut short");
}

TEST(File, LeavesTheErrorPrinterOfTheProgramAlone) {
  const Folder folder;
  const File file = open(make_air(folder));
  H5E_auto2_t before = nullptr, after = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &data);

  ::testing::internal::CaptureStderr();
  message_of([&] { file["nothing"]; });
  std::thread([&] { message_of([&] { open(folder / "air.ncc"); }); }).join();

  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  H5Eget_auto2(H5E_DEFAULT, &after, &data);
  EXPECT_EQ(before, after);
  EXPECT_NE(after, nullptr);
}

}  // namespace
}  // namespace moonhalo::io::test_read
