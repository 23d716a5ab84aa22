// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "moonhalo/engine/profile/event_names.h"
#include "moonhalo/engine/profile/matched_calls.h"
#include "moonhalo/engine/profile/profile_summary.h"

namespace moonhalo {
namespace {

enum TraceRow : int { kMain, kBackwardRow, kMessagesRow, kReadingRow, kRows };
constexpr const char* kRowNames[kRows] = {"script, forward, optimizer", "backward", "communication", "reading"};

TraceRow row_of(const ProfileEvent& event) {
  if (EventNames::is_communication(event)) return kMessagesRow;
  if (event.phase == Phase::kReading) return kReadingRow;
  return event.phase == Phase::kBackward ? kBackwardRow : kMain;
}

// Control characters in names keep viewers from opening a trace.
std::string without_controls(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(without_controls(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class TraceWriter {
 public:
  explicit TraceWriter(const std::vector<RankRecord>& ranks) : ranks_(ranks) {
    start_ = std::numeric_limits<int64_t>::max();
    for (const RankRecord& record : ranks) {
      if (!record.events.empty()) start_ = std::min(start_, record.events.front().begin + record.clock_offset);
    }
  }

  std::string write() {
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (size_t r = 0; r < ranks_.size(); ++r) {
      name_rows(r);
      write_events(r);
      write_memory(r);
    }
    const MatchedCalls matched(ranks_);
    for (const auto& [key, parts] : matched.all()) write_messages(matched, key.group, parts);
    text_ += "\n]}\n";
    return std::move(text_);
  }

 private:
  void begin_item() {
    if (!first_) text_ += ",\n";
    first_ = false;
  }

  void name_rows(size_t rank) {
    const std::string pid = std::to_string(rank);
    begin_item();
    text_ += R"({"ph":"M","name":"process_name","pid":)" + pid + R"(,"args":{"name":"rank )" + pid + "\"}}";
    begin_item();
    text_ += R"({"ph":"M","name":"process_sort_index","pid":)" + pid + R"(,"args":{"sort_index":)" + pid + "}}";
    for (int row = 0; row < kRows; ++row) {
      begin_item();
      text_ += R"({"ph":"M","name":"thread_name","pid":)" + pid + ",\"tid\":" + std::to_string(row) +
               R"(,"args":{"name":")" + kRowNames[row] + "\"}}";
    }
  }

  // Microseconds with their three digits.
  std::string time(size_t rank, int64_t nanoseconds) const {
    return duration(nanoseconds + ranks_[rank].clock_offset - start_);
  }
  static std::string duration(int64_t nanoseconds) {
    const std::string rest = std::to_string(nanoseconds % 1000);
    return std::to_string(nanoseconds / 1000) + "." + std::string(3 - rest.size(), '0') + rest;
  }

  void write_events(size_t rank) {
    const RankRecord& record = ranks_[rank];
    const EventNames names(record);
    for (uint32_t i = 0; i < record.events.size(); ++i) {
      const ProfileEvent& event = record.events[i];
      begin_item();
      text_ += R"({"ph":"X","pid":)" + std::to_string(rank) + ",\"tid\":" + std::to_string(row_of(event)) +
               ",\"ts\":" + time(rank, event.begin) + ",\"dur\":" + duration(event.duration()) +
               ",\"name\":" + quoted(record.names[event.name]) + ",\"args\":{\"step\":" + std::to_string(event.step);
      if (event.module != 0) text_ += ",\"module\":" + quoted(names.module_path(event.module));
      if (event.line != 0) text_ += ",\"line\":" + quoted(record.lines[event.line]);
      if (event.kind == EventKind::kCollective || event.kind == EventKind::kMessages)
        text_ += ",\"sent_bytes\":" + std::to_string(event.value);
      if (event.kind == EventKind::kOperator && event.value > 0) text_ += ",\"macs\":" + std::to_string(event.value);
      text_ += "}}";
      if (event.kind == EventKind::kBackward && event.value >= 0) {
        const ProfileEvent& forward = record.events[event.value];
        arrow("forward to backward", rank, forward, forward.begin, rank, event, event.begin);
      }
    }
  }

  void write_memory(size_t rank) {
    for (const MemoryRecord::Sample& sample : ranks_[rank].memory.samples) {
      begin_item();
      text_ += R"({"ph":"C","name":"memory of tensors","pid":)" + std::to_string(rank) +
               ",\"ts\":" + time(rank, std::max(sample.time, start_ - ranks_[rank].clock_offset)) +
               R"(,"args":{"bytes":)" + std::to_string(sample.live) + "}}";
    }
  }

  void write_messages(const MatchedCalls& matched, uint64_t group, const std::vector<MatchedCalls::Part>& parts) {
    std::map<size_t, const MatchedCalls::Part*> by_rank;
    for (const MatchedCalls::Part& part : parts) by_rank[part.rank] = &part;
    for (const MatchedCalls::Part& part : parts) {
      const RankRecord& record = ranks_[part.rank];
      const ProfileEvent& sent = record.events[record.calls[part.call].event];
      for (const uint32_t m : matched.messages_of(part)) {
        const RankRecord::CommMessage& message = record.messages[m];
        const auto peer = matched.world_rank(group, message.peer);
        if (message.sent == 0 || !peer || by_rank.count(*peer) == 0) continue;
        const auto wait = matched.wait_of(*by_rank[*peer]);
        if (!wait) continue;
        const ProfileEvent& received = ranks_[*peer].events[*wait];
        arrow("message", part.rank, sent, sent.begin, *peer, received, received.end);
      }
    }
  }

  // Both ends are within an event; none where clocks show the end before the beginning.
  void arrow(const char* name, size_t from_rank, const ProfileEvent& from, int64_t from_time, size_t to_rank,
             const ProfileEvent& to, int64_t to_time) {
    if (to_time + ranks_[to_rank].clock_offset < from_time + ranks_[from_rank].clock_offset) return;
    const std::string id = std::to_string(++arrows_);
    const auto end = [&](const char* phase, size_t rank, const ProfileEvent& event, int64_t at) {
      begin_item();
      text_ += std::string("{") + phase + R"(,"id":)" + id + R"(,"name":")" + name + R"(","cat":")" + name +
               R"(","pid":)" + std::to_string(rank) + ",\"tid\":" + std::to_string(row_of(event)) +
               ",\"ts\":" + time(rank, at) + "}";
    };
    end(R"("ph":"s")", from_rank, from, from_time);
    end(R"("ph":"f","bp":"e")", to_rank, to, to_time);
  }

  const std::vector<RankRecord>& ranks_;
  std::string text_;
  int64_t start_;
  int64_t arrows_ = 0;
  bool first_ = true;
};

}  // namespace

std::string chrome_trace(const std::vector<RankRecord>& ranks) { return TraceWriter(ranks).write(); }

std::string flame_stacks(const std::vector<RankRecord>& ranks) {
  std::map<std::string, int64_t> times;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankRecord& record = ranks[r];
    const std::vector<int64_t> self = self_times(record);
    std::vector<std::string> stacks(record.events.size());
    for (size_t i = 0; i < record.events.size(); ++i) {
      const ProfileEvent& event = record.events[i];
      std::string name = without_controls(record.names[event.name]);
      std::replace(name.begin(), name.end(), ';', ':');
      const bool outermost = event.parent == ProfileEvent::kNoEvent;
      stacks[i] = (outermost ? "rank " + std::to_string(r) : stacks[event.parent]) + ";" + name;
      times[stacks[i]] += self[i];
    }
  }
  std::string text;
  for (const auto& [stack, time] : times) {
    if (time >= 1000) text += stack + " " + std::to_string(time / 1000) + "\n";
  }
  return text;
}

}  // namespace moonhalo
