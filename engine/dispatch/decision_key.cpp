// SPDX-License-Identifier: Apache-2.0
// The key of a decision: calls of equal keys share it.
#include <c10/util/bit_cast.h>

#include <algorithm>
#include <cstring>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/dispatch/out_argument.h"
#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

// Says what an item of a key is; the number of its words follows from that (and, for strings and lists, from the
// first of them), so that two keys are equal only where all facts are.
enum Kind : uint64_t {
  kUndefined,
  kNone,
  kFalse,
  kTrue,
  kUnread,  // no word
  kBlock,   // spec and dtype
  kPlain,   // dtype, number of dims and whether strides follow, sizes, strides
  kInteger,
  kReal,
  kDevice,   // one
  kComplex,  // two
  kText,     // number of characters, characters
  kIntegers,
  kList,          // number of items; these follow
  kGenerator,     // no word: plans do not depend on whose numbers they are
  kStridedBlock,  // as kBlock, strides
};
constexpr unsigned kKindBits = 4;

// Kinds stand in a word before the words of the first of them, sixteen together.
template <typename Key>
class KeyWriter {
 public:
  KeyWriter(Key& key, Kind before) : key_(key), kinds_(before) { key_.push(0); }

  // The facts that a plan may depend on. False when an argument cannot be written down.
  [[gnu::always_inline]] bool value(const c10::IValue& v, bool reads_numbers) {
    if (v.isTensor()) {
      tensor(v.toTensor());
    } else if (v.isNone()) {
      item(kNone);
    } else if (v.isList()) {
      return list(v.toListRef());
    } else if (!reads_numbers) {
      item(kUnread);
      origins_ = combine_fingerprint(origins_, number_word(v));
    } else if (v.isInt()) {
      integer(v);
    } else if (v.isBool()) {
      item(v.toBool() ? kTrue : kFalse);
    } else {
      return number(v) || place(v) || text(v);
    }
    return true;
  }

  void finish() { key_.words[at_] = static_cast<int64_t>(kinds_); }

  // Adds what the key leaves out but results depend on: origins of tensors, unread numbers.
  uint64_t origins() const { return origins_; }
  uint64_t first_origin() const { return first_origin_; }

 private:
  [[gnu::always_inline]] void item(Kind kind) {
    if (shift_ == 64) [[unlikely]]
      next_word_of_kinds();
    kinds_ |= static_cast<uint64_t>(kind) << shift_;
    shift_ += kKindBits;
  }

  void next_word_of_kinds() {
    finish();
    at_ = key_.size;
    kinds_ = shift_ = 0;
    key_.push(0);
  }

  [[gnu::always_inline]] void integer(const c10::IValue& v) {
    item(kInteger);
    key_.push(v.toInt());
  }

  static int64_t dtype_word(const at::Tensor& t) { return static_cast<int64_t>(t.scalar_type()) << 56; }

  [[gnu::always_inline]] void tensor(const at::Tensor& t) {
    if (!t.defined()) return item(kUndefined);
    ShardTensorImpl* impl = shard_impl(t);
    if (impl == nullptr) return plain(t);
    notice_new_shape(*impl);
    const bool row_major = t.is_contiguous();
    item(row_major ? kBlock : kStridedBlock);
    key_.push(reinterpret_cast<int64_t>(impl->spec().get()) ^ dtype_word(t));
    if (!row_major) [[unlikely]]
      numbers(t.strides());
    if (first_origin_ == 0) first_origin_ = impl->origin;
    origins_ = combine_fingerprint(origins_, impl->origin);
  }

  void plain(const at::Tensor& t) {
    item(kPlain);
    const bool strided = t.layout() == at::kStrided && !t.is_contiguous();
    key_.push(dtype_word(t) ^ t.dim() ^ (strided ? int64_t{1} << 32 : 0));
    numbers(t.sizes());
    if (strided) [[unlikely]]
      numbers(t.strides());
  }

  void numbers(at::IntArrayRef all) {
    for (const int64_t number : all) key_.push(number);
  }

  bool element(const c10::IValue& v) { return value(v, true); }

  bool list(c10::ArrayRef<c10::IValue> items) {
    if (!items.empty() && std::all_of(items.begin(), items.end(), [](const c10::IValue& v) { return v.isInt(); })) {
      item(kIntegers);
      key_.push(static_cast<int64_t>(items.size()));
      for (const c10::IValue& v : items) key_.push(v.toInt());
      return true;
    }
    item(kList);
    key_.push(static_cast<int64_t>(items.size()));
    return std::all_of(items.begin(), items.end(), [this](const c10::IValue& v) { return element(v); });
  }

  bool number(const c10::IValue& v) {
    if (v.isDouble()) {
      item(kReal);
      key_.push(c10::bit_cast<int64_t>(v.toDouble()));
    } else if (v.isComplexDouble()) {
      item(kComplex);
      key_.push(c10::bit_cast<int64_t>(v.toComplexDouble().real()));
      key_.push(c10::bit_cast<int64_t>(v.toComplexDouble().imag()));
    } else {
      return false;
    }
    return true;
  }

  bool place(const c10::IValue& v) {
    if (v.isDevice()) {
      item(kDevice);
      key_.push(static_cast<int64_t>(v.toDevice().type()) << 32 ^ v.toDevice().index());
    } else if (v.isGenerator()) {
      item(kGenerator);
    } else {
      return false;
    }
    return true;
  }

  bool text(const c10::IValue& v) {
    if (!v.isString()) return false;
    const std::string& characters = v.toStringRef();
    item(kText);
    key_.push(static_cast<int64_t>(characters.size()));
    for (size_t at = 0; at < characters.size(); at += 8) {
      int64_t word = 0;
      std::memcpy(&word, characters.data() + at, std::min<size_t>(8, characters.size() - at));
      key_.push(word);
    }
    return true;
  }

  Key& key_;
  uint64_t kinds_;
  uint64_t origins_ = 0, first_origin_ = 0;
  size_t at_ = 0;
  unsigned shift_ = kKindBits;
};

}  // namespace

bool Dispatch::write_key(const OperatorFacts& facts, const Stack& stack) {
  key_.size = 0;
  KeyWriter writer(key_, static_cast<Kind>(output_cut()));
  const bool reads_numbers = !facts.pointwise || facts.rule;  // else its plan reads shapes alone
  bool complete = true;
  for (size_t i = stack.size() - facts.arguments; i < stack.size() && complete; ++i)
    complete = writer.value(stack[i], reads_numbers);
  writer.finish();
  origins_ = writer.origins();
  first_origin_ = writer.first_origin();
  return complete;
}

}  // namespace moonhalo
