// SPDX-License-Identifier: Apache-2.0
// ops/neighborhood/kernels/cuda_absent.cpp: what a build without CUDA says. Left out of builds with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/ops/neighborhood/kernels/cuda.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_cuda_absent {
namespace {

TEST(NeighborhoodCudaAbsent, X04_SaysWhatIsMissing) {
  namespace cuda = neighborhood::cuda;
  const neighborhood::Problem problem;
  for (const std::string& message : {message_of([&] { cuda::forward(problem, cuda::Element::kFloat32, 1); }),
                                     message_of([&] { cuda::backward(problem, {}, cuda::Element::kFloat16, 1); })}) {
    EXPECT_THAT(message, ::testing::StartsWith("neighborhood_attention: Moonhalo was built without CUDA"));
    EXPECT_THAT(message, ::testing::HasSubstr("\n  have  tensors on cuda:1\n  fix   build the preset `cuda`"));
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_cuda_absent
