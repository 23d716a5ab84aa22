// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moonhalo::io {

/// The kind of a value of a pickle, which says what its node has.
enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,     ///< text: UTF-8
  kBytes,    ///< text
  kBigInt,   ///< text: two's complement, little-endian, more than 8 bytes
  kList,     ///< items
  kTuple,    ///< items
  kSet,      ///< items
  kDict,     ///< items: key, value, key, value, ...
  kGlobal,   ///< text: "module.name" of a class, a function or a constant
  kObject,   ///< items: PickleObject's
  kStorage,  ///< items: type, key, location, number of elements; as PyTorch's persistent ids
  kTensor,   ///< items: storage, offset, sizes, strides, metadata (a dict, or None), dtype (a global, or None: the
             ///< storage's)
};

/// A value of a pickle: by its `kind`, `integer` or `number` is the value itself, or `node` the number of its node.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  /// The one that `kind` names.
  union {
    int64_t integer = 0;  ///< also of kBool
    double number;
    int64_t node;
  };
};

/// A value that has parts: its `kind` says whether these are `items` or `text`.
struct PickleNode {
  std::vector<PickleValue> items = {};
  std::string_view text = {};
  int64_t at = 0;  ///< the byte of the pickle where it was made
  PickleKind kind = PickleKind::kNone;
};

/// The items of an object that is not one of the known kinds. Nothing of it was carried out: `call` is the global (or
/// object) that a program of Python would have called with `args`.
enum PickleObject : uint8_t { kCall, kArgs, kState, kListItems, kDictItems, kObjectItems };

/// A pickle as data. The program in it is read by a closed list of rules and never carried out: a class or function
/// that is not known stays a name with its arguments. References within it may form cycles. Not collective.
class Pickle {
 public:
  /// Reads protocols 2 to 5. `what` begins the messages: "load: file \"x.pt\"". ValueError, with the byte and the
  /// instruction, for what is damaged, cut short, of another protocol or takes more than 128 MiB and twice the bytes
  /// of the pickle in small objects.
  Pickle(std::string what, std::string bytes);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  /// The value that the pickle stands for.
  const PickleValue& top() const { return top_; }
  /// The protocol that its head names; 2 where it has no head.
  int protocol() const { return protocol_; }
  /// The node of a value that has one, and how many nodes there are.
  const PickleNode& node(const PickleValue& value) const { return nodes_[static_cast<size_t>(value.node)]; }
  int64_t count_nodes() const { return static_cast<int64_t>(nodes_.size()); }
  /// The bytes behind its last instruction.
  int64_t end() const { return end_; }

  /// The bytes of a string, of bytes or of the name of a global; empty for other kinds.
  std::string_view text(const PickleValue& value) const;
  /// The value of a string key of a dict, the last one; null where there is none.
  const PickleValue* find(const PickleValue& dict, std::string_view key) const;
  /// True of lists, tuples, sets, dicts, objects, storages and tensors.
  bool has_items(const PickleValue& value) const;

 private:
  friend class PickleReader;
  std::string bytes_;
  std::deque<std::string> decoded_;  ///< of bytes that protocol 2 stores as Latin-1 text
  std::deque<PickleNode> nodes_;
  PickleValue top_;
  int protocol_ = 2;
  int64_t end_ = 0;
};

/// "argparse.Namespace" of an object or a global; "" for other values. Not collective.
std::string pickle_class(const Pickle& pickle, const PickleValue& value);

}  // namespace moonhalo::io
