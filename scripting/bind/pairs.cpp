// SPDX-License-Identifier: Apache-2.0
// `pairs` in one order on all ranks. Lua seeds its hashes in every state again, so its own order (here `rawpairs`,
// and `next`) differs between ranks, and a loop around collectives would mix what ranks send.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "moonhalo/engine/comm/before_collective.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/scripting_context.h"

namespace moonhalo::scripting {

namespace {

// The order of keys

enum class KeyKind : uint32_t { number, string, boolean, other };

/// A key in Lua's own order, and what decides where `Place` does not.
struct Key {
  double above = 0;  ///< number: what is above its floor
  const char* text = nullptr;
  size_t length = 0;
};

/// A key to be sorted. `head` decides mostly: of a number its floor, of a string the bytes after those that all begin
/// with.
struct Place {
  uint64_t head;
  uint32_t key;
  KeyKind kind;
};

struct Keys {
  std::vector<Key> all;
  std::vector<Place> sorted;
};

uint64_t unsigned_order(int64_t value) { return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63); }

/// Floats with an integral value are integer keys in Lua, unless they are too large for one.
uint64_t float_head(double value, double& above) {
  constexpr double kEnd = 0x1p63;
  if (value >= -kEnd && value < kEnd) {
    above = value - std::floor(value);
    return unsigned_order(static_cast<int64_t>(std::floor(value)));
  }
  above = value;
  return unsigned_order(value > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min());
}

uint64_t text_head(const Key& key, size_t skipped) {
  uint64_t head = 0;
  for (size_t i = skipped; i < skipped + sizeof(head); ++i) {
    head = head << 8 | (i < key.length ? static_cast<unsigned char>(key.text[i]) : 0);
  }
  return head;
}

/// The key on top of the stack.
void add_key(lua_State* lua, Keys& keys) {
  Key key;
  Place place{.head = 0, .key = static_cast<uint32_t>(keys.all.size()), .kind = KeyKind::other};
  switch (lua_type(lua, -1)) {
    case LUA_TNUMBER:
      place.kind = KeyKind::number;
      place.head = lua_isinteger(lua, -1) ? unsigned_order(lua_tointeger(lua, -1))
                                          : float_head(lua_tonumber(lua, -1), key.above);
      break;
    case LUA_TSTRING:
      place.kind = KeyKind::string;
      key.text = lua_tolstring(lua, -1, &key.length);
      break;
    case LUA_TBOOLEAN:
      place.kind = KeyKind::boolean;
      place.head = lua_toboolean(lua, -1) ? 1 : 0;
      break;
  }
  keys.all.push_back(key);
  keys.sorted.push_back(place);
}

/// The number of bytes that all strings begin with.
size_t common_bytes(const Keys& keys) {
  const Key* first = nullptr;
  size_t same = 0;
  for (const Key& key : keys.all) {
    if (!key.text) continue;
    if (!first) {
      first = &key;
      same = key.length;
    }
    same = std::min(same, key.length);
    same = static_cast<size_t>(std::mismatch(key.text, key.text + same, first->text).first - key.text);
  }
  return same;
}

void sort(Keys& keys) {
  const size_t common = common_bytes(keys);
  for (Place& place : keys.sorted) {
    if (place.kind == KeyKind::string) place.head = text_head(keys.all[place.key], common);
  }
  std::sort(keys.sorted.begin(), keys.sorted.end(), [&](const Place& a, const Place& b) {
    if (a.kind != b.kind) return a.kind < b.kind;
    if (a.head != b.head) return a.head < b.head;
    if (a.kind > KeyKind::string) return a.key < b.key;
    const Key &x = keys.all[a.key], &y = keys.all[b.key];
    if (a.kind == KeyKind::number) return x.above < y.above;
    const int order = std::memcmp(x.text, y.text, std::min(x.length, y.length));
    return order != 0 ? order < 0 : x.length < y.length;
  });
}

/// True if Lua's order is the one order already: one key, or integers that ascend, as in lists.
bool in_order(lua_State* lua, int table) {
  lua_pushnil(lua);
  if (lua_next(lua, table) == 0) return true;
  lua_pop(lua, 1);
  bool ascend = lua_isinteger(lua, -1) != 0;
  lua_Integer last = lua_tointeger(lua, -1);
  while (lua_next(lua, table) != 0) {
    lua_pop(lua, 1);
    ascend = ascend && lua_isinteger(lua, -1) && lua_tointeger(lua, -1) > last;
    if (!ascend) {
      lua_pop(lua, 1);
      return false;
    }
    last = lua_tointeger(lua, -1);
  }
  return true;
}

// Loops over keys without a shared order

}  // namespace

/// One such loop. Lives in a userdata that the loop closes.
struct OwnOrder {
  lua_State* coroutine;
  std::string where;
  size_t keys;
};

namespace {

void refuse_collectives() {
  for (const OwnOrder* loop : scripting_context->own_orders) {
    if (lua_status(loop->coroutine) == LUA_YIELD) continue;  // another coroutine's loop, which waits
    TORCH_CHECK_VALUE(
        false, "pairs: a collective call inside a loop whose order ranks do not share\n  have  ", loop->where,
        "a loop over ", loop->keys,
        " keys that are tables, functions or objects\n  fix   loop over a list (ipairs), or use numbers or "
        "strings as keys");
  }
}

void forget_loop(const OwnOrder* loop) {
  std::erase(scripting_context->own_orders, loop);
  if (scripting_context->own_orders.empty()) set_before_collective(nullptr);
}

int close_loop(lua_State* lua) {
  forget_loop(static_cast<const OwnOrder*>(lua_touserdata(lua, 1)));
  return 0;
}

int collect_loop(lua_State* lua) {
  auto* loop = static_cast<OwnOrder*>(lua_touserdata(lua, 1));
  forget_loop(loop);
  loop->~OwnOrder();
  return 0;
}

/// Pushes the value that `for` closes when the loop ends, however it ends.
void push_loop(lua_State* lua, size_t keys) {
  const std::string where = script_position(lua);
  auto* loop = new (lua_newuserdatauv(lua, sizeof(OwnOrder), 1)) OwnOrder{lua, where, keys};
  lua_pushthread(lua);
  lua_setiuservalue(lua, -2, 1);  // the coroutine lives as long as this
  if (luaL_newmetatable(lua, "moonhalo.pairs_loop")) {
    lua_pushcfunction(lua, close_loop);
    lua_setfield(lua, -2, "__close");
    lua_pushcfunction(lua, collect_loop);
    lua_setfield(lua, -2, "__gc");
  }
  lua_setmetatable(lua, -2);
  scripting_context->own_orders.push_back(loop);
  set_before_collective(refuse_collectives);
}

// Iterators: a key that was removed meanwhile is not visited

/// Keys that fit into a closure, which takes at most 255 values.
constexpr int kFew = 200;

/// The key on top of the stack and its value; pops the key of an entry that is gone.
bool push_next(lua_State* lua, int table) {
  lua_pushvalue(lua, -1);
  if (lua_rawget(lua, table) != LUA_TNIL) return true;
  lua_pop(lua, 2);
  return false;
}

/// Upvalues: how many keys were visited, their number, the table, the keys in order.
int next_of_few(lua_State* lua) {
  const auto count = static_cast<int>(lua_tointeger(lua, lua_upvalueindex(2)));
  for (auto visited = static_cast<int>(lua_tointeger(lua, lua_upvalueindex(1))); visited < count;) {
    lua_pushvalue(lua, lua_upvalueindex(4 + visited++));
    if (!push_next(lua, lua_upvalueindex(3))) continue;
    lua_pushinteger(lua, visited);
    lua_replace(lua, lua_upvalueindex(1));
    return 2;
  }
  lua_pushnil(lua);
  return 1;
}

struct Walk {
  size_t visited;
  size_t count;
  uint32_t order[];  ///< positions in the list of keys
};

/// Upvalues: the Walk, the list of keys, the table.
int next_of_many(lua_State* lua) {
  auto* walk = static_cast<Walk*>(lua_touserdata(lua, lua_upvalueindex(1)));
  while (walk->visited < walk->count) {
    lua_rawgeti(lua, lua_upvalueindex(2), walk->order[walk->visited++]);
    if (push_next(lua, lua_upvalueindex(3))) return 2;
  }
  lua_pushnil(lua);
  return 1;
}

/// Pushes the keys in Lua's order: up to kFew as they are, more as one list.
void push_keys(lua_State* lua, int table, Keys& keys) {
  const int base = lua_gettop(lua);
  int count = 0;
  lua_pushnil(lua);
  while (lua_next(lua, table) != 0) {
    lua_pop(lua, 1);
    add_key(lua, keys);
    if (count == kFew) {
      lua_createtable(lua, 4 * kFew, 0);
      for (int i = 1; i <= kFew; ++i) {
        lua_pushvalue(lua, base + i);
        lua_rawseti(lua, -2, i);
      }
      lua_replace(lua, base + 1);
      lua_replace(lua, base + 2);
      lua_settop(lua, base + 2);
    }
    lua_pushvalue(lua, -1);
    if (++count > kFew) lua_rawseti(lua, base + 1, count);
  }
}

/// Pushes the function that goes through the keys in order, for the keys that push_keys has pushed above `base`.
void push_iterator(lua_State* lua, int table, int base, const Keys& keys) {
  const auto count = static_cast<int>(keys.sorted.size());
  if (count <= kFew) {
    lua_pushinteger(lua, 0);
    lua_pushinteger(lua, count);
    lua_pushvalue(lua, table);
    for (const Place& place : keys.sorted) lua_pushvalue(lua, base + 1 + static_cast<int>(place.key));
    return lua_pushcclosure(lua, next_of_few, 3 + count);
  }
  auto* walk = static_cast<Walk*>(lua_newuserdatauv(lua, sizeof(Walk) + keys.sorted.size() * sizeof(uint32_t), 0));
  walk->visited = 0;
  walk->count = keys.sorted.size();
  for (size_t i = 0; i < walk->count; ++i) walk->order[i] = keys.sorted[i].key + 1;
  lua_pushvalue(lua, base + 1);
  lua_pushvalue(lua, table);
  lua_pushcclosure(lua, next_of_many, 3);
}

// pairs

int after_metamethod(lua_State*, int, lua_KContext) { return 3; }

/// Upvalue: `next`.
int pairs(lua_State* lua) {
  if (luaL_getmetafield(lua, 1, "__pairs") != LUA_TNIL) {
    lua_pushvalue(lua, 1);
    lua_callk(lua, 1, 3, 0, after_metamethod);
    return 3;
  }
  luaL_checktype(lua, 1, LUA_TTABLE);
  if (in_order(lua, 1)) {
    lua_pushvalue(lua, lua_upvalueindex(1));
    lua_pushvalue(lua, 1);
    return 2;
  }
  static thread_local Keys keys;  // memory that the next call uses again
  keys.all.clear();
  keys.sorted.clear();
  luaL_checkstack(lua, 2 * kFew + 10, "pairs");
  const int base = lua_gettop(lua);
  push_keys(lua, 1, keys);
  sort(keys);
  push_iterator(lua, 1, base, keys);
  lua_pushvalue(lua, 1);
  const auto others = static_cast<size_t>(std::count_if(
      keys.sorted.begin(), keys.sorted.end(), [](const Place& place) { return place.kind == KeyKind::other; }));
  if (others < 2 || context(lua).world_size() == 1) return 2;
  lua_pushnil(lua);
  push_loop(lua, others);
  return 4;
}

void open_pairs(lua_State* lua) {
  lua_getglobal(lua, "rawpairs");
  lua_getglobal(lua, "pairs");
  if (lua_isnil(lua, -2) && lua_isfunction(lua, -1)) {
    lua_pushvalue(lua, -1);
    lua_setglobal(lua, "rawpairs");
    lua_getglobal(lua, "next");
    lua_pushcclosure(lua, guard<pairs>, 1);
    lua_setglobal(lua, "pairs");
  }
  lua_pop(lua, 2);
}

const Binding pairs_binding{"pairs", open_pairs};

}  // namespace

}  // namespace moonhalo::scripting
