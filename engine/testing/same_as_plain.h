// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::testing {

/// The code under test: takes tensors and returns tensors. It must work for plain tensors and for ShardTensors, and
/// must return the same results each time it is called with the same inputs. Random operators draw the same numbers in
/// each call. Pass weights as inputs if their gradients are to be compared.
using Program = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// The functions that make placements, as a report writes them: those of C++ unless a binding sets others.
struct PlacementNames {
  /// The functions of the placements.
  std::string shard = "shard", stored = "stored", replicate = "replicate", partial = "partial";
  /// A function that makes the operation of a Partial from its name; empty: the name alone.
  std::string op = "parse_reduce_op";
};

/// Options for comparing a program on ShardTensors with the same program on plain tensors.
struct SameAsPlainOptions {
  /// The number of ranks. 0 means 3 rank threads, or all processes of the launcher. Under a launcher any other value
  /// must be the number of processes.
  int64_t ranks = 0;
  /// The shape of the mesh. Empty: one dim of all ranks.
  std::vector<int64_t> mesh = {};
  /// The placements of each input, one per mesh dim. An empty inner list makes that input a plain tensor, equal on all
  /// ranks. If the outer list is empty, placements are drawn at random `draws` times; uneven and empty blocks occur.
  std::vector<std::vector<Placement>> placements = {};
  int64_t draws = 10;
  /// Seeds the random placements and the random operators in the program.
  uint64_t seed = 0;
  /// `gradients` compares the gradients of all floating-point and complex inputs, for fixed cotangents of the results.
  /// `gradgrad` compares the gradients of these gradients.
  bool gradients = true;
  bool gradgrad = false;
  /// The absolute and relative tolerance. A negative value selects it by the dtype of each tensor: float64 1e-10,
  /// float32 1e-4, float16 1e-2, bfloat16 5e-2, integers and bool 0.
  double tolerance = -1;
  PlacementNames names = {};
  /// Called before the program runs on blocks, with their placements as source.
  std::function<void(const std::string&)> before_blocks = {};
};

/// Compares shapes, dtypes and values of the results and the gradients on the ranks of `mesh`. Returns "" if all
/// agree. Otherwise returns a string, equal on all ranks, that names the placements, the tensor and the place of
/// the difference. Collective over `mesh`. The inputs are plain tensors, equal on all ranks. Throws ValueError for
/// placements that do not fit, and passes on exceptions of the program.
std::string difference_from_plain(const MeshPtr& mesh, const Program& program, const std::vector<at::Tensor>& inputs,
                                  const SameAsPlainOptions& options = {});

/// Does the same on rank threads of this process (run_ranks), on the CPU. Not collective.
std::string difference_from_plain(const Program& program, const std::vector<at::Tensor>& inputs,
                                  const SameAsPlainOptions& options = {});

}  // namespace moonhalo::testing
