// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/testing/values.h"

namespace moonhalo::testing {

using Tensors = std::vector<at::Tensor>;

/// One way to hold a tensor, in tables.
struct Placed {
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
};

/// One tensor of a program: the whole of it, and how the ranks hold it.
struct Input {
  at::Tensor full;
  std::vector<Placement> placements = {};  ///< one per mesh dim; all Replicate when empty
  bool grad = true;                        ///< ask for its gradient (floating point and complex tensors only)
  bool plain = false;                      ///< stay a plain tensor, the same on every rank
};

struct Oracle {
  double tolerance = 1e-10;  ///< absolute and relative
  bool backward = true;
  bool double_backward = false;
  Fallback fallback = Fallback::kError;
  /// A gradient is cut as its leaf is, on every mesh dim that cuts the leaf.
  bool same_cut_gradients = true;
};
inline constexpr Oracle kForward{.backward = false}, kTwice{.double_backward = true};

/// Code that must not know whether its tensors are sharded.
using Program = std::function<Tensors(const Tensors&)>;

/// Runs `program` once on the whole plain tensors and once on ShardTensors over threads that form a
/// mesh of `mesh_shape`; adds a test failure unless results (values, shapes, dtypes,
/// requires_grad), gradients of every input for fixed cotangents and, where asked, second gradients
/// agree on every rank. An exception of either run leaves this function.
void expect_same_as_plain(std::vector<int64_t> mesh_shape, const std::vector<Input>& inputs, const Program& program,
                          Oracle options = {});

/// Runs `body(mesh)` on every rank of a mesh of threads with the given fallback. Failures of gtest
/// may be added there.
void on_mesh(std::vector<int64_t> mesh_shape, const std::function<void(const MeshPtr&)>& body,
             Fallback fallback = Fallback::kError);

/// The error's text without a backtrace, whose names take longer to find than a small call takes.
std::string message_of(const std::exception& error);
/// The message of the exception that `call` throws ("" when it throws none), without a backtrace.
std::string message_of(const std::function<void()>& call);

}  // namespace moonhalo::testing
