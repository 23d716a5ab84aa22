// SPDX-License-Identifier: Apache-2.0
// Convolutions of 2-byte types on blocks a few columns wide: LibTorch's kernels for some processors (AMX) give
// garbage for one column and a stride. CTest runs this suite once for each instruction set that oneDNN and ATen can
// be set to use.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "moonhalo/engine/base/text.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_thin_convolutions {
namespace {

struct Thin {
  int64_t dims, kernel, stride;
  bool transposed;
  std::vector<int64_t> widths;  // of the blocks
  int64_t channels;

  int64_t width() const {
    int64_t sum = 0;
    for (const int64_t w : widths) sum += w;
    return sum;
  }
  std::vector<int64_t> input_shape() const {
    std::vector<int64_t> shape{2, channels};
    shape.resize(static_cast<size_t>(dims) + 1, 4);
    shape.push_back(width());
    return shape;
  }
  std::vector<int64_t> weight_shape() const {
    std::vector<int64_t> shape{channels, channels};
    shape.resize(static_cast<size_t>(dims) + 2, kernel);
    return shape;
  }
  std::vector<int64_t> per_dim(int64_t value) const { return std::vector<int64_t>(static_cast<size_t>(dims), value); }
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& w) const {
    return at::convolution(x, w, {}, per_dim(stride), per_dim(kernel / 2), per_dim(1), transposed,
                           per_dim(transposed ? stride - 1 : 0), 1);
  }
  std::string name() const {
    return std::to_string(dims) + "-D kernel " + std::to_string(kernel) + " stride " + std::to_string(stride) +
           (transposed ? " transposed" : "") + " blocks " + shape_string(widths) + " channels " +
           std::to_string(channels);
  }
};

std::vector<Thin> thin_cases() {
  std::vector<Thin> cases;
  for (const int64_t dims : {1, 2, 3}) {
    for (const int64_t kernel : {1, 2, 3}) {
      for (const int64_t stride : {1, 2, 3}) {
        for (const bool transposed : {false, true}) {
          for (const auto& widths : std::vector<std::vector<int64_t>>{{1, 2}, {3, 4}, {2, 0, 1}})
            cases.push_back({dims, kernel, stride, transposed, widths, dims == 2 ? 32 : 8});
        }
      }
    }
  }
  return cases;
}

// Values, and the gradients of the sum of squares of which half precision is the rounding.
std::vector<at::Tensor> results(const Thin& thin, at::Tensor x, at::Tensor w) {
  x = x.detach().requires_grad_();
  w = w.detach().requires_grad_();
  const at::Tensor y = thin(x, w);
  y.backward(make_tensor(y.sizes(), 3, at::kFloat).to(y.scalar_type()));
  return {y.detach(), x.grad(), w.grad()};
}

TEST(ThinConvolutions, OfTwoByteTypesAreThoseOfFloat32) {
  for (const Thin& thin : thin_cases()) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(thin.name() + (dtype == at::kHalf ? " half" : " bfloat16"));
      const at::Tensor x = make_tensor(thin.input_shape(), 1, at::kFloat).to(dtype);
      const at::Tensor w = make_tensor(thin.weight_shape(), 2, at::kFloat).to(dtype);
      const std::vector<at::Tensor> expected = results(thin, x.to(at::kFloat), w.to(at::kFloat));
      on_mesh({static_cast<int64_t>(thin.widths.size())}, [&](const MeshPtr& mesh) {
        const std::vector<Placement> cut{shard(-1 + x.dim(), thin.widths)};
        const std::vector<at::Tensor> actual = results(thin, shard_of(x, mesh, cut), shard_of(w, mesh, {replicate()}));
        for (size_t i = 0; i < expected.size(); ++i) {
          const at::Tensor error = (full_tensor(actual[i]).to(at::kFloat) - expected[i]).abs();
          // Garbage is of any size, or NaN; roundings are of the largest value's.
          EXPECT_LE(error.max().item<float>(), 0.02 * expected[i].abs().max().item<float>() + 1e-3) << "result " << i;
          EXPECT_TRUE(std::isfinite(error.sum().item<float>())) << "result " << i;
        }
      });
    }
  }
}

std::atomic<int> calls_of_one_column{0}, calls_seen{0};

// Looks at every convolution of plain tensors: the kernels that blocks are computed with.
std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& call) {
  const std::string name = call.name();
  const bool backward = name == "aten::convolution_backward";
  if (!backward && name != "aten::convolution") return nullptr;
  const auto inputs = call.inputs();
  const at::Tensor& x = inputs[backward ? 1 : 0].toTensor();
  if (is_shard_tensor(x) || x.element_size() != 2) return nullptr;
  ++calls_seen;
  const at::Tensor& w = inputs[backward ? 2 : 1].toTensor();
  const size_t options = backward ? 4 : 3;  // stride, padding, dilation, transposed
  const int64_t stride = inputs[options].toIntVector().back(), padding = inputs[options + 1].toIntVector().back(),
                dilation = inputs[options + 2].toIntVector().back();
  const bool transposed = inputs[options + 3].toBool();
  const int64_t columns =
      transposed ? x.size(-1) : (x.size(-1) + 2 * padding - dilation * (w.size(-1) - 1) - 1) / stride + 1;
  if (columns == 1 && stride > 1) ++calls_of_one_column;
  return nullptr;
}

TEST(ThinConvolutions, NoKernelOfTwoByteTypesMakesOneColumnWithAStride) {
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&look).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  for (const Thin& thin : thin_cases()) {
    const at::Tensor x = make_tensor(thin.input_shape(), 1, at::kFloat).to(at::kBFloat16);
    const at::Tensor w = make_tensor(thin.weight_shape(), 2, at::kFloat).to(at::kBFloat16);
    on_mesh({static_cast<int64_t>(thin.widths.size())}, [&](const MeshPtr& mesh) {
      results(thin, shard_of(x, mesh, {shard(-1 + x.dim(), thin.widths)}), shard_of(w, mesh, {replicate()}));
    });
  }
  at::removeCallback(handle);
  EXPECT_GT(calls_seen, 100);
  EXPECT_EQ(calls_of_one_column, 0);
}

}  // namespace
}  // namespace moonhalo::testing::test_thin_convolutions
