// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moonhalo {

/// The reasons why data moves between ranks, as flags. Rules declare what their calls move (Rule::traffic) and
/// communicators note what did, so that tests can compare the two.
enum class Traffic : uint8_t {
  kNone = 0,
  kInputs = 1,        ///< tensors that a call is given, to the cuts that it needs, and what it wrote to their originals
  kHalo = 2,          ///< rows that other ranks own, at places known from the specs, and gradients back to them
  kAllReduce = 4,     ///< sums, extremes or counts over ranks
  kRedistribute = 8,  ///< whole tensors, to another cut
  kRing = 16,         ///< blocks, from rank to rank until all have seen them
  kDataDependent = 32,  ///< as much as values ask for: rows of given indices, lists of lengths that are found out
  kOther = 64,          ///< outside a TrafficScope; no rule declares it
};
constexpr Traffic operator|(Traffic a, Traffic b) { return static_cast<Traffic>(uint8_t(a) | uint8_t(b)); }
/// The flags that `a` has and `b` lacks.
constexpr Traffic operator-(Traffic a, Traffic b) { return static_cast<Traffic>(uint8_t(a) & ~uint8_t(b)); }

/// "halo, all_reduce"; "none".
std::string to_string(Traffic traffic);

/// While one lives, what this thread's communicators move counts as `traffic`; the outermost scope says it.
class TrafficScope {
 public:
  explicit TrafficScope(Traffic traffic) : scope_(scope_of_rank()) {
    if (*scope_ != Traffic::kNone) {
      scope_ = nullptr;
    } else {
      *scope_ = traffic;
    }
  }
  ~TrafficScope() {
    if (scope_ != nullptr) *scope_ = Traffic::kNone;
  }
  TrafficScope(const TrafficScope&) = delete;
  TrafficScope& operator=(const TrafficScope&) = delete;

 private:
  static Traffic* scope_of_rank();
  Traffic* scope_;  // null inside another scope
};

/// Collects what this thread's communicators move while it lives, those of calls inside included.
class TrafficNotes {
 public:
  TrafficNotes();
  ~TrafficNotes();
  TrafficNotes(const TrafficNotes&) = delete;
  TrafficNotes& operator=(const TrafficNotes&) = delete;
  Traffic seen() const;

 private:
  Traffic before_;
};

/// For communicators: something moved; `traffic` is what it counts as outside a scope.
void note_traffic(Traffic traffic);

}  // namespace moonhalo
