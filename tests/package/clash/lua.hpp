// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands for another version of Lua.
#define HOST_LUA_VERSION 501
struct lua_State {};
