// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <map>
#include <mutex>
#include <string>

namespace moonhalo::scripting {

/// Files that the ranks of this process write by io.open: a warning where a second rank empties what another has begun.
/// Every rank runs the whole script, so this is what a line does that is not meant for one rank alone.
class WrittenFiles {
 public:
  /// Lets the state's io.open tell this object, which outlives the state.
  void watch(lua_State* lua);
  /// A rank has opened a file, and emptied it.
  void add(const std::string& path, int rank);

 private:
  std::mutex mutex_;
  std::map<std::string, int> ranks_;  ///< of whole paths, the first that opened them
};

}  // namespace moonhalo::scripting
