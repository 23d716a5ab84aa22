// SPDX-License-Identifier: Apache-2.0
// Sizes of many blocks in messages.
#include "moonhalo/engine/sharding/size_text.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::testing::test_size_text {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

std::vector<int64_t> many_sizes() {
  std::vector<int64_t> sizes(512, 38);
  for (size_t i = 0; i < 12; ++i) sizes[7 * i] = 37;
  return sizes;
}

TEST(SizeText, X14_FewSizesAreListedAndManyAreCounted) {
  EXPECT_EQ(sizes_text({4, 2, 1}), "{4, 2, 1}");
  EXPECT_EQ(sizes_text(std::vector<int64_t>(16, 3)), "{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}");
  EXPECT_EQ(sizes_text(std::vector<int64_t>(17, 3)), "{3 rows on 17 ranks}");
  EXPECT_EQ(sizes_text(many_sizes()), "{37 rows on 12 ranks, 38 on 500}");
  std::vector<int64_t> different(100);
  for (size_t i = 0; i < different.size(); ++i) different[i] = static_cast<int64_t>(i + 1);
  EXPECT_EQ(sizes_text(different), "{1 to 100 rows on 100 ranks}");
}

TEST(SizeText, X14_SpecsAndErrorsHaveTheCounts) {
  const CommunicatorPtr world = make_fake_communicator(0, 512);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {512}, {"rows"});
  const int64_t rows = 12 * 37 + 500 * 38;

  const SpecPtr spec = make_spec(mesh, {3, rows}, {shard(1, many_sizes())});

  EXPECT_THAT(spec->to_string(), EndsWith(": Shard(1, {37 rows on 12 ranks, 38 on 500})"));
  // Programs read placements again.
  EXPECT_EQ(shard(1, std::vector<int64_t>(17, 3)).to_string().size(), std::string("Shard(1, {})").size() + 17 * 3 - 2);
  std::string refusal;
  try {
    make_spec(mesh, {3, rows + 1}, {shard(1, many_sizes())});
  } catch (const c10::ValueError& error) {
    refusal = error.what_without_backtrace();
  }
  EXPECT_THAT(refusal, StartsWith("Shard(1, {37 rows on 12 ranks, 38 on 500}): block sizes add up to 19444, the tensor "
                                  "has 19445"));
}

}  // namespace
}  // namespace moonhalo::testing::test_size_text
