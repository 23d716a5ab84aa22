// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/event_names.h"

#include <set>

namespace moonhalo {
namespace {

const std::string kCheckRow = std::string("(") + kCheckOfPlainTensors + ")";

}  // namespace

EventNames::EventNames(const RankRecord& record) : record_(record) {
  std::set<std::string> roots;
  for (size_t i = 1; i < record.modules.size(); ++i) {
    if (record.modules[i].parent == 0) roots.insert(record.modules[i].name);
  }
  many_roots_ = roots.size() > 1;
}

std::string EventNames::of_operator(const ProfileEvent& event) const {
  if (is_call(event)) return record_.names[event.name];
  if (is_communication(event) && event.phase == Phase::kCheck) return kCheckRow;
  if (is_communication(event)) {
    for (const ProfileEvent* outer = parent(event); outer != nullptr; outer = parent(*outer)) {
      if (is_call(*outer)) return record_.names[outer->name];
    }
    return "(" + record_.names[event.name] + ")";
  }
  if (event.kind == EventKind::kRange || event.kind == EventKind::kPart) return "(" + record_.names[event.name] + ")";
  return "(script)";
}

std::string EventNames::of_line(const ProfileEvent& event) const {
  return event.line != 0 ? record_.lines[event.line] : is_call(event) ? "(no line)" : "(script)";
}

std::string EventNames::module_path(uint16_t module) const {
  const RankRecord::Module& one = record_.modules[module];
  if (one.parent == 0 || !many_roots_) return one.name;
  uint16_t root = module;
  while (record_.modules[root].parent != 0) root = record_.modules[root].parent;
  return record_.modules[root].name + ":" + one.name;
}

std::string EventNames::of_module(const ProfileEvent& event) const {
  if (event.module != 0) return module_path(event.module);
  switch (event.phase) {
    case Phase::kBackward:
      return "(backward of no module)";
    case Phase::kOptimizer:
      return "(optimizer)";
    case Phase::kReading:
      return "(reading)";
    case Phase::kForward:
      return "(outside of modules)";
    case Phase::kCheck:
      return kCheckRow;
    default:
      return "(script)";
  }
}

std::string EventNames::of_place(const MemoryRecord::Place& place) const {
  if (place.before) return "(before)";
  ProfileEvent made;
  made.module = place.module;
  made.phase = place.phase;
  return of_module(made);
}

}  // namespace moonhalo
