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

/// Code under test: tensors in, tensors out. It must not know whether its tensors are sharded, and must give the same
/// each time it is called with the same inputs; random operators draw the same numbers each time. It takes weights as
/// inputs if their gradients are to be compared.
using Program = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Options of the comparison of a program on blocks with itself on plain tensors.
struct SameAsPlainOptions {
  /// Ranks, which are threads; 0: three, or all processes of the launcher. Several processes must be as many.
  int64_t ranks = 0;
  /// Shape of the mesh; empty: a line of all ranks.
  std::vector<int64_t> mesh = {};
  /// For each input its placements, one for each mesh dim; an empty list: a plain tensor, the same on all ranks. Empty:
  /// drawn, as often as `draws` says, with uneven and empty blocks.
  std::vector<std::vector<Placement>> placements = {};
  int64_t draws = 10;
  /// The draws follow from it, and so do random operators in the program.
  uint64_t seed = 0;
  /// Compare the gradients of all floating point and complex inputs, for fixed cotangents of the results; and the
  /// gradients of these gradients.
  bool gradients = true;
  bool gradgrad = false;
  /// Absolute and relative. Below 0, by the dtype of each tensor: float64 1e-10, float32 1e-4, float16 1e-2, bfloat16
  /// 5e-2, integers and bool 0.
  double tolerance = -1;
};

/// Compares shapes, dtypes and values of the results, and gradients, on the ranks of `mesh`. Returns "" where all
/// agree, else which placements and which tensor differ where: the same text on all ranks. Collective; all ranks give
/// the same inputs, which are plain. ValueError for placements that do not fit. What the program throws goes through.
std::string difference_from_plain(const MeshPtr& mesh, const Program& program, const std::vector<at::Tensor>& inputs,
                                  const SameAsPlainOptions& options = {});

/// The same on rank threads of this process (run_ranks), on the CPU.
std::string difference_from_plain(const Program& program, const std::vector<at::Tensor>& inputs,
                                  const SameAsPlainOptions& options = {});

}  // namespace moonhalo::testing
