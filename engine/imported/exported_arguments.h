// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

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

/// The key and value of an object with one entry, {"as_ints": [1, 1]}. Throws ValueError for all else.
std::pair<std::string, const nlohmann::json&> only_entry(const nlohmann::json& given);

/// The number of leaves in a TreeSpec of torch.utils._pytree, [1, {"type", "context", "children_spec"}], which says how
/// arguments or results are nested. Throws ValueError or nlohmann's exceptions for all else. `is_call`: it must be a
/// tuple of the arguments by place, and a dict of those by name.
size_t count_leaves(const std::string& tree_spec, bool is_call);

/// An argument as the JSON {"as_ints": [1, 1]} gives it. `required`: the operator's schema of it, or null.
/// `device`: what devices in the program become. Throws NotImplementedError for kinds that are not read.
Argument read_argument(const nlohmann::json& given, const c10::Argument* required, const SlotNames& names,
                       const c10::Device& device);

}  // namespace moonhalo::exported
