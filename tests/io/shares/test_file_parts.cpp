// SPDX-License-Identifier: Apache-2.0
// Tensors that ranks gather before they write them.
#include "moonhalo/io/shares/file_parts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_file_parts {
namespace {

using namespace testing;

// Narrow columns are short runs of the file, so that they are sent. 16 MiB in all, of which a rank gathers 2 at
// once.
TEST(FileParts, X11_TensorsAreGatheredALittleAtATime) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    std::vector<int64_t> bytes;
    std::vector<FilePart> parts;
    std::vector<at::Tensor> whole, written;
    for (int64_t i = 0; i < 16; ++i) {
      whole.push_back(make_tensor({4096, 32}, i));
      written.push_back(at::zeros_like(whole.back()));
      const at::Tensor cut = shard_of(whole.back(), mesh, {shard(1)});
      parts.push_back(share_block(spec(cut), to_local(cut), bytes));
      parts.back().file = static_cast<size_t>(i);
      ASSERT_TRUE(parts.back().shares.moves);
    }
    const auto exchanges = [&] { return mesh->group().stats().by_kind[CommStats::kExchange].calls; };
    const int64_t before = exchanges();

    for_each_piece(parts, [&](const FilePart& part, const Box& box, const at::Tensor& data) {
      written[part.file].narrow(0, box[0].begin, box[0].size()).narrow(1, box[1].begin, box[1].size()).add_(data);
    });

    EXPECT_GE(exchanges() - before, 4);
    EXPECT_LT(exchanges() - before, 16);  // several small tensors in one message
    for (size_t i = 0; i < whole.size(); ++i) {
      mesh->group().all_reduce(written[i]);
      EXPECT_TRUE(at::equal(written[i], whole[i])) << i;
    }
  });
}

}  // namespace
}  // namespace moonhalo::io::test_file_parts
