// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention on the simulated devices: CUDA's device code on fibers, when the stream gets there.
#include "moonhalo/ops/neighborhood/block.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_memory.h"
#include "tests/support/simt.h"

// The device code stands after the emulator, whose words it uses.
#include "moonhalo/ops/neighborhood/kernels/cuda_choice.h"

namespace moonhalo::testing::fake {
namespace {

namespace cuda = neighborhood::cuda;
using neighborhood::Problem;
using neighborhood::Strided;

Strided seen(Strided tensor) {
  if (tensor.data != nullptr) tensor.data = kernel_view(tensor.data);
  return tensor;
}

Problem seen(Problem p) {
  for (Strided* const tensor : {&p.query, &p.key, &p.value, &p.output, &p.logsumexp, &p.grad_output, &p.grad_logsumexp,
                                &p.grad_query, &p.grad_key, &p.grad_value})
    *tensor = seen(*tensor);
  return p;
}

// Later, since a launch does not wait. Fibers in backward order in every other launch.
struct Later {
  int device;

  template <typename Kernel>
  void operator()(Kernel, const cuda::Launch& launch, int64_t blocks, size_t bytes) const {
    count_launch("moonhalo::neighborhood_attention");
    static std::atomic<int> launches{0};
    const bool backwards = ++launches % 2 == 0;
    enqueue(current_stream(device), [=] {
      simt::launch(blocks, cuda::kThreads, bytes, backwards,
                   [&](unsigned char* memory) { Kernel::run(launch, memory); });
    });
  }
};

template <typename Call>
void with_types(cuda::Element element, const Call& call) {
  switch (element) {
    case cuda::Element::kFloat32:
      return call(float{}, float{});
    case cuda::Element::kFloat64:
      return call(double{}, double{});
    case cuda::Element::kBFloat16:
      return call(c10::BFloat16{}, float{});
    case cuda::Element::kFloat16:
      return call(c10::Half{}, float{});
  }
}

void forward(const Problem& problem, cuda::Element element, int device) {
  with_types(element, [&](auto value, auto sum) {
    cuda::run_forward<decltype(value), decltype(sum)>(seen(problem), Later{device});
  });
}

void backward(const Problem& problem, const Strided& delta, cuda::Element element, int device) {
  with_types(element, [&](auto value, auto sum) {
    cuda::run_backward<decltype(value), decltype(sum)>(seen(problem), seen(delta), Later{device});
  });
}

const NeighborhoodDeviceKernels before = register_neighborhood_kernels(c10::kPrivateUse1, {forward, backward});

}  // namespace
}  // namespace moonhalo::testing::fake
