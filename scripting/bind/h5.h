// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

/// A group of a file: file["name"] where the name is not a dataset's.
struct H5Group {
  io::File file;
  std::string name;
};

template <>
inline constexpr const char* kObjectName<io::File> = "File";
template <>
inline constexpr const char* kObjectName<H5Group> = "Group";
template <>
inline constexpr const char* kObjectName<io::Dataset> = "Dataset";
template <>
inline constexpr const char* kObjectName<io::Selection> = "Selection";

/// A dataset (all of it) or a selection; nothing for other values.
std::optional<io::Selection> to_selection(lua_State* lua, int index);

/// Closes the script's files without finishing those it was writing: the script failed, and what
/// stood under their names before is worth more than half of the new.
void discard_files(lua_State* lua);

}  // namespace moonhalo::scripting
