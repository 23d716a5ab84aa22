// SPDX-License-Identifier: Apache-2.0
// Dimensions as NetCDF and CF have them. What other programs make of such files: tests/netcdf/check_netcdf.py.
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_scales {
namespace {

using testing::first_line;
using testing::Folder;
using testing::message_of;
using testing::on_mesh;
using testing::RawFile;
using testing::shard_of;

at::Tensor field(at::IntArrayRef shape) { return testing::make_tensor(shape, 5, at::kFloat); }

TEST(Scales, X17_CoordinatesTakeThePlaceOfTheirDimensionAndCanBeReplaced) {
  const Folder folder;
  const std::string path = folder / "x.nc";
  File out = open(path, "w");
  out.write("a", field({3, 4}), {.dims = {"y", "x"}});
  out.write("b", field({4}), {.dims = {"x"}});
  EXPECT_TRUE(out["x"].is_bare_dimension());
  out.write("x", at::arange(4), {.attrs = {{"units", std::string("m")}}, .dims = {"x"}});
  out.write("x", at::arange(4) * 2, {.dims = {"x"}, .replace = true});
  const std::string shorter = message_of([&] { out.write("x", at::arange(3), {.dims = {"x"}, .replace = true}); });
  out.close();

  const File file = open(path);
  EXPECT_EQ(first_line(shorter),
            "write: dataset \"x\" of file \"" + path + "\": other datasets have it as their dimension");
  EXPECT_EQ(file["a"].dims(), (std::vector<std::string>{"y", "x"}));
  EXPECT_EQ(file["b"].dims(), (std::vector<std::string>{"x"}));
  EXPECT_TRUE(at::equal(file["x"].read(), at::arange(4) * 2));
  EXPECT_TRUE(file["y"].is_bare_dimension());
  EXPECT_FALSE(file["x"].is_bare_dimension());
  EXPECT_EQ(std::get<std::string>(file.attr("Conventions")), "CF-1.8");
}

TEST(Scales, RefusalsNameTheDimensionAndChangeNothing) {
  const Folder folder;
  const std::string path = folder / "x.nc";
  { RawFile(folder / "bare.h5").floats("x", field({3, 4})); }
  const File bare = open(folder / "bare.h5");
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(field({3, 4}), mesh, {shard(1)});
    File out = open(path, "w");
    out.write("a", x, {.dims = {"y", "x"}});
    out.write("flat", x);
    const std::string start = "write: dataset \"b\" of file \"" + path + "\": ";
    const auto like = [&](const char* slices) { return std::make_shared<Selection>(bare["x"][slices]); };
    const std::vector<std::pair<std::function<void()>, std::string>> refused = {
        {[&] {
           out.write("b", x, {.dims = {"y", "y"}});
         },
         start + "two dimensions of one name"},
        {[&] {
           out.write("b", x, {.dims = {"b", "x"}});
         },
         start + "only the 1-D coordinates of a dimension have its name"},
        {[&] {
           out.write("b", x, {.dims = {"x", "y"}});
         },
         start + "dimension \"x\" has length 4"},
        {[&] {
           out.write("b", x, {.dims = {"flat", "x"}});
         },
         start + "\"flat\" is not a dimension"},
        {[&] {
           out.append("b", x, {.dims = {"y", "x"}});
         },
         "append: dataset \"b\" of file \"" + path + "\": dimension \"y\" has length 3 and cannot grow"},
        {[&] { out.write("b", x, {.like = like("...")}); },
         start + "`like` is a dataset whose dimensions have no names"}};
    for (const auto& [call, expected] : refused) {
      const std::string message = message_of(call);
      EXPECT_EQ(first_line(message), expected);
      EXPECT_NE(message.find("\n  have  "), std::string::npos) << message;
      EXPECT_NE(message.find("\n  fix   "), std::string::npos) << message;
    }
    out.close();
  });
  EXPECT_EQ(open(path).keys(), (std::vector<std::string>{"a", "flat", "x", "y"}));
}

TEST(Scales, LikeTakesTheSelectedCoordinatesAndRefusesOthers) {
  const Folder folder;
  File source = open(folder / "source.nc", "w");
  source.write("t", field({5, 4}), {.attrs = {{"units", std::string("K")}, {"scale_factor", 2.0}}, .dims = {"y", "x"}});
  source.write("y", at::arange(5) * 10, {.attrs = {{"units", std::string("m")}}, .dims = {"y"}});
  source.close();
  const Dataset t = open(folder / "source.nc")["t"];
  on_mesh({3}, [&](const MeshPtr& mesh) {
    File out = open(folder / "out.nc", "w");
    const auto write = [&](const char* name, const char* rows, int64_t count) {
      out.write(name, shard_of(field({count, 4}), mesh, {shard(0)}), {.like = std::make_shared<Selection>(t[rows])});
    };
    write("a", "1:4", 3);
    write("b", "1:4", 3);
    EXPECT_EQ(first_line(message_of([&] { write("c", "2:5", 3); })),
              "write: dataset \"c\" of file \"" + (folder / "out.nc") + "\": dimension \"y\" has other coordinates");
    EXPECT_EQ(first_line(message_of([&] { write("c", "1:4", 2); })),
              "write: dataset \"c\" of file \"" + (folder / "out.nc") + "\": `like` has another shape");
    out.close();
  });
  const File file = open(folder / "out.nc");
  EXPECT_EQ(file.keys(), (std::vector<std::string>{"a", "b", "x", "y"}));
  EXPECT_TRUE(at::equal(file["y"].read(), at::tensor({10, 20, 30})));
  EXPECT_EQ(file["y"].units(), "m");
  EXPECT_EQ(file["a"].attrs(), (Attributes{{"units", std::string("K")}}));
}

TEST(Scales, ValuesThatTheTypeCannotHoldAreRefused) {
  const Folder folder;
  const std::string path = folder / "x.nc";
  File out = open(path, "w");
  const at::Tensor x = at::arange(4).to(at::kShort);
  const std::string start =
      "write: dataset \"x\" of file \"" + path + "\": attribute \"_FillValue\" does not fit its values";
  for (const AttributeValue& value : {AttributeValue(int64_t{40000}), AttributeValue(0.5)})
    EXPECT_EQ(first_line(message_of([&] { out.write("x", x, {.attrs = {{"_FillValue", value}}}); })), start);
  out.write("x", x, {.attrs = {{"_FillValue", -1.0}, {"valid_range", std::vector<int64_t>{0, 9}}}});
  out.close();
  EXPECT_EQ(std::get<int64_t>(open(path)["x"].attr("_FillValue")), -1);  // an int16 now
}

}  // namespace
}  // namespace moonhalo::io::test_scales
