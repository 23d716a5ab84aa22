// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/rank_record.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace moonhalo {
namespace {

constexpr const char* kDamaged = "profile: the record of a rank is damaged";

class RecordWriter {
 public:
  template <class Value>
  void put(const Value& value) requires std::is_trivially_copyable_v<Value> {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(Value));
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  template <class Item>
  void put_all(const std::vector<Item>& items) {
    put(items.size());
    if constexpr (std::is_trivially_copyable_v<Item>) {
      if (!items.empty()) bytes_.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
    } else {
      for (const Item& item : items) put(item);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class RecordReader {
 public:
  explicit RecordReader(const std::string& bytes) : bytes_(bytes) {}
  template <class Value>
  void get(Value& value) requires std::is_trivially_copyable_v<Value> {
    std::memcpy(&value, next(sizeof(Value)), sizeof(Value));
  }
  void get(std::string& text) {
    size_t size = 0;
    get(size);
    text.assign(next(size), size);
  }
  template <class Item>
  void get_all(std::vector<Item>& items) {
    size_t size = 0;
    get(size);
    TORCH_CHECK_VALUE(size <= bytes_.size(), kDamaged);
    items.resize(size);
    if constexpr (std::is_trivially_copyable_v<Item>) {
      const char* from = next(size * sizeof(Item));
      if (size > 0) std::memcpy(items.data(), from, size * sizeof(Item));
    } else {
      for (Item& item : items) get(item);
    }
  }

 private:
  const char* next(size_t size) {
    TORCH_CHECK_VALUE(size <= bytes_.size() - at_, kDamaged);
    const char* here = bytes_.data() + at_;
    at_ += size;
    return here;
  }
  const std::string& bytes_;
  size_t at_ = 0;
};

// All numbers must be those of entries: readers do not check them.
bool fits_together(const RankRecord& record) {
  for (size_t i = 0; i < record.events.size(); ++i) {
    const ProfileEvent& event = record.events[i];
    const bool points = event.kind == EventKind::kBackward || event.kind == EventKind::kWait;
    if (event.name >= record.names.size() || event.module >= record.modules.size() ||
        event.line >= record.lines.size() || (event.parent != ProfileEvent::kNoEvent && event.parent >= i) ||
        event.phase >= Phase::kPhases || (points && event.value >= std::ssize(record.events)))
      return false;
  }
  for (size_t i = 0; i < record.modules.size(); ++i) {
    if (record.modules[i].parent >= std::max<size_t>(i, 1)) return false;
  }
  for (const RankRecord::CommCall& call : record.calls) {
    if (call.event >= record.events.size()) return false;
  }
  for (const RankRecord::CommMessage& message : record.messages) {
    if (message.call >= record.calls.size()) return false;
  }
  return true;
}

}  // namespace

const char* name(Phase phase) {
  constexpr const char* kNames[] = {"script", "forward", "backward", "optimizer", "reading", "check"};
  static_assert(std::size(kNames) == static_cast<size_t>(Phase::kPhases));
  return kNames[static_cast<size_t>(phase)];
}

std::string RankRecord::to_bytes() const {
  RecordWriter writer;
  writer.put_all(events);
  writer.put_all(calls);
  writer.put_all(messages);
  writer.put(memory.peak);
  writer.put_all(memory.at_peak);
  writer.put_all(memory.samples);
  writer.put_all(names);
  writer.put_all(lines);
  std::vector<std::string> module_names;
  std::vector<uint16_t> parents;
  for (const Module& module : modules) {
    module_names.push_back(module.name);
    parents.push_back(module.parent);
  }
  writer.put_all(module_names);
  writer.put_all(parents);
  writer.put(clock_offset);
  writer.put(full);
  writer.put(last_step);
  return writer.take();
}

RankRecord RankRecord::from_bytes(const std::string& bytes) {
  RecordReader reader(bytes);
  RankRecord record;
  reader.get_all(record.events);
  reader.get_all(record.calls);
  reader.get_all(record.messages);
  reader.get(record.memory.peak);
  reader.get_all(record.memory.at_peak);
  reader.get_all(record.memory.samples);
  reader.get_all(record.names);
  reader.get_all(record.lines);
  std::vector<std::string> module_names;
  std::vector<uint16_t> parents;
  reader.get_all(module_names);
  reader.get_all(parents);
  record.modules.clear();
  TORCH_CHECK_VALUE(module_names.size() == parents.size(), kDamaged);
  for (size_t i = 0; i < module_names.size(); ++i) record.modules.push_back({module_names[i], parents[i]});
  reader.get(record.clock_offset);
  reader.get(record.full);
  reader.get(record.last_step);
  TORCH_CHECK_VALUE(fits_together(record), kDamaged);
  return record;
}

}  // namespace moonhalo
