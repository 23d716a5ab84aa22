// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "moonhalo/engine/imported/exported_graph.h"

namespace moonhalo::exported {

/// Slots of the values of one graph, by name.
class SlotNames {
 public:
  int define(const std::string& name);
  /// Throws ValueError for a name that nothing defines.
  int use(const std::string& name) const;
  int count() const { return count_; }

 private:
  std::map<std::string, int> slots_;
  int count_ = 0;
};

/// An argument as the JSON {"as_ints": [1, 1]} gives it. `required`: the operator's schema of it, or null.
/// `device`: what devices in the program become. Throws NotImplementedError for kinds that are not read.
Argument read_argument(const nlohmann::json& given, const c10::Argument* required, const SlotNames& names,
                       const c10::Device& device);

}  // namespace moonhalo::exported
