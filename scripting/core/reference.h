// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace moonhalo::scripting {

/// An entry of the reference, gathered from comments of the sources at build time (docs/tools/README.md).
struct ReferenceEntry {
  std::vector<std::string_view> names;  ///< "mh.nn.Conv2d", "Tensor:redistribute", "Tensor.mesh"
  std::string_view text;                ///< signatures, description, arguments, example
  std::vector<std::string_view> notes;  ///< annotations for editors, one for each name
  std::vector<std::string_view> calls;  ///< signatures without results, one for each name
  std::vector<int> most;                ///< arguments of a call, without the object of a method; -1 where any number is
  bool in_lua = false;                  ///< the functions are in files of Lua
};

/// All entries, sorted by their first names. Never changes.
const std::vector<ReferenceEntry>& reference();

}  // namespace moonhalo::scripting
