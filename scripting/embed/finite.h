// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/scripting/embed/outcome.h"

namespace moonhalo::scripting {

/// Says which of these numbers is the first that is not finite, as "result 2 is nan"; "" if all are.
std::string not_finite(const char* what, std::span<const double> numbers);

/// The same of the block that this rank owns of a field, as "field 'u' is inf at [3, 4]": an index into the whole
/// field, in the script's order of dims.
std::string not_finite(const std::string& name, const at::Tensor& field);

/// HostError of this status on all ranks of `world` where `mine` is not "" on any: "WHAT: MINE WHEN" of the first such
/// rank. Collective.
void refuse_together(Communicator& world, mh_status status, const std::string& what, const std::string& mine,
                     const std::string& when);

}  // namespace moonhalo::scripting
