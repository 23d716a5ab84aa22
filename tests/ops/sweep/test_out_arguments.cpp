// SPDX-License-Identifier: Apache-2.0
// out= tensors of operators that LibTorch makes of others: it resizes them itself, where no dispatcher sees it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_out_arguments {
namespace {

using T = at::Tensor;

struct OutCase {
  std::string name;
  std::function<void(T& out, const T& x)> call;
};

const std::vector<OutCase>& cases() {
  static const std::vector<OutCase> kCases = {
      {"inner", [](T& o, const T& x) { at::inner_out(o, x.select(1, 0), x.select(1, 1)); }},
      {"vecdot", [](T& o, const T& x) { at::linalg_vecdot_out(o, x.select(1, 0), x.select(1, 1)); }},
      {"norm", [](T& o, const T& x) { at::linalg_norm_out(o, x); }},
      {"norm0", [](T& o, const T& x) { at::norm_out(o, x, 2, at::IntArrayRef{}, false); }},
      {"vnorm", [](T& o, const T& x) { at::linalg_vector_norm_out(o, x); }},
      {"matrix_norm", [](T& o, const T& x) { at::linalg_matrix_norm_out(o, x, "fro"); }},
      {"cond", [](T& o, const T& x) { at::linalg_cond_out(o, x.slice(0, 0, 4)); }},
      {"quantile", [](T& o, const T& x) { at::quantile_out(o, x, 0.5); }},
      {"nanquantile", [](T& o, const T& x) { at::nanquantile_out(o, x, 0.5); }},
      {"sum", [](T& o, const T& x) { at::sum_out(o, x, at::IntArrayRef{}); }},
      {"dot", [](T& o, const T& x) { at::dot_out(o, x.select(1, 0), x.select(1, 1)); }},
      {"matmul14", [](T& o, const T& x) { at::matmul_out(o, x.select(0, 0), x.slice(0, 0, 4)); }},
      {"matmul3", [](T& o, const T& x) { at::matmul_out(o, x.unsqueeze(0), x.unsqueeze(0).transpose(1, 2)); }},
      {"matmul2", [](T& o, const T& x) { at::matmul_out(o, x, x.t()); }},
      {"linalg_matmul",
       [](T& o, const T& x) { at::linalg_matmul_out(o, x.unsqueeze(0), x.unsqueeze(0).transpose(1, 2)); }},
      {"power", [](T& o, const T& x) { at::linalg_matrix_power_out(o, x.slice(0, 0, 4), 3); }},
      {"power0", [](T& o, const T& x) { at::linalg_matrix_power_out(o, x.slice(0, 0, 4), 0); }},
      {"power-1", [](T& o, const T& x) { at::linalg_matrix_power_out(o, x.slice(0, 0, 4), -1); }},
      {"powers of a batch",
       [](T& o, const T& x) {
         at::linalg_matrix_power_out(o, x.view({6, 2, 2}), 5);
       }},
      {"power2 of a batch",
       [](T& o, const T& x) {
         at::matrix_power_out(o, x.view({6, 2, 2}), 2);
       }},
      {"inverses",
       [](T& o, const T& x) {
         at::linalg_matrix_power_out(o, x.view({6, 2, 2}), -2);
       }},
      {"kron", [](T& o, const T& x) { at::kron_out(o, x, x); }},
      {"multidot",
       [](T& o, const T& x) {
         at::linalg_multi_dot_out(o, {x, x.t(), x});
       }},
  };
  return kCases;
}

// An empty out= tensor takes the result's shape, one of that shape keeps its cut, wherever the input and it are cut.
TEST(OutArguments, EmptyOnesAndThoseOfTheRightShape) {
  const T full = make_tensor({6, 4}, 1);
  for (const int64_t ranks : {2, 3}) {
    on_mesh(
        {ranks},
        [&](const MeshPtr& mesh) {
          for (const auto& [name, call] : cases()) {
            T plain = at::empty({0}, at::kDouble);
            call(plain, full);
            for (const Placement& held : {shard(0), shard(1), replicate(), partial()}) {
              const T none = at::empty({0}, at::kDouble), right = make_tensor(plain.sizes(), 7);
              std::vector<std::pair<std::string, T>> outs = {
                  {"empty, plain", none.clone()},
                  {"empty, replicated", shard_of(none, mesh, {replicate()})},
                  {"empty, cut", shard_of(none, mesh, {shard(0)})},
                  {"of the shape, plain", right.clone()},
                  {"of the shape, replicated", shard_of(right, mesh, {replicate()})}};
              if (plain.dim() > 0)
                outs.emplace_back("of the shape, cut", shard_of(right, mesh, {shard(plain.dim() - 1)}));
              for (auto& [kind, out] : outs) {
                const T x = shard_of(full, mesh, {held});
                const std::string text = message_of([&] { call(out, x); });
                const std::string where = name + " of " + held.to_string() + " into out= " + kind;
                EXPECT_EQ(text, "") << where;
                if (!text.empty()) continue;
                EXPECT_EQ(difference(is_shard_tensor(out) ? full_tensor(out) : out, plain, 1e-9), "") << where;
                if (!is_shard_tensor(out)) continue;
                EXPECT_EQ(out.sizes(), at::IntArrayRef(spec(out)->global_shape())) << where;
                EXPECT_FALSE(out.has_storage()) << where;
              }
            }
          }
        },
        Fallback::kReplicate);
  }
}

// The tensor that was resized is a ShardTensor like any other afterwards.
TEST(OutArguments, AreUsedOn) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const T full = make_tensor({6, 4}, 1), x = shard_of(full, mesh, {shard(0)});
    T out = shard_of(at::empty({0}, at::kDouble), mesh, {shard(0)});

    at::linalg_norm_out(out, x);
    const T more = out + x;
    at::mul_out(out, out, out);

    EXPECT_EQ(difference(full_tensor(more), full.norm() + full, 1e-12), "");
    EXPECT_EQ(difference(full_tensor(out.clone()), full.norm().square(), 1e-12), "");
  });
}

TEST(OutArguments, TakeNoGradient) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const T x = shard_of(make_tensor({2, 4, 4}, 1), mesh, {shard(0)}).requires_grad_();
    T out = shard_of(at::empty({0}, at::kDouble), mesh, {replicate()});

    EXPECT_NE(message_of([&] { at::matmul_out(out, x, x); }).find("matmul: an out= tensor takes no gradient"),
              std::string::npos);
    EXPECT_NE(message_of([&] {
                at::matrix_power_out(out, x, 3);
              }).find("linalg_matrix_power: an out= tensor takes no gradient"),
              std::string::npos);
    EXPECT_NE(message_of([&] { at::kron_out(out, x, x); }).find("kron: an out= tensor takes no gradient"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_out_arguments
