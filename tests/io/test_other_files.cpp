// SPDX-License-Identifier: Apache-2.0
// Datasets whose elements lie in other files: external links, virtual datasets, external raw storage.
#include <gtest/gtest.h>

#include "engine/shard_tensor.h"
#include "io/domain_file.h"
#include "io/scatter.h"
#include "tests/io/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io {
namespace {

using testing::first_line;
using testing::Folder;
using testing::message_of;
using testing::on_mesh;
using testing::RawFile;

at::Tensor field(at::IntArrayRef shape, int seed = 5) { return testing::make_tensor(shape, seed, at::kFloat); }

/// An element of a linked dataset has the offset that it has in its own file, where the first file holds other bytes.
TEST(ExternalLinks, AreReadFromTheFileTheyLeadTo) {
  const Folder folder;
  const at::Tensor years[] = {field({4, 6}, 1), field({4, 6}, 2)};
  for (int i = 0; i < 2; ++i) {
    RawFile part(folder / ("year" + std::to_string(i) + ".h5"));
    part.floats("first", field({i + 1, 40}, 3));
    part.floats("deep", years[i], {.chunks = {2, 3}});
    part.floats("t", years[i]);
  }
  {
    RawFile master(folder / "all.h5");
    master.floats("grid", field({200, 50}, 4));
    for (int i = 0; i < 2; ++i) {
      const std::string year = "year" + std::to_string(i);
      ASSERT_GE(H5Lcreate_external((year + ".h5").c_str(), "/t", master.id(), year.c_str(), H5P_DEFAULT, H5P_DEFAULT), 0);
      ASSERT_GE(H5Lcreate_external((year + ".h5").c_str(), "/", master.id(), (year + "_all").c_str(), H5P_DEFAULT, H5P_DEFAULT), 0);
    }
    ASSERT_GE(H5Lcreate_soft("/year1", master.id(), "soft", H5P_DEFAULT, H5P_DEFAULT), 0);
  }
  const File file = open(folder / "all.h5");

  EXPECT_TRUE(at::equal(file["year0"].read(), years[0]));
  EXPECT_TRUE(at::equal(file["year1"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["year1"]["1:, ::2"].read(), years[1].slice(0, 1).slice(1, 0, 6, 2)));
  EXPECT_TRUE(at::equal(file["soft"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["year1_all/t"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["year1_all/deep"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["grid"].read(), field({200, 50}, 4)));
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = scatter_tensor(open(folder / "all.h5")["year1"], mesh, {shard(0, {1, 2, 1})});
    EXPECT_TRUE(at::equal(full_tensor(x), years[1]));
  });
}

}  // namespace
}  // namespace moonhalo::io
