// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// Says what cutting an axis does to the results.
enum class AxisKind : uint8_t {
  kKeep,    ///< the axis is in the results: they are cut in the same way
  kReduce,  ///< the axis is summed (or max'ed, ...) away: a cut leaves the results Partial(reduce)
  kUncut,   ///< the operator needs the whole axis on one rank
};

/// Says how a slot may stay Partial.
enum class PartialUse : uint8_t {
  kResolve,    ///< must be resolved first
  kOneFactor,  ///< linear in this tensor alone (a product): one Partial input at a time, the results become Partial
  kAllTerms,   ///< linear in all such tensors together (a sum): all of them Partial of the same kind, the results too
};

/// An operator described by axes, as in an einsum: most operators need no other rule.
///
///     mm [m, k] x [k, n] -> [m, n]     axes m, n: kKeep, k: kReduce
///     softmax over dim 1 of [a, b, c]  axes a, c: kKeep, b: kUncut
///     sum over dim 0 of [a, b]         axis a: kReduce, b: kKeep
///
/// -1 marks a dim that has no axis (size one against broadcasting, or never cut).
struct Axes {
  std::vector<AxisKind> kinds;
  std::vector<std::vector<int>> inputs;             ///< per slot, per dim: the axis or -1 (undefined tensors: empty)
  std::vector<std::vector<int>> outputs;            ///< per result, per dim
  std::vector<std::vector<int64_t>> output_shapes;  ///< global; per result
  std::vector<PartialUse> linear = {};              ///< per slot; default kResolve
  ReduceOp reduce = ReduceOp::kSum;
  /// The result (and its slot) whose spec is given: an in-place or out= operator writes there.
  int fixed_output = -1;
  SpecPtr fixed_spec = {};
};

/// Chooses for every axis one of the cuts that the inputs have, or none, so that the estimated traffic is least
/// (with divided_work.h, and the work of products), and fills in the plan's inputs and outputs. A factor of a
/// product that alone is cut along a summed axis may be cut along another of its own. Every rank makes the same
/// choice.
Plan solve(const OpCall& call, const Axes& axes);

/// Axes of an elementwise operator: every tensor slot broadcast against the others, right aligned; one axis per dim of
/// the broadcast shape; all results have that shape.
Axes broadcast_axes(const OpCall& call);

}  // namespace moonhalo
