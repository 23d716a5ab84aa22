// SPDX-License-Identifier: Apache-2.0
// A tensor's strides tell how its block is: contiguous() copies where it must, and kernels of others, which read
// memory after it, find what they expect.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "moonhalo/engine/tensor/memory_order.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_memory_order {
namespace {

using at::Tensor;

// Reads and writes memory from the first number to the last, as kernels with data_ptr() do.
Tensor in_memory(const Tensor& x) { return at::as_strided(x, {x.numel()}, {1}); }
Tensor numbered(const Tensor& x) {
  TORCH_CHECK(x.is_contiguous(), "strides ", x.strides(), " of ", x.sizes());
  return (in_memory(x) + at::arange(x.numel(), x.options())).view(x.sizes());
}
void number(const Tensor& x) {
  TORCH_CHECK(x.is_contiguous(), "strides ", x.strides(), " of ", x.sizes());
  in_memory(x).add_(at::arange(x.numel(), x.options()));
}
Tensor first_of(at::TensorList list) { return numbered(list[0]) + numbered(list[1]); }
Tensor channels_last(const Tensor& x) {
  TORCH_CHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast), "strides ", x.strides(), " of ", x.sizes());
  return x * 2;
}

TORCH_LIBRARY(order_test, library) {
  library.def("numbered(Tensor x) -> Tensor");
  library.def("number(Tensor(a!) x) -> ()");
  library.def("first_of(Tensor[] list) -> Tensor");
  library.def("channels_last(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(order_test, CPU, library) {
  library.impl("numbered", &numbered);
  library.impl("number", &number);
  library.impl("first_of", &first_of);
  library.impl("channels_last", &channels_last);
}

template <typename Signature, typename... Arguments>
auto call(const char* name, Arguments&&... arguments) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("order_test::") + name).c_str(), "")
      .typed<Signature>()
      .call(std::forward<Arguments>(arguments)...);
}
Tensor call_numbered(const Tensor& x) { return call<Tensor(const Tensor&)>("numbered", x); }

Tensor gradient(const Tensor& x, const std::function<Tensor(const Tensor&)>& run) {
  const Tensor leaf = x.detach().requires_grad_();
  run(leaf).square().sum().backward();
  return leaf.grad();
}

struct Program {
  const char* name;
  std::function<Tensor(const Tensor&)> run;  // of [2, 6, 4, 6]
};

const std::vector<Program> kPrograms = {
    {"einsum",
     [](const Tensor& x) {
       return at::einsum("bchw,co->bohw", {x, make_tensor({6, 3}, 2)});
     }},
    {"einsum_gradient",
     [](const Tensor& x) {
       return gradient(x, [](const Tensor& y) { return at::einsum("bchw,hco->bowc", {y, make_tensor({4, 6, 3}, 2)}); });
     }},
    {"einsum_without_sum",
     [](const Tensor& x) {
       return at::einsum("bchw,co->ohcbw", {x, make_tensor({6, 3}, 2)});
     }},
    {"matmul",
     [](const Tensor& x) {
       return x.permute({0, 2, 3, 1}).matmul(make_tensor({6, 3}, 2)).permute({0, 3, 1, 2});
     }},
    {"pointwise",
     [](const Tensor& x) {
       return x.permute({0, 2, 1, 3}) * 2;
     }},
    {"clone",
     [](const Tensor& x) {
       return x.permute({3, 0, 2, 1}).clone();
     }},
    {"convolution",
     [](const Tensor& x) {
       return at::conv2d(x.contiguous(at::MemoryFormat::ChannelsLast), make_tensor({3, 6, 3, 3}, 2), {}, 1, 1);
     }},
    {"convolution_gradient",
     [](const Tensor& x) {
       return gradient(x.contiguous(at::MemoryFormat::ChannelsLast), [](const Tensor& y) {
         return at::conv2d(y, make_tensor({3, 6, 3, 3}, 2), {}, 1, 1);
       });
     }},
    {"transposed_convolution",
     [](const Tensor& x) {
       return at::conv_transpose2d(x, make_tensor({6, 3, 3, 3}, 2), {}, 2, 1, 1);
     }},
    {"softmax",
     [](const Tensor& x) {
       return x.permute({0, 2, 3, 1}).softmax(-1);
     }},
    {"cumsum",
     [](const Tensor& x) {
       return x.permute({0, 2, 3, 1}).cumsum(1);
     }},
    {"fft",
     [](const Tensor& x) {
       return at::real(at::fft_rfftn(x, {}, at::IntArrayRef{0, 1}));
     }},
    {"ifft", [](const Tensor& x) { return at::fft_ihfft(x, {}, 1).abs(); }},
    {"solve_triangular",
     [](const Tensor& x) {
       return at::linalg_solve_triangular(make_tensor({4, 4}, 2).tril() + 2 * at::eye(4, at::kDouble), x, false);
     }},
    {"nonzero", [](const Tensor& x) { return (x > 0).nonzero(); }},
    {"rot90",
     [](const Tensor& x) {
       return at::rot90(x, 1, {2, 3});
     }},
    {"attention_gradient",
     [](const Tensor& x) {
       return gradient(x, [](const Tensor& y) { return at::scaled_dot_product_attention(y, y, y); });
     }},
    {"attention_sums",
     [](const Tensor& x) { return std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(x, x, x)); }},
    {"pool_gradient",
     [](const Tensor& x) {
       return gradient(x.contiguous(at::MemoryFormat::ChannelsLast),
                       [](const Tensor& y) { return at::max_pool2d(y, 2); });
     }},
    {"sum_of_transposed", [](const Tensor& x) { return x.transpose(1, 3).sum(0); }},
    {"flip",
     [](const Tensor& x) {
       return x.permute({0, 2, 3, 1}).flip(1);
     }},
    {"batched",
     [](const Tensor& x) {
       return at::matmul(x.permute({2, 0, 1, 3}), x.permute({2, 0, 3, 1}));
     }},
    {"sample",
     [](const Tensor& x) {
       return at::upsample_bilinear2d(x.contiguous(at::MemoryFormat::ChannelsLast), {8, 9}, false);
     }},
};

const std::vector<std::pair<std::vector<int64_t>, std::vector<Placement>>> kPlaced = {
    {{2}, {replicate()}},         {{3}, {shard(0, {1, 0, 1})}},           {{2}, {shard(1, {5, 1})}}, {{4}, {shard(2)}},
    {{3}, {shard(3, {1, 0, 5})}}, {{2, 2}, {shard(1, {2, 4}), shard(3)}}, {{3}, {partial()}},
};

// Whatever the kernels of blocks do, and on ranks whose blocks are thin or empty.
TEST(MemoryOrder, NewBlocksLieAsTheirTensorsSay) {
  const Tensor full = make_tensor({2, 6, 4, 6}, 1);
  for (const auto& [shape, placements] : kPlaced) {
    on_mesh(shape, [&, &placements = placements](const MeshPtr& mesh) {
      for (const Program& program : kPrograms) {
        const Tensor y = program.run(shard_of(full, mesh, placements)).detach();
        SCOPED_TRACE(::testing::Message() << program.name << " " << spec(y)->to_string() << ", strides " << y.strides()
                                          << ", block " << to_local(y).strides());
        const bool gaps = !y.is_non_overlapping_and_dense();  // of a view, such as the real part
        EXPECT_TRUE(gaps || spec(y)->has_partial() || has_layout(to_local(y), y.strides()));
        const Tensor copy = y.contiguous();
        EXPECT_TRUE(to_local(copy).is_contiguous());
        EXPECT_EQ(difference(full_tensor(copy), program.run(full).detach(), 1e-10), "");
      }
    });
  }
}

// They are gathered, as no rule covers them.
TEST(MemoryOrder, KernelsOfOthersGetWhatStridesSay) {
  const Tensor full = make_tensor({2, 6, 4, 6}, 1);
  for (const auto& [shape, placements] : kPlaced) {
    on_mesh(
        shape,
        [&, &placements = placements](const MeshPtr& mesh) {
          for (const Program& program : kPrograms) {
            SCOPED_TRACE(::testing::Message() << program.name << " " << placements[0].to_string());
            const Tensor y = program.run(shard_of(full, mesh, placements)).detach().contiguous(),
                         expected = program.run(full).detach().contiguous();
            EXPECT_EQ(difference(full_tensor(call_numbered(y)), call_numbered(expected), 1e-10), "");
          }
          const Tensor x = shard_of(full, mesh, placements);
          const std::vector<Tensor> list = {x, x.transpose(0, 3).contiguous().transpose(0, 3).contiguous()};
          EXPECT_EQ(difference(full_tensor(call<Tensor(at::TensorList)>("first_of", list)), 2 * numbered(full), 1e-10),
                    "");
          const Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
          EXPECT_EQ(difference(full_tensor(call<Tensor(const Tensor&)>("channels_last", last)), 2 * full, 1e-10), "");
          EXPECT_NE(message_of([&] { call_numbered(x.transpose(0, 3)); }).find("strides"), std::string::npos);
        },
        Fallback::kReplicate);
  }
}

TEST(MemoryOrder, WhatKernelsOfOthersWriteArrives) {
  const Tensor full = make_tensor({6, 4}, 1), expected = numbered(full);
  on_mesh(
      {3},
      [&](const MeshPtr& mesh) {
        const SpecPtr spec = make_spec(mesh, {6, 4}, {shard(0, {1, 0, 5})});
        const Tensor block = to_local(shard_of(full, mesh, {shard(0, {1, 0, 5})})), turned = block.t().contiguous().t();
        const Tensor x = from_local(turned, spec);  // says that rows are one behind the other, and they do not
        call<void(const Tensor&)>("number", x);
        EXPECT_EQ(difference(full_tensor(x), expected, 1e-12), "");
        EXPECT_TRUE(to_local(x).is_alias_of(turned));
      },
      Fallback::kReplicate);
}

// from_local takes blocks as they are, and all ranks say the same of them.
TEST(MemoryOrder, BlocksThatAreGivenAreDeclared) {
  const Tensor full = make_tensor({7, 4}, 1);
  const auto turned = [](const Tensor& block) { return block.t().contiguous().t(); };
  const auto with_gaps = [](const Tensor& block) { return at::cat({block, block}, 1).narrow(1, 0, 4); };
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 4}, {1, 0, 6}, {1, 5, 1}}) {
    on_mesh({static_cast<int64_t>(sizes.size())}, [&](const MeshPtr& mesh) {
      const Tensor block = to_local(shard_of(full, mesh, {shard(0, sizes)})).contiguous();
      const auto given = [&](const Tensor& local) { return from_local(local, mesh, {shard(0)}); };
      EXPECT_EQ(given(block).strides(), full.strides());
      EXPECT_EQ(given(turned(block)).strides(), at::IntArrayRef({1, 7}));
      const bool largest = block.size(0) == *std::max_element(sizes.begin(), sizes.end());
      for (const Tensor& local : {turned(block), with_gaps(block), largest ? turned(block) : block,
                                  largest ? with_gaps(block) : turned(block)}) {
        const Tensor x = given(local);
        EXPECT_EQ(x.is_contiguous(), false) << x.strides();
        EXPECT_TRUE(to_local(x).is_alias_of(local));
        Tensor copy = x.contiguous();
        EXPECT_TRUE(to_local(copy).is_contiguous());
        copy.mul_(2);
        EXPECT_EQ(difference(full_tensor(x), full, 0), "");
        EXPECT_EQ(difference(full_tensor(x.reshape({2, 14}) + x.view({2, 14})), 2 * full.reshape({2, 14}), 0), "");
        EXPECT_EQ(difference(full_tensor(redistribute(x, {replicate()}) + x), 2 * full, 0), "");
      }
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_memory_order
