// SPDX-License-Identifier: Apache-2.0
// Conjugations, signs and zeros that LibTorch has put off are not in a tensor's memory: wherever a plain tensor
// becomes a block, is sent or is combined with ShardTensors, its values count.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_lazy_bits {
namespace {

struct Lazy {
  const char* name;
  at::Tensor tensor, values;
};

// Tensors of [4]. The third is contiguous in memory, so nothing else would make a copy of it.
std::vector<Lazy> lazy_tensors() {
  const at::Tensor z = make_tensor({4}, 1, at::kComplexDouble), one = make_tensor({1}, 2, at::kComplexDouble);
  std::vector<Lazy> all = {{"conjugated", z.conj(), z.clone().conj_physical()},
                           {"negated", at::imag(z.conj()), -at::imag(z).clone()},
                           {"negated, contiguous", at::_neg_view(make_tensor({4}, 3)), -make_tensor({4}, 3)},
                           {"both", at::_neg_view(z.conj()), -z.clone().conj_physical()},
                           {"zeros", at::_efficientzerotensor({4}, at::kDouble), at::zeros({4}, at::kDouble)}};
  for (const Lazy& lazy : all) TORCH_INTERNAL_ASSERT(is_lazy(lazy.tensor) && !is_lazy(lazy.values), lazy.name);
  return all;
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  EXPECT_FALSE(is_lazy(actual)) << what;
  EXPECT_EQ(difference(actual, expected, 0), "") << what;
}

TEST(LazyBits, BlocksHoldTheValues) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    for (const Lazy& lazy : lazy_tensors()) {
      const at::Tensor twice = at::cat({lazy.values, lazy.values});
      expect_equal(full_tensor(from_local(lazy.tensor, mesh, {shard(0)})), twice, lazy.name);
      expect_equal(full_tensor(from_local(lazy.tensor, make_spec(mesh, {8}, {shard(0)}))), twice, lazy.name);
      expect_equal(full_tensor(from_local(lazy.tensor, mesh, {replicate()})), lazy.values, lazy.name);
      expect_equal(full_tensor(from_local(lazy.tensor, mesh, {partial()})), lazy.values + lazy.values, lazy.name);
      expect_equal(to_local(from_local(lazy.tensor, mesh, {shard(0)})), lazy.values, lazy.name);
      const at::Tensor moved = redistribute(from_local(lazy.tensor, mesh, {shard(0)}), {shard(0, {1, 7})});
      expect_equal(full_tensor(moved), twice, lazy.name);
    }
  });
}

TEST(LazyBits, WholeTensorsAreCutByTheirValues) {
  for (const int64_t ranks : {1, 2, 3}) {
    on_mesh({ranks}, [](const MeshPtr& mesh) {
      for (const Lazy& lazy : lazy_tensors()) {
        for (const std::vector<Placement>& cut : {std::vector{shard(0)}, std::vector{replicate()}}) {
          expect_equal(full_tensor(distribute_tensor(lazy.tensor, mesh, cut)), lazy.values, lazy.name);
          const at::Tensor source = mesh->rank() == mesh->size() - 1 ? lazy.tensor : at::Tensor();
          expect_equal(full_tensor(scatter_tensor(source, mesh, cut, mesh->size() - 1)), lazy.values, lazy.name);
        }
      }
    });
  }
}

// Products have kernels that take conjugated tensors, so LibTorch hands those on as they are.
TEST(LazyBits, PlainOperandsCountByTheirValues) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    for (const Lazy& lazy : lazy_tensors()) {
      const at::Tensor full = make_tensor({4, 3}, 5, lazy.values.scalar_type());
      for (const Placement& cut : {shard(0, {1, 3}), shard(1, {3, 0}), replicate(), partial()}) {
        const at::Tensor x = shard_of(full, mesh, {cut});
        const auto check = [&](const at::Tensor& actual, const at::Tensor& expected) {
          EXPECT_EQ(difference(is_shard_tensor(actual) ? full_tensor(actual) : actual, expected, 1e-12), "")
              << lazy.name << ", " << cut.to_string();
        };
        const at::Tensor row = lazy.tensor.unsqueeze(0), values = lazy.values.unsqueeze(0);
        check(at::mm(row, x), at::mm(values, full));
        check(at::mm(x.t(), row.t()), at::mm(full.t(), values.t()));
        check(at::mul(x, row.t()), at::mul(full, values.t()));
        check(at::add(x, row.t()), at::add(full, values.t()));
        check(at::sub(row.t(), x), at::sub(values.t(), full));
        check(x.clone().copy_(row.t().expand({4, 3})), values.t().expand({4, 3}).clone());
        check(at::mv(x.t(), lazy.tensor), at::mv(full.t(), lazy.values));
        check(at::cat({x, row.t()}, 1), at::cat({full, values.t()}, 1));
      }
    }
  });
}

TEST(LazyBits, TheGradientOfAConjugatedBlock) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor leaf = make_tensor({4}, 1 + mesh->rank(), at::kComplexDouble).requires_grad_();
    const at::Tensor x = from_local(leaf.conj(), mesh, {shard(0)});
    const at::Tensor weights = shard_of(make_tensor({8}, 2, at::kComplexDouble), mesh, {shard(0)});

    at::real((x * weights).sum()).backward();

    const at::Tensor plain = leaf.detach().clone().requires_grad_();
    at::real((plain.conj() * make_tensor({8}, 2, at::kComplexDouble).narrow(0, 4 * mesh->rank(), 4)).sum()).backward();
    EXPECT_EQ(difference(leaf.grad().resolve_conj(), plain.grad().resolve_conj(), 1e-12), "");
  });
}

// Collectives read and write memory.
TEST(LazyBits, CollectivesRefuseThem) {
  run_ranks(2, [](Communicator& world) {
    for (const Lazy& lazy : lazy_tensors()) {
      at::Tensor out = at::zeros({8}, lazy.values.options()), in_place = lazy.tensor;
      const std::vector<int64_t> counts = {4, 4}, halves = {2, 2};
      const std::string messages[] = {
          message_of([&] { world.all_gather(lazy.tensor, counts, out); }),
          message_of([&] { world.all_reduce(in_place, ReduceOp::kSum); }),
          message_of([&] { world.broadcast(in_place, 0); }),
          message_of([&] { world.reduce_scatter(lazy.tensor, halves, out, ReduceOp::kSum); }),
          message_of([&] { world.all_to_all(lazy.tensor, halves, out, halves); }),
          message_of([&] {
            world.exchange({{1 - world.rank(), lazy.tensor}}, {{1 - world.rank(), out}});
          })};
      for (const std::string& text : messages) {
        EXPECT_NE(text.find("is conjugated, negated or zero by a mark alone"), std::string::npos)
            << lazy.name << ": " << text;
        EXPECT_NE(text.find("resolve_conj()"), std::string::npos) << text;
      }
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_lazy_bits
