// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/bit_cast.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo {

inline constexpr uint64_t kFirstFingerprint = 0x9e3779b97f4a7c15ULL;
/// One more word in a tag: a hash that is equal on all ranks whose programs do the same, and depends on the order.
inline uint64_t combine_fingerprint(uint64_t tag, uint64_t word) {
  tag = (tag ^ word) * 0xff51afd7ed558ccdULL;
  return tag ^ (tag >> 29);
}
inline uint64_t fingerprint_of(c10::ArrayRef<int64_t> words) {
  uint64_t tag = kFirstFingerprint;
  for (const int64_t word : words) tag = combine_fingerprint(tag, static_cast<uint64_t>(word));
  return tag;
}
uint64_t fingerprint_of(const std::string& text);
/// A number among a call's arguments; 2 for what is none.
inline uint64_t number_word(const c10::IValue& value) {
  if (value.isDouble()) return c10::bit_cast<uint64_t>(value.toDouble());
  if (value.isInt()) return static_cast<uint64_t>(value.toInt());
  return value.isBool() ? value.toBool() : 2;
}
/// Says what this thread is about while it calls verbs of a communicator. The innermost scope's tag goes with every
/// call of a verb and is compared between ranks, so that a sum is not combined with a mean of the same size;
/// `describe` is asked only when calls differ.
class CallScope {
 public:
  using Describe = c10::function_ref<std::string()>;
  /// `what` (an operator's name) lives as long as the process, the object behind `describe` as long as the scope.
  CallScope(uint64_t tag, const char* what, Describe describe);
  ~CallScope() { innermost_of_thread() = outer_; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Something else that results depend on and that all ranks must have identically, such as the key of random
  /// numbers.
  void depends_on(uint64_t fact) { result_tag_ = combine_fingerprint(result_tag_, fact); }
  uint64_t tag() const { return tag_; }
  /// With what results depend on beside the call.
  uint64_t result_tag() const { return result_tag_; }
  const char* what() const { return what_; }
  std::string describe() const { return describe_(); }
  static CallScope* innermost() { return innermost_of_thread(); }

 private:
  static CallScope*& innermost_of_thread();

  uint64_t tag_, result_tag_;
  const char* what_;
  Describe describe_;
  CallScope* outer_;
};

/// The innermost scope as it was when a call began.
struct CallMark {
  uint64_t tag = 0;
  const char* what = nullptr;
  static CallMark now();
};

/// One call of a verb, as its own rank sees it.
struct CollectiveCall {
  static constexpr int kSplit = 7;  // after the kinds of CommStats
  int kind = 0;
  uint64_t number = 0;  // counts the calls of the group
  int op = 0, dtype = 0, root = 0;
  int64_t elements = 0;
  at::IntArrayRef counts = {}, send_counts = {}, receive_counts = {};
  CallMark mark = {};

  const char* verb() const;
  /// "all_reduce of Float, 3 elements, op sum (call 3 of this group)"
  std::string text() const;
  /// With what this thread is doing: "..., in aten::sum of [8, 8] on mesh(3: x): Shard(0), at train.lua:7".
  std::string describe() const;
};

/// The error's text when two ranks make calls that do not belong together; `calls` are their
/// CollectiveCall::describe().
std::string different_calls(const std::string& verb, int rank, const std::string& call, int other,
                            const std::string& other_call);
/// "\n  fix   ...": the usual reasons why ranks diverge, and how to see more.
std::string divergence_remedy();

}  // namespace moonhalo
