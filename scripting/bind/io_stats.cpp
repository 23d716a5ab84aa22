// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/io_stats.h"

#include <utility>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.io_stats({reset = false}) -> table
///   What this rank has read from files so far.
///   reset       boolean     also sets all numbers to 0
///   returns     table       {stored, chunks, inflated, exchanged, library}: bytes taken from files as they are stored,
///     the number of chunks, bytes of chunks once decoded, bytes that other ranks decoded and sent, bytes that HDF5
///     delivered
///   collective  no
///   example
///     mh.io_stats{reset = true}
///     mh.io_stats().chunks    --> 0
int io_stats(lua_State* lua) {
  const Options options(lua, 1, "io_stats", {"reset"});
  io::IoStats& stats = io::io_stats();
  lua_createtable(lua, 0, 5);
  for (const auto& [name, value] : {std::pair("stored", stats.stored),
                                    {"chunks", stats.chunks},
                                    {"inflated", stats.inflated},
                                    {"exchanged", stats.exchanged},
                                    {"library", stats.library}}) {
    set_field(lua, name, value);
  }
  if (options.get_bool("reset", false)) stats = {};
  return 1;
}

const luaL_Reg kIoStatistics[] = {{"io_stats", guard<io_stats>}, {nullptr, nullptr}};

const Binding io_stats_binding("io_stats", [](lua_State* lua) { add_functions(lua, kIoStatistics); });

}  // namespace

}  // namespace moonhalo::scripting
