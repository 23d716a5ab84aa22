// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// Names the events of one rank for tables and traces.
class EventNames {
 public:
  explicit EventNames(const RankRecord& record);

  /// An operator or a backward function.
  static bool is_call(const ProfileEvent& event) {
    return event.kind == EventKind::kOperator || event.kind == EventKind::kBackward;
  }
  /// A call of a verb, the posting of an exchange, or the wait for one.
  static bool is_communication(const ProfileEvent& event) {
    return event.kind == EventKind::kCollective || event.kind == EventKind::kMessages || event.kind == EventKind::kWait;
  }

  /// "aten::mm": of communication, that of the operator around it, unless it is a check; "(script)" outside of
  /// operators.
  std::string of_operator(const ProfileEvent& event) const;
  /// "blocks.0.fc", or "(optimizer)", "(outside of modules)", ...
  std::string of_module(const ProfileEvent& event) const;
  /// The same for memory: "(before)" for blocks from before the recording.
  std::string of_place(const MemoryRecord::Place& place) const;
  std::string module_path(uint16_t module) const;
  std::string of_line(const ProfileEvent& event) const;
  const ProfileEvent* parent(const ProfileEvent& event) const {
    return event.parent == ProfileEvent::kNoEvent ? nullptr : &record_.events[event.parent];
  }

 private:
  const RankRecord& record_;
  bool many_roots_ = false;
};

}  // namespace moonhalo
