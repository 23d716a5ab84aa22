// SPDX-License-Identifier: Apache-2.0
// out= and in-place operators: what is written keeps its own cut, whatever cut the result has.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_variants {
namespace {

using at::Tensor;

const Tensor x = make_tensor({9, 4}, 1), y = make_tensor({9, 4}, 2), flat = make_tensor({9}, 3);
const Tensor rows = at::tensor({8, 0, 3, 3}, at::kLong), coin = make_tensor({9, 4}, 5, at::kBool);

struct Case {
  std::string name;
  Tensors read, written;
  std::function<void(const Tensors& read, Tensors& written)> program;
};

Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) { return at::zeros(shape, dtype); }

const std::vector<Case>& cases() {
  using R = const Tensors&;
  using W = Tensors&;
  static const std::vector<Case> table = {
      {"add.out", {x, y}, {zeros({9, 4})}, [](R r, W w) { at::add_out(w[0], r[0], r[1], 2); }},
      {"add.out float", {x, y}, {zeros({9, 4}, at::kFloat)}, [](R r, W w) { at::add_out(w[0], r[0], r[1]); }},
      {"sum.out", {x}, {zeros({4})}, [](R r, W w) { at::sum_out(w[0], r[0], {0}); }},
      {"sort.values",
       {x},
       {zeros({9, 4}), zeros({9, 4}, at::kLong)},
       [](R r, W w) { at::sort_out(w[0], w[1], r[0], 0, true); }},
      {"index_select.out", {x}, {zeros({4, 4})}, [](R r, W w) { at::index_select_out(w[0], r[0], 0, rows); }},
      {"where.self_out", {x, y}, {zeros({9, 4})}, [](R r, W w) { at::where_out(w[0], coin, r[0], r[1]); }},
      {"matmul.out", {x, y}, {zeros({9, 9})}, [](R r, W w) { at::matmul_out(w[0], r[0], r[1].t()); }},
      {"cat.out",
       {x, y},
       {zeros({18, 4})},
       [](R r, W w) {
         at::cat_out(w[0], {r[0], r[1]}, 0);
       }},
      {"view_copy.out",
       {x},
       {zeros({6, 6})},
       [](R r, W w) {
         at::view_copy_out(w[0], r[0], {6, 6});
       }},
      {"split_copy.Tensor_out",
       {x},
       {zeros({3, 4}), zeros({3, 4}), zeros({3, 4})},
       [](R r, W w) { at::split_copy_out(w, r[0], 3); }},
      {"cumsum_", {}, {x}, [](R, W w) { w[0].cumsum_(0).cumsum_(1); }},
      {"cumprod_", {}, {x}, [](R, W w) { w[0].cumprod_(0); }},
      {"tril_", {}, {x}, [](R, W w) { w[0].tril_(1).triu_(-1); }},
      {"renorm_", {}, {x}, [](R, W w) { w[0].renorm_(2, 0, 0.5); }},
      {"index_fill_", {}, {x}, [](R, W w) { w[0].index_fill_(0, rows, 3.0); }},
      {"masked_scatter_", {y}, {x}, [](R r, W w) { w[0].masked_scatter_(coin, r[0]); }},
  };
  return table;
}

TEST(Variants, WrittenTensorsKeepTheirCut) {
  struct Way {
    std::vector<int64_t> mesh;
    std::vector<Placement> read, written;
  };
  const std::vector<Way> ways = {
      {{2}, {shard(0, {3, 6})}, {shard(0)}}, {{3}, {shard(1, {3, 0, 1})}, {replicate()}},
      {{4}, {replicate()}, {shard(0)}},      {{2, 2}, {shard(0, {4, 5}), shard(1)}, {replicate(), shard(0)}},
      {{2}, {partial()}, {shard(0)}},        {{2}, {shard(0)}, {partial()}}};
  for (const Case& row : cases()) {
    for (const Way& way : ways) {
      std::vector<Input> inputs;
      for (const Tensor& tensor : row.read) inputs.push_back({.full = tensor, .placements = way.read, .grad = false});
      for (const Tensor& tensor : row.written)
        inputs.push_back({.full = tensor, .placements = way.written, .grad = false});
      const auto program = [&](const Tensors& t) {
        const auto split = t.begin() + static_cast<std::ptrdiff_t>(row.read.size());
        Tensors written;
        for (auto it = split; it != t.end(); ++it) written.push_back(it->clone());  // the oracle's own stay as they are
        row.program(Tensors(t.begin(), split), written);
        return written;
      };
      SCOPED_TRACE(row.name + ", read " + way.read[0].to_string() + ", written " + way.written[0].to_string());
      expect_same_as_plain(way.mesh, inputs, program, {.backward = false, .fallback = Fallback::kReplicate});
    }
  }
}

TEST(Variants, InPlaceScansHaveGradients) {
  const auto scan = [](const Tensors& t) { return Tensors{(t[0] * 2).cumsum_(0).tril_()}; };
  expect_same_as_plain({3}, {{x, {shard(0, {4, 0, 5})}}}, scan, {.double_backward = true});
}

TEST(Variants, EmptyOutTakesShapeAndCutOfTheResult) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor a = shard_of(x, mesh, {shard(0, {3, 6})});
    Tensor out = shard_of(at::empty({0}, at::kDouble), mesh, {replicate()}), plain = at::empty({0}, at::kDouble);

    at::add_out(out, a, a);
    at::add_out(plain, a, a);

    EXPECT_EQ(spec(out)->to_string(), spec(a)->to_string());
    EXPECT_EQ(difference(full_tensor(out), x + x, 0), "");
    EXPECT_FALSE(is_shard_tensor(plain));
    EXPECT_EQ(difference(plain, x + x, 0), "");
  });
}

TEST(Variants, WrongTargetsAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor a = shard_of(x, mesh, {shard(0, {3, 6})});
    Tensor narrow = shard_of(flat, mesh, {shard(0)}), whole = shard_of(at::zeros({9, 4}, at::kLong), mesh, {shard(0)});

    const std::string shape = message_of([&] { at::add_out(narrow, a, a); });
    const std::string type = message_of([&] { at::add_out(whole, a, a); });

    EXPECT_NE(shape.find("the result has shape [9, 4], the tensor that it is written to [9]"), std::string::npos)
        << shape;
    EXPECT_NE(type.find("a result of type Double cannot be written to a tensor of type Long"), std::string::npos)
        << type;
  });
}

TEST(Variants, FunctionalFormIsFoundBySchema) {
  const auto functional = [](const char* name, const char* overload) {
    const auto found = functional_variant(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
    return found ? c10::toString(found->operator_name()) : "none";
  };
  EXPECT_EQ(functional("aten::add", "out"), "aten::add.Tensor");
  EXPECT_EQ(functional("aten::cumsum_", ""), "aten::cumsum");
  EXPECT_EQ(functional("aten::max", "dim_max"), "aten::max.dim");
  EXPECT_EQ(functional("aten::add", "Tensor"), "none");
  EXPECT_EQ(functional("aten::normal_", ""), "none");
}

}  // namespace
}  // namespace moonhalo::testing::test_variants
