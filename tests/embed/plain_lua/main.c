/* SPDX-License-Identifier: Apache-2.0 */
/* A host with a Lua of its own (X15):  plain_lua SCRIPT refused|works.  Where that is Lua compiled as C, mh_open refuses
   it, and the host goes on. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <moonhalo/moonhalo_c.h>
#include <stdio.h>
#include <string.h>

static int own_script(lua_State* lua) {
  const int failed = luaL_loadstring(lua, "local ok = pcall(error, 'x'); return ok and 1 or 6 * 7") || lua_pcall(lua, 0, 1, 0);
  const int result = failed ? 0 : (int)lua_tointeger(lua, -1);
  lua_settop(lua, 0);
  return result == 42;
}

int main(int argc, char** argv) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  double in = 3, out = 0;
  lua_State* lua = luaL_newstate();
  mh_status status;
  luaL_requiref(lua, "_G", luaopen_base, 1);
  lua_settop(lua, 0);
  options.script = argc > 2 ? argv[1] : "";
  status = mh_open(&options, &session);
  printf("status %d\n%s\n", (int)status, mh_error());
  if (argc > 2 && strcmp(argv[2], "refused") == 0) {
    if (status != MH_UNSUPPORTED || session != NULL) return 1;
    if (strstr(mh_error(), "this program's Lua is compiled as C") == NULL) return 1;
  } else {
    if (status != MH_OK || mh_call(session, "half", 1, &in, 1, &out) != MH_OK || out != 1.5) return 1;
    if (mh_call(session, "fails", 0, NULL, 0, NULL) != MH_SCRIPT) return 1;
    if (mh_close(session) != MH_OK) return 1;
  }
  if (!own_script(lua)) return 1;
  lua_close(lua);
  puts("its own Lua works");
  return 0;
}
