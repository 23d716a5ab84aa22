// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/process_memory.h"

#include <ATen/ATen.h>
#include <malloc.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include <algorithm>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/profile/memory.h"

// The program is linked with tcmalloc (cmake/MoonhaloCompiler.cmake), which has this function; elsewhere it is null.
extern "C" __attribute__((weak)) void MallocExtension_ReleaseFreeMemory();

namespace moonhalo {
namespace {

// A step of a small model of everything: convolutions, products, attention, transforms, norms, pointwise operators.
void train_once() {
  const auto parameter = [](at::IntArrayRef sizes) { return torch::full(sizes, 0.1).requires_grad_(); };
  at::Tensor x = parameter({2, 16, 32, 32});
  const at::Tensor weight = parameter({16, 16, 3, 3}), one = parameter({16, 16, 1, 1}), scale = parameter({16});
  at::Tensor y = at::conv2d(x, weight, {}, {1, 1}, {1, 1});
  y = at::gelu(at::group_norm(y, 4, scale, scale)) + at::silu(at::conv2d(x, one));
  y = at::cat({y, at::upsample_bilinear2d(at::max_pool2d(y, 2), {32, 32}, false)}, 1);
  y = at::fft_irfft2(at::fft_rfft2(y));
  const at::Tensor tokens = y.flatten(2).transpose(1, 2);  // [2, 1024, 32]
  const at::Tensor wide = parameter({96, 32}), norm = parameter({32});
  const std::vector<at::Tensor> parts = at::linear(at::layer_norm(tokens, {32}, norm, norm), wide)
                                            .unflatten(-1, {3, 4, 8})
                                            .permute({2, 0, 3, 1, 4})
                                            .unbind(0);
  const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  (seen.square().mean() + at::softmax(tokens, -1).sum()).backward();
  const at::NoGradGuard without_graph;
  for (const at::Tensor& p : {weight, one, scale, wide, norm}) {
    at::Tensor mean = at::zeros_like(p), square = at::zeros_like(p);
    mean.lerp_(p.grad(), 0.1);
    square.mul_(0.99).addcmul_(p.grad(), p.grad(), 0.01);
    p.data().addcdiv_(mean, square.sqrt().add_(1e-8), -1e-3);
  }
}

// While all ranks are there.
int64_t resident_of_ranks(int ranks) {
  int64_t resident = 0;
  run_ranks(ranks, [&](Communicator& world) {
    train_once();
    at::Tensor sum = at::ones({1 << 16});
    world.all_reduce(sum);
    if (world.rank() == 0) {
      malloc_trim(0);
      resident = resident_memory();
    }
    world.barrier();
  });
  return resident;
}

}  // namespace

void release_free_memory() {
  malloc_trim(0);
  if (MallocExtension_ReleaseFreeMemory != nullptr) MallocExtension_ReleaseFreeMemory();
}

ProcessMemory measure_process_memory() {
  const int64_t one = resident_of_ranks(1), two = resident_of_ranks(2);
  release_free_memory();
  return {one, std::max<int64_t>(0, two - one), resident_memory()};
}

}  // namespace moonhalo
