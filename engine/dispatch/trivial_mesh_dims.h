// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// `spec` without its cuts and Partials over mesh dims of size 1, which divide nothing: every block stays what it is.
/// `spec` itself where there are none.
SpecPtr without_trivial_mesh_dims(const SpecPtr& spec);

/// Lets `plan` run as `other`, the plan of the same call with undivided specs, whose rule saw whole tensors where this
/// one saw cuts. What the tensors are called stays as planned. Does nothing unless both are given and give the same
/// blocks.
void reuse_plan(Plan& plan, Plan other, const OpCall& call);

}  // namespace moonhalo
