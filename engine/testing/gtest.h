// SPDX-License-Identifier: Apache-2.0
#pragma once

/// GoogleTest assertions for sharded code; see docs/testing.md. Include it as <moonhalo/testing.h>, and link
/// moonhalo::testing.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/testing/same_as_plain.h"

namespace moonhalo::testing {

/// The test environment for programs started by mpirun, srun or torchrun: all tests run on the launched processes, one
/// rank each. Rank 0 prints the results, the other ranks print only their failures.
class LaunchedProcesses : public ::testing::Environment {
 public:
  /// Returns null if this process was started without a launcher. Then ranks are threads. Not collective.
  static Communicator* world() { return world_.get(); }

  /// Connect the processes before the first test, and wait for all of them after the last. GoogleTest calls them.
  /// Collective.
  void SetUp() override {
    const Launch launch = detect_launch();
    if (launch.size == 1) return;
    world_ = make_world("", launch);
    if (world_->rank() == 0) return;
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  /// GoogleTest calls it. Collective.
  void TearDown() override {
    if (world_) world_->barrier();
    world_.reset();
  }

 private:
  class Failures : public ::testing::EmptyTestEventListener {
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (result.failed())
        std::fprintf(stderr, "rank %d: %s:%d: %s\n", world_->rank(), result.file_name(), result.line_number(),
                     result.message());
    }
  };
  static inline CommunicatorPtr world_;
};
/// Registers the environment in every program that includes this header.
inline ::testing::Environment* const launched_processes = ::testing::AddGlobalTestEnvironment(new LaunchedProcesses);

/// The function behind EXPECT_SAME_AS_PLAIN, which says what it takes. The program may return one tensor of any shape
/// instead of a list. Collective over all processes of the launcher.
template <class AnyProgram>
::testing::AssertionResult same_as_plain(const AnyProgram& program, const std::vector<at::Tensor>& inputs,
                                         const SameAsPlainOptions& options = {}) {
  const Program listed = [&program](const std::vector<at::Tensor>& tensors) -> std::vector<at::Tensor> {
    if constexpr (std::is_convertible_v<std::invoke_result_t<AnyProgram, const std::vector<at::Tensor>&>, at::Tensor>) {
      return {program(tensors)};
    } else {
      return program(tensors);
    }
  };
  std::string text;
  if (Communicator* const world = LaunchedProcesses::world()) {
    if (options.ranks > 0 && options.ranks != world->size())
      return ::testing::AssertionFailure() << "needs " << options.ranks << " ranks, and the launcher started "
                                           << world->size() << " processes; leave ranks out, or start as many";
    const auto shape = options.mesh.empty() ? std::vector<int64_t>{world->size()} : options.mesh;
    text = difference_from_plain(init_device_mesh(*world, "cpu", shape), listed, inputs, options);
  } else {
    text = difference_from_plain(listed, inputs, options);
  }
  if (text.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "blocks differ from plain tensors " << text;
}

}  // namespace moonhalo::testing

/// EXPECT_SAME_AS_PLAIN(program, inputs, options) fails if the program returns other results or gradients for
/// ShardTensors than for plain tensors. `program` takes a std::vector<at::Tensor> and returns an at::Tensor or a
/// std::vector<at::Tensor>. `options` is a SameAsPlainOptions and optional: `{.mesh = {2, 2}}`. Collective over all
/// processes of the launcher.
#define EXPECT_SAME_AS_PLAIN(...) EXPECT_TRUE(::moonhalo::testing::same_as_plain(__VA_ARGS__))
#define ASSERT_SAME_AS_PLAIN(...) ASSERT_TRUE(::moonhalo::testing::same_as_plain(__VA_ARGS__))
