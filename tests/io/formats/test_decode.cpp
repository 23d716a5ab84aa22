// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "moonhalo/io/fields/domain_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_decode {
namespace {

using namespace testing;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct DecodeCase {
  const char* name;
  hid_t stored;
  std::vector<double> values;
  void (*attributes)(RawFile&, const std::string&);
  at::ScalarType dtype;  ///< of the decoded values
  std::vector<double> expected;
};

template <typename T>
void put(RawFile& file, const std::string& dataset, const char* name, hid_t type, std::vector<T> values) {
  file.number(dataset, name, type, std::is_same_v<T, double> ? H5T_NATIVE_DOUBLE : H5T_NATIVE_LLONG, values);
}

std::vector<DecodeCase> packed_and_plain_cases() {
  return {
      // The wider of scale and offset decides the type.
      {"packed_with_an_offset_alone",
       H5T_STD_I16LE,
       {0, 5, -7},
       [](RawFile& f, const std::string& d) { put<double>(f, d, "add_offset", H5T_IEEE_F64LE, {273.15}); },
       at::kDouble,
       {273.15, 278.15, 266.15}},
      {"packed_short",
       H5T_STD_I16BE,
       {-32767, 0, 100, -32768},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "scale_factor", H5T_IEEE_F64LE, {0.01});
         put<double>(f, d, "add_offset", H5T_IEEE_F64LE, {273.15});
         put<long long>(f, d, "_FillValue", H5T_STD_I16LE, {-32768});
       },
       at::kDouble,
       {-32767 * 0.01 + 273.15, 273.15, 100 * 0.01 + 273.15, kNan}},
      {"packed_short_of_float_scale",
       H5T_STD_I16LE,
       {1, 2, 3},
       [](RawFile& f, const std::string& d) { put<double>(f, d, "scale_factor", H5T_IEEE_F32LE, {0.5}); },
       at::kFloat,
       {0.5, 1, 1.5}},
      {"unsigned_bytes",
       H5T_STD_I8LE,
       {-1, -2, 127},
       [](RawFile& f, const std::string& d) {
         f.text(d, "_Unsigned", "true");
         put<long long>(f, d, "_FillValue", H5T_STD_I8LE, {-1});
       },
       at::kFloat,
       {kNan, 254, 127}},
      {"nothing_to_decode", H5T_STD_I16LE, {1, 2, 3}, [](RawFile&, const std::string&) {}, at::kShort, {1, 2, 3}},
  };
}

std::vector<DecodeCase> missing_value_cases() {
  const float land = -9.96921e+36f;
  return {
      {"nan_fill_and_missing_land",
       H5T_IEEE_F32LE,
       {1.5, land, kNan, 3},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "_FillValue", H5T_IEEE_F32LE, {kNan});
         put<double>(f, d, "missing_value", H5T_IEEE_F32LE, {-9.96921e+36f});
       },
       at::kFloat,
       {1.5, kNan, kNan, 3}},
      {"several_missing_values_of_wider_type",
       H5T_IEEE_F32LE,
       {1e20f, 0.1f, -999, 4},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "missing_value", H5T_IEEE_F64LE, {1e20, -999});
       },
       at::kFloat,
       {kNan, 0.1f, kNan, 4}},
      {"wide_integers",
       H5T_STD_I64LE,
       {9007199254740992., -1, 5},
       [](RawFile& f, const std::string& d) {
         put<long long>(f, d, "_FillValue", H5T_STD_I64LE, {-1});
         put<double>(f, d, "missing_value", H5T_IEEE_F64LE, {5.5});  // no integer equals it
       },
       at::kDouble,
       {9007199254740992., kNan, 5}},
  };
}

std::vector<DecodeCase> bounds_cases() {
  return {
      // A bound of the type of the unpacked values is a bound of these.
      {"packed_with_an_unpacked_maximum_alone",
       H5T_STD_I16LE,
       {0, 100, 300, 301},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "scale_factor", H5T_IEEE_F32LE, {0.5});
         put<double>(f, d, "valid_max", H5T_IEEE_F32LE, {150});
       },
       at::kFloat,
       {0, 50, 150, kNan}},
      {"valid_range_of_stored_numbers",
       H5T_STD_I16LE,
       {-1, 0, 1000, 1001},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "scale_factor", H5T_IEEE_F32LE, {0.25});
         put<long long>(f, d, "valid_range", H5T_STD_I16LE, {0, 1000});
       },
       at::kFloat,
       {kNan, 0, 250, kNan}},
      {"valid_range_of_values",
       H5T_STD_I16LE,
       {-1, 0, 1000, 1001},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "scale_factor", H5T_IEEE_F32LE, {0.25});
         put<double>(f, d, "valid_range", H5T_IEEE_F32LE, {0, 250});
       },
       at::kFloat,
       {kNan, 0, 250, kNan}},
      {"valid_min_and_max",
       H5T_IEEE_F64LE,
       {-0.5, 0, 1, 1.5},
       [](RawFile& f, const std::string& d) {
         put<double>(f, d, "valid_min", H5T_IEEE_F64LE, {0});
         put<double>(f, d, "valid_max", H5T_IEEE_F64LE, {1});
       },
       at::kDouble,
       {kNan, 0, 1, kNan}},
  };
}

std::vector<DecodeCase> cases() {
  std::vector<DecodeCase> all;
  for (const auto& group : {packed_and_plain_cases(), missing_value_cases(), bounds_cases()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

TEST(Decode, AppliesTheConventionsOfClimateFiles) {
  const Folder folder;
  const std::string path = folder / "packed.nc";
  {
    RawFile raw(path);
    for (const auto& c : cases()) {
      raw.dataset(c.name, c.stored, H5T_NATIVE_DOUBLE, {c.values.size()}, c.values.data());
      c.attributes(raw, c.name);
    }
  }
  const File file = open(path);

  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const at::Tensor expected = at::tensor(c.expected, at::kDouble);

    const at::Tensor decoded = file[c.name].read({.decode = true});
    const at::Tensor narrow = file[c.name].read({.dtype = at::kFloat, .decode = true});
    const at::Tensor wide = file[c.name].read({.dtype = at::kDouble, .decode = true});
    const at::Tensor plain = file[c.name].read();

    EXPECT_EQ(decoded.scalar_type(), c.dtype);
    EXPECT_TRUE(at::allclose(decoded.to(at::kDouble), expected, 1e-6, 1e-9, true)) << decoded;
    EXPECT_TRUE(at::allclose(wide, expected, 1e-12, 1e-12, true)) << wide;
    EXPECT_TRUE(at::allclose(narrow, expected.to(at::kFloat), 1e-6, 0, true)) << narrow;
    EXPECT_TRUE(at::allclose(plain.to(at::kDouble), at::tensor(c.values, at::kDouble), 1e-7, 0, true));
  }
}

/// More than the pieces in which packed numbers are decoded, over chunk borders and with steps.
TEST(Decode, InPiecesIsAsInOne) {
  const Folder folder;
  const std::string path = folder / "long.nc";
  const at::Tensor raw_values = at::arange(50 * 301 * 300, at::kInt).view({50, 301, 300}).remainder(30000);
  {
    RawFile raw(path);
    raw.dataset("x", H5T_STD_I16LE, H5T_NATIVE_INT32, {50, 301, 300}, raw_values.const_data_ptr(),
                {.chunks = {7, 301, 300}, .gzip = 1});
    put<double>(raw, "x", "scale_factor", H5T_IEEE_F32LE, {0.5});
    put<long long>(raw, "x", "_FillValue", H5T_STD_I16LE, {77});
  }
  const Selection part = open(path)["x"]["1::2, :, 10:"];

  const at::Tensor read = part.read({.decode = true});

  const at::Tensor stored = raw_values.slice(0, 1, 50, 2).slice(2, 10);
  const at::Tensor expected = stored.to(at::kFloat).mul(0.5).masked_fill(stored == 77, kNan);
  EXPECT_TRUE(at::allclose(read, expected, 0, 0, true));
}

/// The same where no chunk borders steer the pieces, and every second row of more than one piece is taken.
TEST(Decode, InPiecesOfEverySecondRow) {
  const Folder folder;
  const std::string path = folder / "steps.nc";
  const at::Tensor raw_values = at::arange(160 * 301 * 300, at::kInt).view({160, 301, 300}).remainder(30011);
  {
    RawFile raw(path);
    raw.dataset("x", H5T_STD_I16LE, H5T_NATIVE_INT32, {160, 301, 300}, raw_values.const_data_ptr());
    put<double>(raw, "x", "scale_factor", H5T_IEEE_F32LE, {0.5});
  }
  const Selection part = open(path)["x"]["3::2"];

  const at::Tensor read = part.read({.decode = true});

  EXPECT_GT(read.nbytes(), size_t{8} << 20);
  EXPECT_TRUE(at::equal(read, raw_values.slice(0, 3, 160, 2).to(at::kFloat).mul(0.5)));
}

/// Only what NetCDF's library has made has its default fill values: HDF5 of other programs may hold 65535.
TEST(Decode, DefaultFillValuesAreThoseOfNetCdf) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const std::vector<int> values = {1, 65535, 3};
  {
    RawFile raw(path);
    raw.dataset("plain", H5T_STD_U16LE, H5T_NATIVE_INT, {3}, values.data());
  }
  EXPECT_TRUE(at::equal(open(path)["plain"].read({.decode = true}).to(at::kInt), at::tensor(values, at::kInt)));
  {
    RawFile raw(path);
    raw.dataset("x", H5T_STD_U16LE, H5T_NATIVE_INT, {3}, values.data());
    raw.dataset("bytes", H5T_STD_U8LE, H5T_NATIVE_INT, {3}, std::vector<int>{1, 255, 3}.data());
    raw.dataset("own", H5T_STD_U16LE, H5T_NATIVE_INT, {3}, values.data());
    put<long long>(raw, "own", "_FillValue", H5T_STD_U16LE, {3});
    raw.text("/", "_NCProperties", "version=2,netcdf=4.9.0");
  }
  const File file = open(path);
  const at::Tensor x = file["x"].read({.decode = true});
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(x, at::tensor({1., kNan, 3.}, at::kFloat), 0, 0, true)) << x;
  EXPECT_EQ(file["bytes"].read({.decode = true}).scalar_type(), at::kByte);
  EXPECT_TRUE(at::allclose(file["own"].read({.decode = true}), at::tensor({1., 65535., kNan}, at::kFloat), 0, 0, true));
  EXPECT_TRUE(at::equal(file["x"].read().to(at::kInt), at::tensor(values, at::kInt)));
}

TEST(Decode, RefusesIntegersAndTextualScales) {
  const Folder folder;
  const std::string path = folder / "x.nc";
  {
    RawFile raw(path);
    raw.floats("x", at::ones({3}));
    raw.text("x", "units", "K");
    put<double>(raw, "x", "_FillValue", H5T_IEEE_F32LE, {1});
    raw.floats("y", at::ones({3}));
    raw.text("y", "scale_factor", "half");
  }
  const File file = open(path);

  EXPECT_EQ(first_line(message_of([&] { file["x"].read({.dtype = at::kInt, .decode = true}); })),
            "read: dataset \"x\" of file \"" + path + "\": decoded values cannot be int32");
  EXPECT_EQ(first_line(message_of([&] { file["y"].read({.decode = true}); })),
            "read: dataset \"y\" of file \"" + path + "\": attribute \"scale_factor\" is text and cannot be decoded");
}

}  // namespace
}  // namespace moonhalo::io::test_decode
