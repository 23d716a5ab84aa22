// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "moonhalo/io/pytorch/pickle.h"

namespace moonhalo::io {

/// The stack machine that makes the values of a Pickle.
class PickleReader {
 public:
  PickleReader(std::string what, Pickle& pickle);
  void read();

 private:
  using Kind = PickleKind;

  // Each of these carries out the instruction if it is one of its own.
  bool read_constant(uint8_t op);
  bool read_number(uint8_t op);
  bool read_text(uint8_t op);
  bool read_container(uint8_t op);
  bool read_items(uint8_t op);
  bool read_memo(uint8_t op);
  bool read_call(uint8_t op);
  bool read_frame(uint8_t op);

  void read_long(uint64_t bytes);
  PickleValue make(Kind kind, std::vector<PickleValue> items, std::string_view text = {});
  PickleValue make_text(Kind kind, std::string_view text) { return make(kind, {}, text); }
  PickleValue make_object(const PickleValue& call, const PickleValue& args);
  PickleNode& node(const PickleValue& value) { return pickle_.nodes_[static_cast<size_t>(value.node)]; }
  const std::vector<PickleValue>& items(const PickleValue& value) { return node(value).items; }

  void push(const PickleValue& value);
  void push_global(std::string_view module, std::string_view name);
  void push_integer(int64_t value, Kind kind = Kind::kInt);
  PickleValue pop();
  PickleValue& top();
  std::vector<PickleValue> pop_to_mark();
  void append(const PickleValue& target, const std::vector<PickleValue>& values);
  void set_items(const PickleValue& target, const std::vector<PickleValue>& values);
  void set_state(const PickleValue& state);
  void add(const PickleValue& target, const std::vector<PickleValue>& values);

  // Calls of known functions.
  PickleValue call(const PickleValue& function, const PickleValue& args);
  bool call_container(std::string_view name, const PickleValue& args, PickleValue& result);
  bool call_tensor(std::string_view name, const PickleValue& args, PickleValue& result);
  PickleValue decode(const PickleValue& text);
  PickleValue make_storage(const PickleValue& id);
  PickleValue make_tensor(const std::vector<PickleValue>& args, size_t metadata, const PickleValue& dtype);

  uint64_t number(int bytes);
  std::string_view take(uint64_t bytes);
  std::string_view line();
  void charge(size_t bytes);
  void check(bool good, const std::string& problem) const;
  [[noreturn]] void refuse(const std::string& problem, const std::string& fix) const;

  const std::string what_;
  Pickle& pickle_;
  const std::string_view bytes_;
  size_t at_ = 0, op_at_ = 0;
  uint8_t op_ = 0;
  size_t charged_ = 0;
  int depth_ = 0;
  std::vector<PickleValue> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue> memo_;
  std::unordered_map<const char*, PickleValue> decoded_;
  std::unordered_map<std::string, PickleValue> globals_;
  PickleValue empty_tuple_;
};

}  // namespace moonhalo::io
