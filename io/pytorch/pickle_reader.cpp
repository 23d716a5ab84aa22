// SPDX-License-Identifier: Apache-2.0
// The instructions of pickles; pickle_calls.cpp has the functions that they call. Source: Python's documentation of the
// modules pickle and pickletools.
#include "moonhalo/io/pytorch/pickle_reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace moonhalo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of pickles are little-endian");

constexpr size_t kSmallObjects = size_t{128} << 20;
constexpr size_t kMostMarks = 1 << 20;
constexpr size_t kNodeBytes = sizeof(PickleNode) + 2 * sizeof(void*);

enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kPersistentId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinFloat = 'G',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple3 = 0x87,
  kTrue = 0x88,
  kFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortUnicode = 0x8c,
  kUnicode8 = 0x8d,
  kBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjectEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

/// Instructions that no reader here carries out, and what to do about it.
const char* fix_of(uint8_t op) {
  if (std::strchr("FILPSVgipo", op) != nullptr && op != 0)
    return "save it again with a newer protocol: torch.save(x, path, pickle_protocol=2)";
  if (op >= 0x82 && op <= 0x84) return "remove its classes from copyreg's extensions, and save it again";
  if (op == 0x97 || op == 0x98) return "save it without buffers beside the pickle";
  return "copy or download it again";
}

}  // namespace

PickleReader::PickleReader(std::string what, Pickle& pickle)
    : what_(std::move(what)), pickle_(pickle), bytes_(pickle.bytes_) {
  empty_tuple_ = make(Kind::kTuple, {});
}

void PickleReader::refuse(const std::string& problem, const std::string& fix) const {
  char op[8];
  std::snprintf(op, sizeof op, op_ > 0x20 && op_ < 0x7f ? "'%c'" : "0x%02x", op_);
  TORCH_CHECK_VALUE(false, what_, ": ", problem, "\n  have  instruction ", op, " at byte ", op_at_,
                    " of its pickle of ", bytes_.size(), " bytes\n  fix   ", fix);
}

void PickleReader::check(bool good, const std::string& problem) const {
  if (!good) refuse("damaged pickle: " + problem, "copy or download it again");
}

void PickleReader::charge(size_t bytes) {
  charged_ += bytes;
  if (charged_ <= kSmallObjects + 2 * bytes_.size()) return;
  refuse("its pickle makes more small objects than are read: " + std::to_string(charged_ >> 20) + " MiB of them",
         "save numbers as tensors, not as lists");
}

std::string_view PickleReader::take(uint64_t bytes) {
  check(bytes <= bytes_.size() - at_,
        "it ends before its data, of which it announces " + std::to_string(bytes) + " bytes");
  const std::string_view taken = bytes_.substr(at_, bytes);
  at_ += bytes;
  return taken;
}

uint64_t PickleReader::number(int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, take(static_cast<uint64_t>(bytes)).data(), static_cast<size_t>(bytes));
  return value;
}

std::string_view PickleReader::line() {
  const size_t end = bytes_.find('\n', at_);
  check(end != std::string_view::npos, "a name without an end");
  const std::string_view found = bytes_.substr(at_, end - at_);
  at_ = end + 1;
  return found;
}

PickleValue PickleReader::make(Kind kind, std::vector<PickleValue> items, std::string_view text) {
  charge(kNodeBytes + items.size() * sizeof(PickleValue));
  PickleValue value{kind, {}};
  value.node = static_cast<int64_t>(pickle_.nodes_.size());
  pickle_.nodes_.push_back({std::move(items), text, static_cast<int64_t>(op_at_), kind});
  return value;
}

PickleValue PickleReader::make_object(const PickleValue& call, const PickleValue& args) {
  std::vector<PickleValue> items(kObjectItems);
  items[kCall] = call;
  items[kArgs] = args;
  return make(Kind::kObject, std::move(items));
}

void PickleReader::push(const PickleValue& value) {
  if (stack_.size() == stack_.capacity()) charge((stack_.capacity() + 64) * sizeof(PickleValue));
  stack_.push_back(value);
}

void PickleReader::push_integer(int64_t value, Kind kind) {
  PickleValue made{kind, {}};
  made.integer = value;
  push(made);
}

PickleValue& PickleReader::top() {
  check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "nothing is on its stack");
  return stack_.back();
}

PickleValue PickleReader::pop() {
  const PickleValue value = top();
  stack_.pop_back();
  return value;
}

std::vector<PickleValue> PickleReader::pop_to_mark() {
  check(!marks_.empty(), "no mark is on its stack");
  const auto begin = stack_.begin() + static_cast<int64_t>(marks_.back());
  std::vector<PickleValue> values(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return values;
}

void PickleReader::add(const PickleValue& target, const std::vector<PickleValue>& values) {
  std::vector<PickleValue>& items = node(target).items;
  charge(2 * values.size() * sizeof(PickleValue));  // vectors grow by doubling
  items.insert(items.end(), values.begin(), values.end());
}

void PickleReader::append(const PickleValue& target, const std::vector<PickleValue>& values) {
  if (target.kind == Kind::kObject) {
    PickleValue list = items(target)[kListItems];
    if (list.kind == Kind::kNone) list = node(target).items[kListItems] = make(Kind::kList, {});
    add(list, values);
    return;
  }
  check(target.kind == Kind::kList || target.kind == Kind::kSet, "items for a value that is not a list");
  add(target, values);
}

void PickleReader::set_items(const PickleValue& target, const std::vector<PickleValue>& values) {
  check(values.size() % 2 == 0, "a key without a value");
  if (target.kind == Kind::kObject) {
    PickleValue dict = items(target)[kDictItems];
    if (dict.kind == Kind::kNone) dict = node(target).items[kDictItems] = make(Kind::kDict, {});
    add(dict, values);
    return;
  }
  check(target.kind == Kind::kDict, "keys for a value that is not a dict");
  add(target, values);
}

/// The state of values of known kinds holds attributes, such as `_metadata` of state dicts, which are not data.
void PickleReader::set_state(const PickleValue& state) {
  const PickleValue& target = top();
  if (target.kind == Kind::kObject) node(target).items[kState] = state;
}

bool PickleReader::read_constant(uint8_t op) {
  if (op == kNone) return push({}), true;
  if (op == kTrue || op == kFalse) return push_integer(op == kTrue, Kind::kBool), true;
  if (op == kEmptyTuple) return push(empty_tuple_), true;
  return false;
}

void PickleReader::read_long(uint64_t bytes) {
  const std::string_view text = take(bytes);
  if (bytes > sizeof(int64_t)) {
    push(make_text(Kind::kBigInt, text));
    return;
  }
  const bool negative = bytes > 0 && (static_cast<uint8_t>(text.back()) & 0x80) != 0;
  int64_t value = negative ? -1 : 0;
  std::memcpy(&value, text.data(), bytes);
  push_integer(value);
}

bool PickleReader::read_number(uint8_t op) {
  switch (op) {
    case kBinInt:
      push_integer(static_cast<int32_t>(number(4)));
      return true;
    case kBinInt1:
      push_integer(static_cast<int64_t>(number(1)));
      return true;
    case kBinInt2:
      push_integer(static_cast<int64_t>(number(2)));
      return true;
    case kLong1:
      read_long(number(1));
      return true;
    case kLong4:
      read_long(number(4));
      return true;
    case kBinFloat: {
      PickleValue value{Kind::kFloat, {}};
      value.number = std::bit_cast<double>(__builtin_bswap64(number(8)));
      push(value);
      return true;
    }
    default:
      return false;
  }
}

bool PickleReader::read_text(uint8_t op) {
  const auto text = [&](Kind kind, int length) {
    push(make_text(kind, take(number(length))));
    return true;
  };
  switch (op) {
    case kShortUnicode:
    case kShortBinString:
      return text(Kind::kText, 1);
    case kBinUnicode:
    case kBinString:
      return text(Kind::kText, 4);
    case kUnicode8:
      return text(Kind::kText, 8);
    case kShortBinBytes:
      return text(Kind::kBytes, 1);
    case kBinBytes:
      return text(Kind::kBytes, 4);
    case kBytes8:
    case kByteArray8:
      return text(Kind::kBytes, 8);
    default:
      return false;
  }
}

bool PickleReader::read_container(uint8_t op) {
  switch (op) {
    case kMark:
      check(marks_.size() < kMostMarks, "more than " + std::to_string(kMostMarks) + " marks");
      marks_.push_back(stack_.size());
      return true;
    case kEmptyList:
      push(make(Kind::kList, {}));
      return true;
    case kEmptyDict:
      push(make(Kind::kDict, {}));
      return true;
    case kEmptySet:
      push(make(Kind::kSet, {}));
      return true;
    case kTuple:
      push(make(Kind::kTuple, pop_to_mark()));
      return true;
    case kList:
      push(make(Kind::kList, pop_to_mark()));
      return true;
    case kFrozenSet:
      push(make(Kind::kSet, pop_to_mark()));
      return true;
    case kDict: {
      std::vector<PickleValue> values = pop_to_mark();
      check(values.size() % 2 == 0, "a key without a value");
      push(make(Kind::kDict, std::move(values)));
      return true;
    }
    default:
      if (op < kTuple1 || op > kTuple3) return false;
      std::vector<PickleValue> values(static_cast<size_t>(op - kTuple1) + 1);
      for (size_t i = values.size(); i > 0; --i) values[i - 1] = pop();
      push(make(Kind::kTuple, std::move(values)));
      return true;
  }
}

bool PickleReader::read_items(uint8_t op) {
  switch (op) {
    case kAppend: {
      const PickleValue value = pop();
      append(top(), {value});
      return true;
    }
    case kAppends:
    case kAddItems: {
      const std::vector<PickleValue> values = pop_to_mark();
      append(top(), values);
      return true;
    }
    case kSetItem: {
      const PickleValue value = pop(), key = pop();
      set_items(top(), {key, value});
      return true;
    }
    case kSetItems: {
      const std::vector<PickleValue> values = pop_to_mark();
      set_items(top(), values);
      return true;
    }
    case kBuild:
      set_state(pop());
      return true;
    case kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) return marks_.pop_back(), true;
      pop();
      return true;
    case kPopMark:
      pop_to_mark();
      return true;
    case kDup:
      push(PickleValue(top()));
      return true;
    default:
      return false;
  }
}

bool PickleReader::read_memo(uint8_t op) {
  switch (op) {
    case kBinPut:
    case kLongBinPut:
    case kMemoize: {
      const uint64_t index = op == kMemoize ? memo_.size() : number(op == kBinPut ? 1 : 4);
      const auto [place, is_new] = memo_.insert_or_assign(index, top());
      if (is_new) charge(sizeof(*place) + 4 * sizeof(void*));
      return true;
    }
    case kBinGet:
    case kLongBinGet: {
      const uint64_t index = number(op == kBinGet ? 1 : 4);
      const auto found = memo_.find(index);
      check(found != memo_.end(), "it refers to value " + std::to_string(index) + ", which it did not make");
      push(found->second);
      return true;
    }
    default:
      return false;
  }
}

bool PickleReader::read_frame(uint8_t op) {
  if (op == kProtocol) {
    const auto protocol = static_cast<int>(number(1));
    if (protocol < 2 || protocol > 5)
      refuse("pickle protocol " + std::to_string(protocol) + ", known are 2 to 5",
             "save it again: torch.save(x, path, pickle_protocol=2)");
    pickle_.protocol_ = protocol;
    return true;
  }
  if (op == kFrame) {
    const uint64_t bytes = number(8);
    check(bytes <= bytes_.size() - at_, "a frame of " + std::to_string(bytes) + " bytes");
    return true;
  }
  return false;
}

bool PickleReader::read_call(uint8_t op) {
  switch (op) {
    case kGlobal: {
      const std::string_view module = line(), name = line();
      push_global(module, name);
      return true;
    }
    case kStackGlobal: {
      const PickleValue name = pop(), module = pop();
      check(name.kind == Kind::kText && module.kind == Kind::kText, "the name of a class that is not text");
      push_global(pickle_.text(module), pickle_.text(name));
      return true;
    }
    case kReduce:
    case kNewObject: {
      const PickleValue args = pop(), function = pop();
      push(call(function, args));
      return true;
    }
    case kNewObjectEx: {
      const PickleValue named = pop(), args = pop(), function = pop();
      PickleValue made = call(function, args);
      if (made.kind == Kind::kObject && named.kind == Kind::kDict && !items(named).empty())
        node(made).items[kArgs] = make(Kind::kTuple, {args, named});
      push(made);
      return true;
    }
    case kPersistentId:
      push(make_storage(pop()));
      return true;
    default:
      return false;
  }
}

void PickleReader::read() {
  for (;;) {
    op_at_ = at_;
    op_ = 0;
    check(at_ < bytes_.size(), "it ends without its last instruction");
    op_ = static_cast<uint8_t>(bytes_[at_++]);
    if (op_ == kStop) break;
    const bool known = read_constant(op_) || read_number(op_) || read_text(op_) || read_container(op_) ||
                       read_items(op_) || read_memo(op_) || read_call(op_) || read_frame(op_);
    if (!known) refuse("an instruction that is not read", fix_of(op_));
  }
  pickle_.top_ = pop();
  pickle_.end_ = static_cast<int64_t>(at_);
}

}  // namespace moonhalo::io
