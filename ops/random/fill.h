// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/random/random.h"

namespace moonhalo {

inline constexpr const char* kAnyCut = "any cut; the same numbers for any cut and any number of ranks";

/// The argument called `generator`, if there is one.
inline Arg generator_arg(const OpCall& call) { return call.find({"generator"}); }
/// The generator that the call is given, if any.
std::optional<at::Generator> generator_of(LocalCall& call, Arg generator);
/// Binary digits that a floating point type holds, 53 for all others.
int digits_of(at::ScalarType dtype);
/// TypeError unless `dtype` is floating point (or complex, where that has a meaning).
void check_floating(std::string_view op, at::ScalarType dtype, bool complex = false);

/// Zeros and ones: one with probability `p`.
void fill_coins(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, double p);

/// For an operator of tensors that are broadcast together, element by element: the plan of the pointwise rule, with
/// `run` called as (local call, spec of the result).
using BroadcastRun = std::function<void(LocalCall& call, const SpecPtr& result)>;
std::optional<Plan> plan_broadcast(const OpCall& call, BroadcastRun run);

}  // namespace moonhalo
