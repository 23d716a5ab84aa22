// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// Registers the rule of one overload of an operator while the program runs, as register_sharding of Python does. Any
/// thread may call it. Throws ValueError if the operator has a rule, or was called with a ShardTensor before, because
/// that call has decided what the operator does.
void add_rule(const c10::OperatorName& name, std::function<std::optional<Plan>(const OpCall& call)> plan,
              const std::string& supports);

}  // namespace moonhalo
