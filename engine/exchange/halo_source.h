// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace moonhalo {

class IntervalMap;

/// Finds rows of other ranks that this rank holds already, such as the filled ghosts of a solver (host_halos.h). It
/// returns the rows that the map brings to this rank, in the order of IntervalMap::received(), or nullopt if they must
/// be exchanged; nullopt on every rank or on none. An empty function: everything is exchanged.
using HaloSource = std::function<std::optional<std::vector<at::Tensor>>(const IntervalMap& map)>;

}  // namespace moonhalo
