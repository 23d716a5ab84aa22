// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/pipeline/pipeline_schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {
namespace {

const std::pair<Schedule, const char*> kSchedules[] = {
    {Schedule::kGPipe, "gpipe"}, {Schedule::k1F1B, "1f1b"}, {Schedule::kInterleaved1F1B, "interleaved_1f1b"}};

void check_sizes(int64_t ranks, int64_t stages, int64_t micros) {
  TORCH_CHECK_VALUE(micros > 0, "pipeline: ", micros, " micro-batches\n  have  micros = ", micros,
                    "\n  fix   give at least one");
  TORCH_CHECK_VALUE(stages > 0 && stages % ranks == 0, "pipeline: ", stages,
                    " stages cannot be shared out evenly among ", ranks, " ranks\n  have  ", stages, " stages, ", ranks,
                    " ranks\n  fix   give a multiple of ", ranks, " stages");
}

/// The order in which rank `rank` makes its forward passes, and backward passes too, from the last of its stages on: a
/// group of micro-batches goes through one of its stages, then through the next. Groups are as large as there are
/// ranks, or little larger: with smaller ones the ranks would wait for each other.
class OrderOfRank {
 public:
  OrderOfRank(int64_t rank, int64_t ranks, int64_t stages, int64_t micros)
      : behind_(ranks - rank - 1), chunks_(stages / ranks) {
    const std::vector<int64_t> groups = balanced_sizes(micros, std::max<int64_t>(1, micros / ranks));
    largest_ = groups[0];
    int64_t first = 0;
    for (const int64_t size : groups) {
      for (int64_t i = 0; i < chunks_ * size; ++i) {
        const int64_t chunk = i / size, micro = first + i % size;
        forward_.push_back({Pass::kForward, chunk * ranks + rank, micro});
        backward_.push_back({Pass::kBackward, (chunks_ - 1 - chunk) * ranks + rank, micro});
      }
      first += size;
    }
  }

  int64_t count() const { return static_cast<int64_t>(forward_.size()); }
  const StageCall& forward(int64_t index) const { return forward_[index]; }
  const StageCall& backward(int64_t index) const { return backward_[index]; }

  /// Forward passes before the first backward, one less than may be under way at once.
  int64_t warmup(Schedule schedule) const {
    if (schedule == Schedule::kGPipe) return count();
    return std::min(count(), chunks_ == 1 ? behind_ : 2 * behind_ + (chunks_ - 1) * largest_);
  }

 private:
  int64_t behind_, chunks_, largest_;
  std::vector<StageCall> forward_, backward_;
};

}  // namespace

const char* name(Schedule schedule) {
  for (const auto& [known, text] : kSchedules) {
    if (known == schedule) return text;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown Schedule ", static_cast<int>(schedule));
}

Schedule parse_schedule(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [schedule, known] : kSchedules) {
    if (text == known) return schedule;
    names.emplace_back(known);
  }
  TORCH_CHECK_VALUE(false, "pipeline: unknown schedule \"", text, "\"", did_you_mean(text, names), "\n  have  \"", text,
                    "\"\n  fix   use \"gpipe\", \"1f1b\" or \"interleaved_1f1b\"");
}

std::string StageCall::to_string() const {
  return (pass == Pass::kForward ? "F" : "B") + std::to_string(stage) + "." + std::to_string(micro);
}

PipelineSchedule make_schedule(Schedule schedule, int64_t ranks, int64_t stages, int64_t micros) {
  check_sizes(ranks, stages, micros);
  TORCH_CHECK_VALUE(schedule != Schedule::k1F1B || ranks == 1 || stages == ranks,
                    "pipeline: the schedule \"1f1b\" has one stage on each rank\n  have  ", stages, " stages, ", ranks,
                    " ranks\n  fix   use \"interleaved_1f1b\", or give ", ranks, " stages");
  PipelineSchedule result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const OrderOfRank order(rank, ranks, stages, micros);
    const int64_t warmup = order.warmup(schedule);
    std::vector<StageCall> calls;
    for (int64_t i = 0; i < warmup; ++i) calls.push_back(order.forward(i));
    for (int64_t i = 0; i < order.count(); ++i) {
      if (warmup + i < order.count()) calls.push_back(order.forward(warmup + i));
      calls.push_back(order.backward(i));
    }
    result.push_back(std::move(calls));
  }
  return result;
}

PipelineSchedule make_forward_schedule(int64_t ranks, int64_t stages, int64_t micros) {
  check_sizes(ranks, stages, micros);
  PipelineSchedule result(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const OrderOfRank order(rank, ranks, stages, micros);
    for (int64_t i = 0; i < order.count(); ++i) result[rank].push_back(order.forward(i));
  }
  return result;
}

std::string to_string(const PipelineSchedule& schedule) {
  std::string text;
  for (const auto& calls : schedule) {
    for (size_t i = 0; i < calls.size(); ++i) text += (i == 0 ? "" : " ") + calls[i].to_string();
    text += "\n";
  }
  return text;
}

}  // namespace moonhalo
