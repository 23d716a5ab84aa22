// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>

#include "moonhalo/engine/comm/communicator.h"

namespace {

std::atomic<int> before_tests = 0;
std::atomic<int> in_tests = 0;

}  // namespace

/// Counts, and asks MKL's own: MKL finds the program's function first.
extern "C" __attribute__((visibility("default"))) int mkl_serv_vml_cpu_detect() {
  ++(::testing::UnitTest::GetInstance()->current_test_info() ? in_tests : before_tests);
  static const auto of_mkl = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return of_mkl();
}

namespace moonhalo::testing::test_vector_math {
namespace {

TEST(VectorMath, TheProcessorIsAskedForBeforeThereAreRanks) {
  if (!at::hasMKL()) GTEST_SKIP() << "this LibTorch is built without MKL";
  run_ranks(4, [](Communicator&) { EXPECT_EQ(at::arange(4, at::kDouble).square().sqrt().sum().item<double>(), 6); });

  EXPECT_EQ(before_tests, 1);
  EXPECT_EQ(in_tests, 0);
}

}  // namespace
}  // namespace moonhalo::testing::test_vector_math
