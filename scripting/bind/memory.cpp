// SPDX-License-Identifier: Apache-2.0
// Memory of this rank's tensors; mh.memory is in internal/memory.lua.
#include "moonhalo/engine/profile/memory.h"

#include <set>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

void push_use(lua_State* lua, c10::DeviceType device) {
  const MemoryUse use = memory_use(device);
  set_field(lua, "live", use.live);
  set_field(lua, "peak", use.peak);
}

/// _memory_use(): {live, peak, resident, device = {live, peak}}; device only on a rank that has one.
int memory_use_of_rank(lua_State* lua) {
  lua_createtable(lua, 0, 5);
  push_use(lua, c10::DeviceType::CPU);
  set_field(lua, "resident", resident_memory());
  if (!context(lua).device.is_cpu()) {
    lua_createtable(lua, 0, 2);
    push_use(lua, context(lua).device.type());
    lua_setfield(lua, -2, "device");
  }
  return 1;
}

int reset_peak(lua_State*) {
  reset_memory_peak();
  return 0;
}

/// _storage_bytes(tensors): the memory of this rank's blocks, each counted once.
int storage_bytes(lua_State* lua) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : check_tensor_list(lua, 1)) {
    const at::Tensor block = is_shard_tensor(tensor) ? to_local(tensor.detach()) : tensor;
    if (!block.has_storage() || !seen.insert(block.storage().unsafeGetStorageImpl()).second) continue;
    bytes += static_cast<int64_t>(block.storage().nbytes());
  }
  push(lua, bytes);
  return 1;
}

const luaL_Reg kMemoryFunctions[] = {{"_memory_use", guard<memory_use_of_rank>},
                                     {"_reset_memory_peak", guard<reset_peak>},
                                     {"_storage_bytes", guard<storage_bytes>},
                                     {nullptr, nullptr}};

const Binding memory_binding{"memory", [](lua_State* lua) { add_functions(lua, kMemoryFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
