// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <optional>
#include <string>
#include <vector>

namespace moonhalo::scripting {

/// The option table of a call, `{stride = 2, bias = false}`. Every key must be one of `known`, or a
/// ValueError says which is meant. nil or none is an empty table. The table must stay on the stack
/// while this lives.
class Options {
 public:
  Options(lua_State* lua, int index, std::string op, std::vector<std::string> known);

  bool has(const char* key) const;
  int64_t get_int(const char* key, int64_t fallback) const;
  double get_number(const char* key, double fallback) const;
  bool get_bool(const char* key, bool fallback) const;
  std::string get_string(const char* key, const std::string& fallback) const;
  std::vector<int64_t> get_int_list(const char* key, std::vector<int64_t> fallback) const;
  std::optional<at::ScalarType> get_dtype(const char* key) const;
  std::optional<c10::Device> get_device(const char* key) const;
  at::Tensor get_tensor(const char* key) const;  ///< undefined when absent
  /// Pushes the raw value, nil when absent.
  void push(const char* key) const;

 private:
  template <class Check>
  auto read(const char* key, const char* expected, Check check) const;

  lua_State* lua_;
  int index_ = 0;
  std::string op_;
};

}  // namespace moonhalo::scripting
