// SPDX-License-Identifier: Apache-2.0
// The closed list of functions and classes that pickles may call here: what they would make is known, so they become
// that. All others stay names with their arguments.
#include <algorithm>
#include <array>

#include "moonhalo/io/pytorch/pickle_reader.h"

namespace moonhalo::io {
namespace {

template <size_t kCount>
bool is_one_of(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr int kDeepestClass = 10;
constexpr size_t kGlobalBytes = 200;  // of the tables that find it again

constexpr std::string_view kBuiltins = "builtins.";

std::string_view builtin(std::string_view name) {
  return name.starts_with(kBuiltins) ? name.substr(kBuiltins.size()) : std::string_view();
}

}  // namespace

void PickleReader::push_global(std::string_view module, std::string_view name) {
  check(!module.empty() && !name.empty(), "a class without a name");
  // Protocol 2 writes the names that modules had in Python 2.
  if (module == "__builtin__") module = "builtins";
  if (module == "copy_reg") module = "copyreg";
  std::string joined = std::string(module) + "." + std::string(name);
  const auto found = globals_.find(joined);
  if (found != globals_.end()) return push(found->second);
  charge(3 * joined.size() + kGlobalBytes);
  pickle_.decoded_.push_back(joined);
  const PickleValue made = make_text(Kind::kGlobal, pickle_.decoded_.back());
  globals_.emplace(std::move(joined), made);
  push(made);
}

/// Protocol 2 has no bytes: they are stored as text whose letters are the bytes.
PickleValue PickleReader::decode(const PickleValue& text) {
  const std::string_view letters = node(text).text;
  const auto found = decoded_.find(letters.data());
  if (found != decoded_.end()) return found->second;
  charge(letters.size());
  std::string bytes;
  bytes.reserve(letters.size());
  for (size_t i = 0; i < letters.size(); ++i) {
    auto letter = static_cast<uint8_t>(letters[i]);
    if (letter >= 0x80) {
      check((letter & 0xfc) == 0xc0 && i + 1 < letters.size() && (static_cast<uint8_t>(letters[i + 1]) & 0xc0) == 0x80,
            "bytes that are not stored as Latin-1");
      letter = static_cast<uint8_t>((letter & 3) << 6 | (static_cast<uint8_t>(letters[++i]) & 0x3f));
    }
    bytes.push_back(static_cast<char>(letter));
  }
  pickle_.decoded_.push_back(std::move(bytes));
  const PickleValue made = make_text(Kind::kBytes, pickle_.decoded_.back());
  if (!letters.empty()) decoded_.insert_or_assign(letters.data(), made);
  return made;
}

/// ("storage", type, key, location, number of elements)
PickleValue PickleReader::make_storage(const PickleValue& id) {
  check(id.kind == Kind::kTuple && items(id).size() >= 5 && pickle_.text(items(id)[0]) == "storage",
        "a persistent id that is not one of a storage");
  std::vector<PickleValue> facts(items(id).begin() + 1, items(id).end());
  check(facts[0].kind == Kind::kGlobal && facts[1].kind == Kind::kText && facts[3].kind == Kind::kInt,
        "a storage without type, key or size");
  return make(Kind::kStorage, std::move(facts));
}

/// `args` begin with storage, offset, sizes, strides; requires_grad and hooks are not data.
PickleValue PickleReader::make_tensor(const std::vector<PickleValue>& args, size_t metadata, const PickleValue& dtype) {
  check(args.size() >= 4 && args[0].kind == Kind::kStorage && args[1].kind == Kind::kInt &&
            args[2].kind == Kind::kTuple && args[3].kind == Kind::kTuple,
        "a tensor that is not made of a storage, an offset, sizes and strides");
  return make(Kind::kTensor,
              {args[0], args[1], args[2], args[3], metadata < args.size() ? args[metadata] : PickleValue(), dtype});
}

bool PickleReader::call_tensor(std::string_view name, const PickleValue& args, PickleValue& result) {
  const std::vector<PickleValue> given = items(args);
  if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor") {
    result = make_tensor(given, 6, {});
  } else if (name == "torch._utils._rebuild_tensor_v3") {
    check(given.size() >= 7 && given[6].kind == Kind::kGlobal, "a tensor without its dtype");
    result = make_tensor(given, 7, given[6]);
  } else if (name == "torch._utils._rebuild_parameter" || name == "torch._utils._rebuild_parameter_with_state") {
    check(!given.empty() && given[0].kind == Kind::kTensor, "a parameter that is not a tensor");
    result = given[0];
  } else if (name == "torch._tensor._rebuild_from_type_v2") {
    check(given.size() >= 3, "a tensor's class without its parts");
    check(++depth_ < kDeepestClass, "classes of tensors within each other");
    result = given[2].kind == Kind::kTuple ? call(given[0], given[2]) : make_object(given[0], given[2]);
    --depth_;
  } else {
    return false;
  }
  return true;
}

bool PickleReader::call_container(std::string_view name, const PickleValue& args, PickleValue& result) {
  static constexpr std::array<std::string_view, 2> kOrdered = {"collections.OrderedDict", "collections.Counter"};
  const std::vector<PickleValue> given = items(args);
  const std::string_view own = builtin(name);
  const bool has_list = !given.empty() && pickle_.has_items(given[0]);
  if (is_one_of(name, kOrdered) || own == "dict") {
    result = make(Kind::kDict, {});
    if (has_list && given[0].kind == Kind::kDict) add(result, std::vector<PickleValue>(items(given[0])));
    if (!has_list || given[0].kind == Kind::kDict) return true;
    for (const PickleValue& pair : std::vector<PickleValue>(items(given[0]))) {
      check(pickle_.has_items(pair) && items(pair).size() == 2, "a dict of entries that are not pairs");
      add(result, std::vector<PickleValue>(items(pair)));
    }
  } else if (name == "collections.defaultdict") {
    result = make(Kind::kDict, {});
  } else if (own == "set" || own == "frozenset" || own == "list" || own == "tuple") {
    const Kind kind = own == "list" ? Kind::kList : own == "tuple" ? Kind::kTuple : Kind::kSet;
    result = make(kind, has_list ? std::vector<PickleValue>(items(given[0])) : std::vector<PickleValue>());
  } else if (name == "torch.Size" && given.size() == 1 && has_list) {
    result = given[0];
  } else if ((name == "_codecs.encode" || own == "bytearray") && !given.empty() && given[0].kind == Kind::kText) {
    result = decode(given[0]);
  } else if ((own == "bytearray" || own == "bytes") && (given.empty() || given[0].kind == Kind::kBytes)) {
    result = given.empty() ? make_text(Kind::kBytes, {}) : given[0];
  } else {
    return false;
  }
  return true;
}

PickleValue PickleReader::call(const PickleValue& function, const PickleValue& args) {
  check(args.kind == Kind::kTuple, "a call whose arguments are not a tuple");
  PickleValue result;
  if (function.kind == Kind::kGlobal) {
    const std::string_view name = pickle_.text(function);
    if (call_container(name, args, result) || call_tensor(name, args, result)) return result;
    // copyreg: an object of the class that is the first argument.
    if (name == "copyreg._reconstructor" && items(args).size() == 3)
      return make_object(items(args)[0], items(args)[2].kind == Kind::kNone ? empty_tuple_ : args);
    if (name == "copyreg.__newobj__" && !items(args).empty()) return make_object(items(args)[0], empty_tuple_);
  }
  return make_object(function, args);
}

}  // namespace moonhalo::io
